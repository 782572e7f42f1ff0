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
from collections.abc import Iterable
from pathlib import Path

#: How much the scheduler favours the worker's other threads: a starved one loses healthy links.
NICE = 5
#: What a machine lacks, by the numbers of the system's errors.
LACKS = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
#: What a framework says where memory is short, for which it has no class of exceptions: words of
#: PyTorch's allocator, of a loading process that the system has killed, of shared memory, of CUDA's
#: libraries, and of XLA.
SHORT_OF_MEMORY = (
    "DefaultCPUAllocator:",
    "is killed by signal: Killed",
    "out of shared memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "RESOURCE_EXHAUSTED:",
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
        if isinstance(error, MemoryError) or _is_of_allocator(error):
            return True
        if isinstance(error, OSError) and error.errno in LACKS:
            return True
        words = SHORT_OF_MEMORY + SICK_GPU
        if isinstance(error, RuntimeError) and any(it in str(error) for it in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_of_allocator(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


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


def give_way(threads: Iterable[int] | None = None) -> None:
    """The threads that compute, by their numbers in the system, give way to those that send. By
    default the thread that calls is the only one."""
    for thread in threads or [threading.get_native_id()]:
        try:
            os.setpriority(os.PRIO_PROCESS, thread, NICE)
        except OSError:
            pass  # a system may refuse, and the run goes on


def check_launcher() -> None:
    """Refuses a process that another launcher has started beside others: each would train alone."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1" and "LOCAL_RANK" in os.environ:
        raise RuntimeError(
            f"torchrun or accelerate has started {count} of these processes, and each would train a "
            f"run of its own: start them by `everstep launch --workers {count} SCRIPT`"
        )


def kind_of_cpu() -> str:
    """The name that the maker of the CPU has given it."""
    kind = "of an unknown kind"
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            found = (line.partition(":")[2] for line in lines if line.startswith("model name"))
            kind = next(found, kind)
    except OSError:
        pass  # a system without this file
    return " ".join(kind.split())
