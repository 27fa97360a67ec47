"""The daemon that a reload executes in place of this one: its command, and whether it would start.

Once this daemon has left its programs to the next one, nobody is there to go back to. So the command is tried before:
an upgrade may have been cut off, its environment made anew without the package, the interpreter removed, or an older
version installed that does not know the ledger. `--check-config` finds all of these and changes nothing. What it has
read it writes down, and the next daemon uses that: its files may be changed again before it gets to them.
"""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from supervisor.host.child_output import wait_and_read
from supervisor.host.children import Configured, start_configured
from supervisor.host.processes import limits
from supervisor.host.service.reloading import Reload

TIMEOUT_S = 30.0  # it takes half a second; of one that takes longer nothing is known
NOT_EXECUTABLE = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ELOOP, errno.ENOTDIR})
SHOWN_BYTES = 1000  # of what it prints: its reasons, or the end of a traceback
KEEP_CHECKED = "STEPKEEPER_KEEP_CHECKED"
"""Set for the check: it writes the configuration that it has read to its standard input, which is a file in memory."""


class NextDaemon:
    """A fresh daemon with the options of this one. `configuration`: full path of its file. `start_folder`: where this
    daemon was started, as paths among its options may be relative to it."""

    def __init__(self, configuration: Path, start_folder: Path) -> None:
        self.configuration, self.start_folder = configuration, start_folder
        self._checked: int | None = None
        """A descriptor of what the last check has left: the configuration, unless the check was cut off."""

    def find_obstacle(self) -> str | None:
        """Why it would not start; None if it would, or if that is not known in time. Blocks."""
        try:
            checked = os.memfd_create("configuration")
            before, self._checked = self._checked, checked
            if before is not None:
                os.close(before)
            reading, printing = os.pipe2(os.O_CLOEXEC)
        except OSError:  # a fresh daemon may be what helps
            return None
        try:
            try:
                child = start_configured(
                    Configured(
                        (*self._command(), "--check-config"),
                        {**os.environ, KEEP_CHECKED: "1"},
                        stdin=checked,
                        stdout=subprocess.DEVNULL,
                        stderr=printing,
                        directory=self.start_folder if self.start_folder.is_dir() else None,
                    )
                )
            finally:
                os.close(printing)
            try:
                printed = wait_and_read(child, reading, TIMEOUT_S, SHOWN_BYTES)
            finally:
                child.kill()  # of the one that has ended it knows
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            return f"{sys.executable}: {error.strerror}" if error.errno in NOT_EXECUTABLE else None
        finally:
            os.close(reading)
        if (status := child.wait()) == 0:
            return None
        lines = [line.strip() for line in printed.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {status}"

    def execute(self, reload: Reload) -> NoReturn:
        """Replaces this process by it. Raises OSError."""
        limits.restore_own_nofile()
        with contextlib.suppress(OSError):  # it may have been deleted, or this user may not enter it
            os.chdir(self.start_folder)
        os.execve(sys.executable, self._command(), reload.environment(os.environ, self._checked))  # noqa: S606 - no shell

    def _command(self) -> tuple[str, ...]:
        named = ["-c", str(self.configuration)]
        arguments = sys.argv[1:] if sys.argv[-2:] == named else [*sys.argv[1:], *named]
        return (sys.executable, "-P", "-m", "supervisor.daemon", *arguments)
