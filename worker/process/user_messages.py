"""What a person reads on stderr, which the daemon keeps in the job's log."""

import contextlib
import sys


def print_message(text: str) -> None:
    """One line. Where nobody reads stderr any more, or a script closed it, nothing is said, and training goes on."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"stepkeeper: {text}\n")
