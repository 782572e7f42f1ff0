"""What a run does to its process: its directory, its main thread, and the stacks of its end."""

from __future__ import annotations

import atexit
import faulthandler
import os
import shutil
import tempfile
import threading
from pathlib import Path

import torch

#: How much the scheduler favours the worker's other threads: a starved one loses healthy links.
NICE = 5


def print_stacks_of_fatal_errors() -> None:
    """Has the log get the stacks of all threads if the process dies, or is ended as it hangs."""
    try:
        faulthandler.enable()
    except (AttributeError, ValueError, OSError):
        pass  # there is no stderr with a file descriptor, as in a notebook


def directory() -> Path:
    """The directory with the run's files, or that of a worker from elsewhere."""
    stated = os.environ.get("EVERSTEP_DIR")
    return Path(stated) if stated else temporary()


def temporary() -> Path:
    """A directory for as long as this process lives."""
    made = tempfile.mkdtemp(prefix="everstep-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def prepare_thread(threads: int) -> None:
    """The thread that computes gives way to those that send, and has the run's thread count."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
    except OSError:
        pass  # a system may refuse, and the run goes on
    torch.set_num_threads(threads)
