"""What a run does to its process: its directory, its main thread, and its end."""

from __future__ import annotations

import atexit
import errno
import faulthandler
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import torch

#: How much the scheduler favours the worker's other threads: a starved one loses healthy links.
NICE = 5
#: What a machine lacks, by the numbers of the system's errors.
LACKS = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
#: What PyTorch says where memory is short, for which it has no class of exceptions: words of its
#: allocator, of a loading process that the system has killed, of shared memory, and of CUDA's
#: libraries.
SHORT_OF_MEMORY = (
    "DefaultCPUAllocator:",
    "is killed by signal: Killed",
    "out of shared memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
#: What CUDA says of a GPU that is sick, or that another process has to itself.
SICK_GPU = (
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "CUDA-capable device(s) is/are busy or unavailable",
    "no CUDA-capable device is detected",
)

_has_failed = False


def is_of_place(error: BaseException | None) -> bool:
    """Whether an exception says what this machine lacks, and what may be there elsewhere."""
    while error is not None:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            return True
        if isinstance(error, OSError) and error.errno in LACKS:
            return True
        words = SHORT_OF_MEMORY + SICK_GPU
        if isinstance(error, RuntimeError) and any(it in str(error) for it in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def fail_at_exit() -> None:
    """Has this process end with exit code 1, where Python would end it with 0."""
    global _has_failed
    _has_failed = True


@atexit.register  # the first one that is registered here is the last one that is called
def _exit() -> None:
    if _has_failed:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, ValueError, OSError):
                pass  # there is none, or it is closed
        os._exit(1)


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
