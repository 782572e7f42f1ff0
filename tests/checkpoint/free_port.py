"""Prints a port that is free, and that no process is given by chance until it is used.

The ports that processes are given by chance begin at 32768.
"""
import random
import socket


def free_port() -> int:
    while True:
        at = "127.0.0.1", random.randrange(20_000, 32_768)
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                stream.bind(at)
                datagrams.bind(at)
            except OSError:
                continue
            return at[1]


if __name__ == "__main__":
    print(free_port())
