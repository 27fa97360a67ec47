"""Runs the operator's commands that check whether a program is healthy, and those that stop it."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.child_output import wait_and_read
from supervisor.host.children import Configured, start_configured
from supervisor.host.processes import limits
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.resources.cgroup import Cgroup

SHOWN_BYTES = 300  # of a command's output: enough for the reason, short enough for a line
KILLED_WITHIN_S = 5.0  # longer means that the kernel holds it, as on a file system of its user's that does not answer


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check. `user`: that the command runs as; None: the daemon's. `key`: its key in the configuration. `cgroup`:
    the control group that it starts in."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path | None
    user: str | None
    timeout_s: float
    key: str = "healthcheck_command"
    cgroup: Path | None = None


class NotRun(Exception):
    """The command could not be started, which says nothing about the program; the text says why."""


_hanging: dict[Hashable, subprocess.Popen[bytes]] = {}
"""By user, or by command of the daemon's own: the last one that could not be killed."""


class HealthChecks:
    """Runs checks, called from threads, until it is closed.

    One that can't even be killed keeps no thread, as all programs share them. While it hangs, no other is begun as the
    same user, who may have made many such.
    """

    def __init__(self) -> None:
        self._children: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def close(self) -> None:
        """Kills the running checks, so that no thread waits for one."""
        self._is_closed = True
        for child in tuple(self._children):
            _kill(child)

    def failure_of(self, check: HealthCheck) -> str | None:
        """Why the check failed; None if the command exited with 0 in time. Raises NotRun."""
        whose = check.argv if check.user is None else check.user
        if (before := _hanging.get(whose)) is not None and before.poll() is None:
            return f"{check.key} is not run while an earlier one hangs in the kernel, pid {before.pid}"
        try:
            output, printing = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise NotRun(f"cannot run {check.key}: {error}") from error
        try:
            try:
                child = _started(check, printing)
            except (OSError, ValueError, SpawnError, subprocess.SubprocessError) as error:
                raise NotRun(f"cannot run {check.key}: {error}") from error
            finally:
                os.close(printing)
            return self._outcome(check, whose, child, output)
        finally:
            os.close(output)

    def _outcome(self, check: HealthCheck, whose: Hashable, child: subprocess.Popen[bytes], output: int) -> str | None:
        self._children.add(child)
        if self._is_closed:
            _kill(child)
        try:
            printed = wait_and_read(child, output, check.timeout_s, SHOWN_BYTES)
        except subprocess.TimeoutExpired:
            return f"{check.key} took more than {check.timeout_s:g} s"
        finally:
            _kill(child)  # and what it left behind: not yet reaped, it still has its number
            self._children.discard(child)
            try:
                child.wait(KILLED_WITHIN_S)
            except subprocess.TimeoutExpired:
                _hanging[whose] = child
        status = child.returncode
        if status == 0:
            return None
        how = f"exited with status {status}" if status > 0 else f"was terminated by {signal.Signals(-status).name}"
        return f"{check.key} {how}{_shown(printed)}"


def _started(check: HealthCheck, output: int) -> subprocess.Popen[bytes]:
    who = find_credentials(check.user) if check.user is not None and os.geteuid() == 0 else None
    # not `inherited_nofile`, which is for the event loop's thread; a slow disk may hold this one
    set_limits = limits.limit_setter(check.key, {})
    group: int | None = None
    with contextlib.ExitStack() as until_exec:
        if check.cgroup is not None:
            with contextlib.suppress(OSError):  # it has just been removed, with the program
                group = Cgroup(check.cgroup).open_procs()
                until_exec.callback(os.close, group)

        def prepare() -> None:
            if group is not None:
                with contextlib.suppress(OSError):
                    os.write(group, b"0")
            set_limits()

        return start_configured(
            Configured(
                check.argv,
                check.environment,
                stdout=output,
                stderr=output,
                directory=check.directory,
                user=who.identity if who else None,
                prepare=prepare,
            )
        )


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _shown(printed: bytes) -> str:
    text = printed.decode("utf-8", "replace").strip()
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return f": {line}" if line else ""
