"""A process with descendants that ignore SIGTERM: one in its group, one in a session of its own, one orphan.

Prints their pids in one line, then waits. With "leave" it exits with 3 instead; with "die" it is killed.
"""

import os
import signal
import sys


def wait() -> None:
    while True:
        signal.pause()


def descend(write: int, leave_session: bool) -> None:
    if leave_session:
        os.setsid()
    os.write(write, f"{os.getpid()} ".encode())
    os.close(write)
    wait()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    read, write = os.pipe()
    for leave_session in (False, True):
        if os.fork() == 0:
            descend(write, leave_session)
    if (parent := os.fork()) == 0:
        if os.fork() == 0:
            descend(write, False)
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(write)
    pids = b""
    while pids.count(b" ") < 3:
        pids += os.read(read, 100)
    print(pids.decode().strip(), flush=True)
    if sys.argv[1:] == ["leave"]:
        sys.exit(3)
    if sys.argv[1:] == ["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    wait()


main()
