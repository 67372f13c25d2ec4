"""The ``oxidize`` command: ``python -m oxidize``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command line of this process and exits with its status."""
    from ._oxidize import run_command

    # The command handles Ctrl-C itself; Python's handler would only set a flag that nobody reads.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    sys.exit(run_command(["oxidize", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
