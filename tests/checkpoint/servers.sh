# Pythons and servers for the scripts of this folder. What they need goes into the folder `out`, and an error to `fail`:
# the script that sources this has both.
# shellcheck shell=bash

# python_with PACKAGES…: a Python that has them, in a virtual environment of its own. Set PYTHON to a Python that has them
# already, and nothing is installed.
python_with() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    python3 -m venv "$out/venv" >&2 || fail "python3 with venv is needed (apt-get install python3-venv)"
    "$out/venv/bin/pip" install --quiet "$@" >&2 || fail "pip cannot install $*"
    echo "$out/venv/bin/python"
}

# A port that is free, and that no process is given by chance until it is used: those begin at 32768.
port() {
    python3 -c '
import random, socket

while True:
    at = "127.0.0.1", random.randrange(20000, 32768)
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        try:
            stream.bind(at)
            datagrams.bind(at)
        except OSError:
            continue
        print(at[1])
        break
'
}

# s3_server PORT: becomes a server of S3.
s3_server() {
    local python
    python=$(python_with 'moto[server]')
    exec "$python" tests/checkpoint/s3.py "$1"
}
