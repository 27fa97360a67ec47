"""Starts a worker or adopts one, learns of its end through its pidfd, and kills it with everything it started.

A pidfd becomes readable when its process ends, so nothing polls. The exit status is then asked for through it:
from wait(2) if the process is our child, and otherwise from what the kernel still shows (`process_status`), for a short
while again and again, as its parent may not have reaped it yet.
"""

import asyncio
import contextlib
import os
import select
import signal as signals
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psutil

from supervisor.host.children import Configured, start_configured
from supervisor.host.processes import limits, priority, process_status, tree
from supervisor.host.processes.credentials import Credentials
from supervisor.host.processes.limits import Limits
from supervisor.host.processes.process_status import Exit, read_start_time
from supervisor.host.processes.spawning import explain, find_command, look_within_limit
from supervisor.host.resources.cgroup import Cgroup

REAPED_WITHIN_S = 2.0  # init reaps an adopted process at once; the first process of some containers never does
EXIT_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """Everything needed to start one process.

    `environment`: complete. `stdin`, `stdout`, `stderr`: descriptors that it gets; without `stdin` it reads /dev/null.
    `group_ends_with_it`: as soon as it ends, SIGKILL goes to the rest of its process group, so that no grandchild still
    holds devices and locks when the next attempt begins. `cgroup`: the control group that it starts in.
    `keeps_orphans`: descendants whose parent dies become its children, so that they stay known as its own for as long
    as it lives.
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
    keeps_orphans: bool = False


def spawn(request: SpawnRequest, on_exit: Callable[[Exit], None]) -> "Process":
    """Starts the process as the leader of its own session and process group; returns when exec(2) has succeeded.

    `on_exit` is called exactly once, from the running loop, after the process ended. Raises SpawnError; then nothing
    was started and `on_exit` is never called.
    """
    command = look_within_limit(
        None if request.credentials is None else request.credentials.uid,
        request.program,
        request.directory or request.argv[0],
        lambda: find_command(request.argv[0], request.environment, request.directory, request.program),
    )
    try:
        child = _popen(request, command)
        priority.set_oom_score(child.pid, request.oom_score_adjust)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _raise_spawn_error(request, command, error)
    try:
        start_time = read_start_time(child.pid) or 0  # a child that is not reaped always has one
        pidfd = os.pidfd_open(child.pid)
    except OSError as error:
        child.kill()
        child.wait()
        _raise_spawn_error(request, command, error)
    child.returncode = 0  # keeps Popen from reaping it; that is done through the pidfd
    return Process(child.pid, start_time, pidfd, request.group_ends_with_it, on_exit)


def adopt(pid: int, start_time: int, group_ends_with_it: bool, on_exit: Callable[[Exit], None]) -> "Process | None":
    """Adopts a process that an earlier daemon started; None if it is gone. `on_exit`: as for `spawn`.

    It may still be our child (if the daemon has executed itself anew) or not, and may already be a zombie. Its exit
    status is known where the kernel shows it.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        is_it = read_start_time(pid) == start_time
    except OSError:  # too many open files
        is_it = False
    if not is_it:
        os.close(pidfd)
        return None
    return Process(pid, start_time, pidfd, group_ends_with_it, on_exit)


def _popen(request: SpawnRequest, command: Path) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as until_exec:
        cgroup_procs = _open_cgroup(request, until_exec)
        if _is_fast(request) and limits.can_use_inherited_nofile():
            until_exec.enter_context(limits.inherited_nofile())
        return _popen_in_cgroup(request, command, cgroup_procs)


def _is_fast(request: SpawnRequest) -> bool:
    """Whether no other user decides how long the start takes, during which the daemon's own limits may be lower."""
    return request.credentials is None or os.geteuid() != 0


def _open_cgroup(request: SpawnRequest, until_exec: contextlib.ExitStack) -> int | None:
    """The file through which the child enters its control group; opened here, as the child may be another user."""
    if request.cgroup is None:
        return None
    try:
        cgroup_procs = request.cgroup.open_procs()
    except OSError:  # somebody removed it; its limits are then only watched by the daemon
        return None
    until_exec.callback(os.close, cgroup_procs)
    return cgroup_procs


def _preparation(request: SpawnRequest, cgroup_procs: int | None) -> Callable[[], None] | None:
    """What the child does before exec(2): only setrlimit(2), write(2), prctl(2). None if there is nothing to do."""
    is_needed = request.limits or not _is_fast(request) or not limits.can_use_inherited_nofile()
    set_limits = limits.limit_setter(request.program, request.limits) if is_needed else None
    if cgroup_procs is None and not request.keeps_orphans:
        return set_limits

    def prepare() -> None:
        if cgroup_procs is not None:
            with contextlib.suppress(OSError):
                os.write(cgroup_procs, b"0")
        if request.keeps_orphans:
            tree.become_subreaper()
        if set_limits is not None:
            set_limits()

    return prepare


def _popen_in_cgroup(request: SpawnRequest, command: Path, cgroup_procs: int | None) -> subprocess.Popen[bytes]:
    return start_configured(
        Configured(
            request.argv,
            request.environment,
            stdin=subprocess.DEVNULL if request.stdin is None else request.stdin,
            stdout=request.stdout,
            stderr=request.stderr,
            executable=command,
            directory=request.directory,
            user=request.credentials.identity if request.credentials else None,
            umask=request.umask,
            prepare=_preparation(request, cgroup_procs),
        )
    )


def _raise_spawn_error(request: SpawnRequest, command: Path, error: Exception) -> NoReturn:
    raise explain(request.program, command, request.directory, error) from error


class Process:
    """One process of a program, identified by `pid` and `start_time` together, as pids are used again.

    `start_time`: kernel ticks after boot. `exit`: how it ended, None while it runs.
    """

    __slots__ = (
        "_descendants",
        "_group_ends_with_it",
        "_killing",
        "_loop",
        "_on_exit",
        "_pidfd",
        "exit",
        "pid",
        "start_time",
    )

    def __init__(
        self, pid: int, start_time: int, pidfd: int, group_ends_with_it: bool, on_exit: Callable[[Exit], None]
    ) -> None:
        self.pid = pid
        self.start_time = start_time
        self.exit: Exit | None = None
        self._descendants: frozenset[psutil.Process] = frozenset()  # those that were seen and may still live
        self._killing: threading.Thread | None = None
        self._pidfd = pidfd
        self._group_ends_with_it = group_ends_with_it
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_pidfd_readable)

    def reassign(self, on_exit: Callable[[Exit], None], group_ends_with_it: bool) -> None:
        """Changes whom its end is reported to, as when a standby becomes an attempt."""
        self._on_exit, self._group_ends_with_it = on_exit, group_ends_with_it

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, even if `on_exit` was not called yet."""
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
            if group and self._has_its_number():
                os.killpg(self.pid, signal)  # safe: its number is not used again before the leader is reaped
            else:
                signals.pidfd_send_signal(self._pidfd, signal)
        except (ProcessLookupError, PermissionError):  # gone, or running as another user
            return False
        return True

    def _has_its_number(self) -> bool:
        """Whether its pid is still its own; False also if too many files are open to look."""
        try:
            return read_start_time(self.pid) == self.start_time
        except OSError:
            return False

    def kill_tree(self) -> None:
        """Sends SIGKILL to the process and all its descendants, also those that left its process group or session.

        Before any of them is killed, all are stopped (SIGSTOP) and listed until no new one appears: once a parent is
        dead, its children can't be told from other processes. Returns at once: this reads all of /proc, in a thread.
        """
        if self._killing is None or not self._killing.is_alive():
            killing = threading.Thread(target=self._kill_tree, name="kill-tree", daemon=True)
            try:
                killing.start()
            except RuntimeError:  # the host has no thread to spare, perhaps because of these very processes
                self._kill_tree()
            else:
                self._killing = killing

    def _kill_tree(self) -> None:
        if self.exit is not None:
            self._kill_session()
            return
        victims = tree.stop_tree(self.pid, self.start_time)
        self._kill_group()
        tree.kill_all(victims)

    def note_descendants(self) -> None:
        """Notes who descends from it, so that they can be ended with it: after its end nobody could tell.

        Never raises, as it is to be asked to save next: with too many open files, those noted before stay.
        """
        with contextlib.suppress(OSError, psutil.Error):
            if not self.has_ended:
                before = frozenset(descendant for descendant in self._descendants if descendant.is_running())
                self._descendants = before | tree.descendants(self.pid, self.start_time)

    def kill_session(self) -> int:
        """After its end, sends SIGKILL to the rest of its session and group and to the descendants that were noted.

        Returns how many processes that were. Reads all of /proc: call it from a thread. Descendants that left the
        session and were not noted are found only by `kill_tree`, which is waited for.
        """
        if self._killing is not None:
            self._killing.join()
        return self._kill_session()

    def _kill_session(self) -> int:
        left = [descendant for descendant in self._descendants if descendant.is_running()]
        return tree.kill_session(self.pid, self.start_time) + tree.kill_all(left)

    def detach(self) -> None:
        """Stops watching the process, which lives on; `on_exit` is not called any more."""
        if self._pidfd >= 0:
            self._stop_watching()

    def _on_pidfd_readable(self) -> None:
        self._loop.remove_reader(self._pidfd)  # it stays readable
        self._take_end(self._loop.time() + REAPED_WITHIN_S)

    def _take_end(self, until: float) -> None:
        """Ends the rest of its group, then asks how it ended; later, as long as this daemon has too many open files to
        look into /proc.
        """
        if self._pidfd < 0:
            return
        try:
            if self._group_ends_with_it:
                self._kill_group()
        except OSError:
            self._loop.call_later(EXIT_POLL_S, self._take_end, until)
        else:
            self._read_exit(until)

    def _kill_group(self) -> None:
        """Sends SIGKILL to its group, unless init has reaped it and its number is now used by another process."""
        if read_start_time(self.pid) in (None, self.start_time):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signals.SIGKILL)

    def _read_exit(self, until: float) -> None:
        """Asks how it ended, and again later until whoever has to reap it has done so."""
        if self._pidfd < 0:
            return
        try:
            exit_ = process_status.exit_of(self._pidfd, self.pid, self.start_time)
            is_over = exit_ is not None or self._loop.time() >= until
            if is_over and exit_ is None:  # a tracer such as gdb still holds it, a zombie even for its parent
                exit_ = process_status.exit_of_zombie(self.pid, self.start_time)
        except OSError:  # as in _take_end
            is_over = False
        if not is_over:
            self._loop.call_later(EXIT_POLL_S, self._read_exit, until)
            return
        self._stop_watching()
        self.exit = exit_ or Exit(None, None)
        self._on_exit(self.exit)

    def _stop_watching(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
