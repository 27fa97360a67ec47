"""Becomes `supervisor.prove`, which the worker's package may not import: it is a client of the daemon."""

import os
import sys


def main() -> None:
    """Replaces this process, with the same arguments."""

    os.execv(sys.executable, [sys.executable, "-m", "supervisor.prove", *sys.argv[1:]])  # noqa: S606 - no shell


if __name__ == "__main__":
    main()
