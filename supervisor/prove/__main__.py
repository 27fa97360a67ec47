"""`python -m supervisor.prove`: see `command.py`."""

import sys

from supervisor.prove.command import main

if __name__ == "__main__":
    sys.exit(main(program="python -m worker.prove"))
