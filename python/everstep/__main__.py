"""The command ``everstep``: ``python -m everstep``. It imports nothing of a framework."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command line of the process, and returns its exit code."""
    from everstep import _everstep

    # The program has its own way with Ctrl-C, and Python would add a traceback to it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _everstep.main(["everstep", *sys.argv[1:]], sys.executable)


if __name__ == "__main__":
    sys.exit(main())
