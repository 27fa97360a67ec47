"""Starts the process of an attempt or a standby: with its environment, descriptors, user, limits and control group."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.host.children import Configured, start_configured
from supervisor.host.processes import limits, priority, tree
from supervisor.host.processes.credentials import Credentials
from supervisor.host.processes.limits import Limits
from supervisor.host.processes.process import Process
from supervisor.host.processes.process_status import Exit, read_start_time
from supervisor.host.processes.spawning import explain, find_command, look_within_limit
from supervisor.host.resources.cgroup import Cgroup


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


def spawn(request: SpawnRequest, on_exit: Callable[[Exit], None]) -> Process:
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
        raise explain(request.program, command, request.directory, error) from error
    try:
        start_time = read_start_time(child.pid) or 0  # a child that is not reaped always has one
        pidfd = os.pidfd_open(child.pid)
    except OSError as error:
        child.kill()
        child.wait()
        raise explain(request.program, command, request.directory, error) from error
    child.returncode = 0  # keeps Popen from reaping it; that is done through the pidfd
    return Process(child.pid, start_time, pidfd, request.group_ends_with_it, on_exit)


def _popen(request: SpawnRequest, command: Path) -> subprocess.Popen[bytes]:
    with contextlib.ExitStack() as until_exec:
        cgroup_procs = _open_cgroup(request, until_exec)
        if _is_fast(request) and limits.can_use_inherited_nofile():
            until_exec.enter_context(limits.inherited_nofile())
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
