"""The command `pidproxy`: keeps a program in the foreground whose real process puts itself into the background.

`pidproxy PIDFILE COMMAND ARGUMENT ...` runs the command, which writes the process id of what it started into PIDFILE
(as `mysqld_safe` does), and passes signals on to that process. Supervisor has the same command. This one also waits,
after a signal that ends things, until that process is gone, so that "stopped" is true.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
PASSED_ON = frozenset({*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2})
USAGE = "usage: pidproxy PIDFILE COMMAND [ARGUMENT ...]"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit status: that of what it ran, 128 and the signal's number if one ended it."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)  # noqa: T201
        return 0
    if len(words) < 2:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return 2
    signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGCHLD})
    try:
        child = subprocess.Popen(words[1:], preexec_fn=_unblock)  # noqa: PLW1509 - no other thread
    except OSError as error:
        print(f"cannot run {words[1]}: {error.strerror}; correct the command", file=sys.stderr)  # noqa: T201
        return 127
    return _follow(child, Path(words[0]))


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*PASSED_ON, signal.SIGCHLD})


def _follow(child: subprocess.Popen[bytes], pid_file: Path) -> int:
    """Passes signals on until the command has ended, and with an ending signal until the process of the file has."""
    while child.poll() is None:
        number = signal.sigwait({*PASSED_ON, signal.SIGCHLD})
        if number not in PASSED_ON:
            continue
        target = _open_process(pid_file)
        if target is None:
            child.send_signal(number)
            continue
        try:
            signal.pidfd_send_signal(target, number)
            if number in ENDING:
                select.select([target], [], [])  # a pidfd is readable when its process has ended
        finally:
            os.close(target)
        if number in ENDING:
            child.terminate()  # what only watched the process usually ends with it
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _open_process(pid_file: Path) -> int | None:
    """The pidfd of the process that the file names; None, with a line that says why, if there is none."""
    try:
        return os.pidfd_open(int(pid_file.read_text(errors="replace")[:20]))
    except (OSError, OverflowError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it holds no process id"
        print(f"pidproxy: cannot use {pid_file}: {cause}; the command gets the signal", file=sys.stderr)  # noqa: T201
        return None


if __name__ == "__main__":
    sys.exit(main())
