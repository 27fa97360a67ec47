"""`python -m supervisor.prove`: see `command.py`."""

import sys

import supervisor.early_interrupt  # noqa: F401 - before what takes long to load
from supervisor.prove.command import main

if __name__ == "__main__":
    sys.exit(main(program="python -m worker.prove"))
