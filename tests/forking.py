"""Lets a daemon, or the chief of several workers, start Python scripts as forks of a process that is ready for them.

For tests whose claim is not about the start of an interpreter (`tests.forked`). Where a process is to start with more
than a fork can have, such as another user or limits, it is started as ever; a standby too.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.host.processes import process_start
from supervisor.host.processes.process_start import SpawnRequest
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.launch import HASH_SEED
from tests import forked
from tests.forked import ForkedProcess, ForkServer

DAEMON = (*forked.DAEMON, __name__)
MODULES = (*forked.TENSORFLOW, *DAEMON)
_OF_PROOFS = ("supervisor.prove.command",)
_DAEMON = ("-m", "supervisor.daemon")
_UNIMPORTANT = frozenset({"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"})
"""Variables that a fork heeds, or may ignore; others that Python reads take a new interpreter."""


def start_daemon(
    command: Sequence[str], scripts_have: tuple[str, ...] = forked.TENSORFLOW, **options: Any
) -> ForkedProcess:
    """Starts `PYTHON -m supervisor.daemon ARGUMENT...`, whose workers are forks. `scripts_have`: the modules that these
    have from the start, besides what the daemon has."""
    return ForkedProcess(command, (*scripts_have, *DAEMON), order={"forks": workers.__name__}, **options)


def run_chief(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a script without a daemon, the first of several workers, all of which are forks (`forked.run`)."""
    return forked.run(command, MODULES, order={"forks": members.__name__}, **options)


def run_proof(
    command: Sequence[str], scripts_have: tuple[str, ...], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a command that proves a job (`forked.run`). Its daemons are forks, and so are the scripts that these start,
    which have those modules. They don't end with it if it is killed."""
    return forked.run(
        command, (*scripts_have, *DAEMON, *_OF_PROOFS), order={"forks": proof_daemons.__name__}, **options
    )


def proof_daemons(server: ForkServer) -> None:
    """From now on this process starts daemons as forks of the server."""

    class Forking(subprocess.Popen[Any]):
        def __new__(cls, command: Sequence[str], **options: Any) -> Any:
            if list(command[:4]) != [sys.executable, "-P", *_DAEMON]:
                return super().__new__(cls)
            options = {"text": False, **options, "preexec_fn": None}
            return ForkedProcess(
                [command[0], *command[2:]], order={"forks": workers.__name__}, server=server, **options
            )

    subprocess.Popen = Forking  # type: ignore[misc]


def workers(server: ForkServer) -> None:
    """From now on this daemon starts scripts as forks of the server."""
    popen = process_start._popen

    def popen_or_fork(request: SpawnRequest, command: Path) -> subprocess.Popen[bytes]:
        is_plain = request.credentials is None and not request.limits and request.cgroup is None
        argv = (str(command), *request.argv[1:])
        if not is_plain or not _is_script(argv, request.environment):
            return popen(request, command)
        order: dict[str, object] = {"keeps_orphans": request.keeps_orphans}
        if (launch.from_environment(request.environment).workers or 1) > 1:
            order["forks"] = members.__name__
        return ForkedProcess(
            argv, order=order, server=server, env=request.environment, cwd=request.directory,
            stdin=subprocess.DEVNULL if request.stdin is None else request.stdin, stdout=request.stdout,
            stderr=request.stderr, umask=-1 if request.umask is None else request.umask, start_new_session=True,
        )  # type: ignore[return-value]  # fmt: skip

    process_start._popen = popen_or_fork


def members(server: ForkServer) -> None:
    """From now on this process starts scripts as forks of the server."""

    class Forking(subprocess.Popen[Any]):
        def __new__(cls, command: Sequence[str], **options: Any) -> Any:
            if _is_script(command, options.get("env", {})):
                return ForkedProcess(command, server=server, **{"text": False, **options})
            return super().__new__(cls)

    subprocess.Popen = Forking  # type: ignore[misc]


def _is_script(command: Sequence[str], environment: Any) -> bool:
    if command[0] != sys.executable or not command[1:] or command[1].startswith("-"):
        return False
    read_by_python = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
    return all(
        name in _UNIMPORTANT or (name == "PYTHONHASHSEED" and value == HASH_SEED)
        for name, value in read_by_python.items()
    )
