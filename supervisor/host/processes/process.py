"""Starts a worker or takes one over, notices its end through its pidfd, and kills it with everything it started."""

import asyncio
import contextlib
import os
import select
import signal as signals
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from supervisor.host.processes import limits, priority, process_status, tree
from supervisor.host.processes.credentials import Credentials
from supervisor.host.processes.limits import Limits
from supervisor.host.processes.process_status import Exit, read_start_time
from supervisor.host.processes.spawning import explain, find_command
from supervisor.host.resources.cgroup import Cgroup

REAPED_WITHIN_S = 2.0  # an adopted process is reaped by init, at once; some containers' first process never does
ASK_AGAIN_S = 0.01


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """Everything about one process to be: `environment` is complete, `stdout` and `stderr` are descriptors to give it.

    `stdin`: a descriptor too; None: it has an empty one (/dev/null).

    `group_ends_with_it`: SIGKILL goes to what is left of its process group in the moment it ends, so that no
    grandchild still holds its devices and locks when the next attempt begins. `cgroup`: it begins in this group.
    """

    program: str
    argv: tuple[str, ...]
    directory: Path | None
    environment: Mapping[str, str]
    stdout: int
    stderr: int
    credentials: Credentials | None = None
    umask: int | None = None
    stdin: int | None = None
    group_ends_with_it: bool = False
    limits: Limits = field(default_factory=dict)
    oom_score_adjust: int | None = None
    cgroup: Cgroup | None = None


def spawn(request: SpawnRequest, on_exit: Callable[[Exit], None]) -> "Process":
    """Starts the process, as leader of its own session and process group, in the running loop.

    `on_exit` is called exactly once, from the loop, after the process ended. Returns once the new program runs (exec
    is done). Raises SpawnError; then nothing was started and `on_exit` is never called.
    """
    command = find_command(request.argv[0], request.environment, request.directory, request.program)
    try:
        child = _popen(request, command)
        priority.set_oom_score(child.pid, request.oom_score_adjust)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _refuse(request, command, error)
    try:
        pidfd = os.pidfd_open(child.pid)
    except OSError as error:
        child.kill()
        child.wait()
        _refuse(request, command, error)
    child.returncode = 0  # so that Popen asks for no status when it is gone, here: that is the pidfd's
    start_time = read_start_time(child.pid) or 0  # an unreaped child always has one
    return Process(child.pid, start_time, pidfd, request.group_ends_with_it, on_exit)


def adopt(pid: int, start_time: int, group_ends_with_it: bool, on_exit: Callable[[Exit], None]) -> "Process | None":
    """Takes over a process that an earlier daemon started; None if it is gone. `on_exit` as for `spawn`.

    It may be our child still (the daemon executed itself anew) or not, and a zombie already; its exit status is had
    where the kernel gives it.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if read_start_time(pid) != start_time:
        os.close(pidfd)
        return None
    return Process(pid, start_time, pidfd, group_ends_with_it, on_exit)


def _popen(request: SpawnRequest, command: Path) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as until_it_runs:
        entrance = _entrance(request, until_it_runs)
        if limits.can_use_inherited_nofile():
            until_it_runs.enter_context(limits.inherited_nofile())
        return _popen_in(request, command, entrance)


def _entrance(request: SpawnRequest, until_it_runs: contextlib.ExitStack) -> int | None:
    """What the child enters its group through: opened here, as the child may be another user by then."""
    if request.cgroup is None:
        return None
    try:
        entrance = request.cgroup.open_procs()
    except OSError:  # removed by somebody: what it can't be held to is watched from outside
        return None
    until_it_runs.callback(os.close, entrance)
    return entrance


def _in_child(request: SpawnRequest, entrance: int | None) -> Callable[[], None] | None:
    is_needed = request.limits or not limits.can_use_inherited_nofile()
    set_limits = limits.limit_setter(request.program, request.limits) if is_needed else None
    if entrance is None:
        return set_limits

    def prepare() -> None:
        with contextlib.suppress(OSError):
            os.write(entrance, b"0")
        if set_limits is not None:
            set_limits()

    return prepare


def _popen_in(request: SpawnRequest, command: Path, entrance: int | None) -> subprocess.Popen[bytes]:
    in_child = _in_child(request, entrance)
    identity_of = request.credentials if os.geteuid() == 0 else None  # a plain user can't even set what it has
    return subprocess.Popen(
        request.argv,
        executable=command,
        cwd=request.directory,
        env=request.environment,
        stdin=subprocess.DEVNULL if request.stdin is None else request.stdin,
        stdout=request.stdout,
        stderr=request.stderr,
        start_new_session=True,
        umask=-1 if request.umask is None else request.umask,
        user=identity_of.uid if identity_of else None,
        group=identity_of.gid if identity_of else None,
        extra_groups=identity_of.groups if identity_of else None,
        # only where it is asked for: it keeps Popen from vfork; all it does is setrlimit(2) and write(2)
        preexec_fn=in_child,  # noqa: PLW1509
    )


def _refuse(request: SpawnRequest, command: Path, error: Exception) -> NoReturn:
    raise explain(request.program, command, request.directory, error) from error


class Process:
    """One process of a program. Its identity is `pid` and `start_time` together; pids are used again.

    `start_time`: kernel ticks after boot, as in field 22 of /proc/PID/stat.
    """

    __slots__ = ("_group_ends_with_it", "_loop", "_on_exit", "_pidfd", "exit", "pid", "start_time")

    def __init__(
        self,
        pid: int,
        start_time: int,
        pidfd: int,
        group_ends_with_it: bool,
        on_exit: Callable[[Exit], None],
    ) -> None:
        self.pid = pid
        self.start_time = start_time
        self.exit: Exit | None = None
        self._pidfd = pidfd
        self._group_ends_with_it = group_ends_with_it
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._ended)

    def reassign(self, on_exit: Callable[[Exit], None], group_ends_with_it: bool) -> None:
        """Somebody else is told of its end from now on."""
        self._on_exit, self._group_ends_with_it = on_exit, group_ends_with_it

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, though nobody may have been told yet."""
        if self.exit is not None or self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def send_signal(self, signal: int, group: bool) -> bool:
        """Sends a signal to the process, or to its whole process group; False if it is gone already."""
        if self.exit is not None:
            return False
        try:
            if group and read_start_time(self.pid) == self.start_time:
                os.killpg(self.pid, signal)  # safe: until the leader is reaped, nobody else can have its number
            else:
                signals.pidfd_send_signal(self._pidfd, signal)
        except (ProcessLookupError, PermissionError):  # gone; or it became another user, and we are not root
            return False
        return True

    def kill_tree(self) -> None:
        """SIGKILL to the process and all it started, also what left its process group or session.

        Descendants are stopped (SIGSTOP) and listed until no new one appears, before any of them dies: once a parent is
        dead its children can't be told from anybody's.
        """
        if self.exit is not None:
            self.kill_session()
            return
        victims = tree.stop_tree(self.pid, self.start_time)
        self._kill_group()
        tree.kill_all(victims)

    def kill_session(self) -> int:
        """After the process ended: SIGKILL to what is left of its session and group; how many that were.

        Reads all of /proc: call it from a thread. What had left the session is found only by `kill_tree`.
        """
        return tree.kill_session(self.pid, self.start_time)

    def detach(self) -> None:
        """Watches it no longer; it lives on, and `on_exit` is not called any more."""
        if self._pidfd >= 0:
            self._stop_watching()

    def _ended(self) -> None:
        if self._group_ends_with_it:
            self._kill_group()
        self._loop.remove_reader(self._pidfd)  # it stays readable for ever
        self._ask_how(self._loop.time() + REAPED_WITHIN_S)

    def _kill_group(self) -> None:
        """SIGKILL to its group, unless its number is somebody else's by now: init may have reaped what was adopted."""
        if read_start_time(self.pid) in (None, self.start_time):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signals.SIGKILL)

    def _ask_how(self, until: float) -> None:
        """Asks how it ended; again later while whoever is to reap it has not."""
        if self._pidfd < 0:
            return
        exit_ = process_status.exit_of(self._pidfd, self.pid, self.start_time)
        if exit_ is None and self._loop.time() < until:
            self._loop.call_later(ASK_AGAIN_S, self._ask_how, until)
            return
        if exit_ is None:  # whoever traces it, as gdb, has not let go of it; until then it is a zombie, even to us
            exit_ = process_status.exit_of_zombie(self.pid, self.start_time)
        self._finish(exit_ or Exit(None, None))

    def _stop_watching(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1

    def _finish(self, exit_: Exit) -> None:
        self._stop_watching()
        self.exit = exit_
        self._on_exit(exit_)
