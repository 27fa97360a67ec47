"""Leaves orphans behind, says so, and ends with status 3 when told: a line `go` on standard input.

Arguments: how many orphans. Each ends by itself at once, after its parent is gone.
"""

import os
import sys
import time


def leave_orphan() -> None:
    """A grandchild whose parent is dead, so that it belongs to PID 1 or a subreaper; then it ends."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            os.close(writing)
            os.read(reading, 1)  # ends when no one holds the other end: the parent's gone then
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)


def main() -> int:
    for _ in range(int(sys.argv[1])):
        leave_orphan()
    print("left", flush=True)
    time.sleep(float(sys.argv[2]))
    return 3


if __name__ == "__main__":
    sys.exit(main())
