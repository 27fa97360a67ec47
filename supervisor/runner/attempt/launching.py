"""From a program's configuration to what the core and the process need of it."""

import contextlib
import hashlib
import itertools
import json
import os
import re
from dataclasses import fields, replace
from pathlib import Path

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.program.facts import Policy
from supervisor.core.standby.facts import StandbyKind
from supervisor.host.health_checks import HealthCheck
from supervisor.host.processes import marks
from supervisor.host.processes.credentials import Credentials, cached_credentials, user_environment
from supervisor.host.processes.reach import explain_closed_folder
from supervisor.host.processes.spawning import SpawnError
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.attempt.services import Services


def policy_of(config: ProgramConfig, notice_grace: float, is_gang: bool = False) -> Policy:
    """What the core has to know of a program. `notice_grace`: s; `is_gang`: several nodes train it together."""
    job = config.job
    policy = Policy(
        **{name: getattr(config, name) for name in _POLICY_OF_PROGRAM},
        is_job=job is not None,
        exitcodes=frozenset(config.exitcodes),
        notify_timeout=config.notify_timeout if config.notify else None,
        is_gang=is_gang,
        start_paths=tuple(map(str, (config.directory or "", config.command[0], script_path(config) or ""))),
    )
    if job is None:
        return policy
    return replace(
        policy,
        **{name: getattr(job, name) for name in _POLICY_OF_JOB},
        hang_timeout=None if job.hang_timeout == "auto" else job.hang_timeout,
        hang_timeout_min=job.hang_timeout_min if job.hang_timeout == "auto" else None,
        has_ranks_elsewhere=is_gang or _has_ranks_elsewhere(config, job),
        notice_grace=notice_grace,
        checkpoint_dir=str(job.checkpoint_dir),
        script=script_name(config),
    )


_IN_POLICY = {field.name for field in fields(Policy)}
_POLICY_OF_PROGRAM = {field.name for field in fields(ProgramConfig)} & _IN_POLICY
_POLICY_OF_PROGRAM -= {"exitcodes", "notify_timeout"}  # in another form
_POLICY_OF_JOB = {field.name for field in fields(JobConfig)} & _IN_POLICY
_POLICY_OF_JOB -= {"hang_timeout", "hang_timeout_min", "checkpoint_dir"}  # in another form
"""The keys that the core gets as they are."""

_COORDINATORS = ("TF_CONFIG", "MASTER_ADDR", "JAX_COORDINATOR_ADDRESS")
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


def _has_ranks_elsewhere(config: ProgramConfig, job: JobConfig) -> bool:
    """Whether other hosts may train the same job, as far as its section and its environment say."""
    environment = {**os.environ, **config.environment}
    coordinators = [environment[name] for name in _COORDINATORS if name in environment]
    is_told_of_others = any(not address.startswith(_THIS_HOST) for address in coordinators)
    return is_told_of_others or (job.strategy in ("multiworker", "tpu") and job.workers is None)


def script_path(config: ProgramConfig) -> Path | None:
    """The script that a job's interpreter reads; None if its command is not of the form python SCRIPT.py."""
    python, *rest = config.command
    words = list(itertools.dropwhile(_FLAGS.fullmatch, rest))
    if config.job is None or not _INTERPRETER.fullmatch(Path(python).name) or not words or not words[0].endswith(".py"):
        return None
    return (config.directory or Path.cwd()) / words[0]


def script_name(config: ProgramConfig) -> str:
    """What a job runs, in a word: its entry point, script or module, otherwise its command."""
    if config.job is not None and config.job.entrypoint is not None:
        return config.job.entrypoint
    first, *words = config.command
    module = words[words.index("-m") + 1 : words.index("-m") + 2] if "-m" in words else []
    scripts = [Path(word).name for word in words if word.endswith(".py")]
    return next(iter([*scripts, *module]), Path(first).name)


def standby_kind_of(config: ProgramConfig) -> StandbyKind:
    """The kind of standby that a program's section asks for; off for a program that is no job."""
    return StandbyKind.OFF if config.job is None else config.job.standby


PRELOAD = """\
import sys
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
try:
    from worker.process import preload
except ImportError as error:
    sys.exit(%d)
preload.main()
"""
"""What the interpreter of a script runs in an automatic standby. The folder that `-c` searches first is the working
directory, which is the user's; the script's own takes its place once the standby is promoted."""

_INTERPRETER = re.compile(r"python(\d(\.\d+)?)?")
_FLAGS = re.compile(r"-[bBdEOsuv]+")


def preload_command(config: ProgramConfig, is_gang: bool = False) -> tuple[str, ...] | str:
    """What starts an automatic standby of a job; as text: why it can't have one.

    An entry point's command can be a standby as it is. A script is not run: its interpreter imports packages for it.
    """
    job = config.job
    is_rank = is_gang and job is not None and job.strategy == "multiworker"  # who it trains with, it learns later
    if job is None or (job.strategy in ("multiworker", "tpu") and not is_rank):
        return f"strategy = {job.strategy if job else None} starts other processes, or opens a device, as it loads"
    if job.entrypoint is not None:
        return config.command
    python, *rest = config.command
    flags = list(itertools.takewhile(_FLAGS.fullmatch, rest))
    script = rest[len(flags) :]
    if not _INTERPRETER.fullmatch(Path(python).name) or not script or not script[0].endswith(".py"):
        return "its command is not of the form python SCRIPT.py"
    return python, *flags, "-c", PRELOAD % WorkerExit.BAD_LAUNCH, *script


def check_reach(config: ProgramConfig, folder: Path) -> None:
    """Raises SpawnError if the program's user can't get to what the daemon makes for it in `folder`."""
    if config.user is None or os.geteuid() != 0:
        return
    why = explain_closed_folder(folder.parent, config.user, cached_credentials(config.user).identity)
    if why is not None:
        raise SpawnError(f"cannot start {config.name}: it could not open what lies in {folder}: {why}", permanent=True)


_OF_OUTER_DAEMON = frozenset({
    "SUPERVISOR_ENABLED", "SUPERVISOR_PROCESS_NAME", "SUPERVISOR_GROUP_NAME", "SUPERVISOR_SERVER_URL",
    marks.VARIABLE, marks.CONFIGURATION, launch.PROOF,
})  # fmt: skip
"""What a daemon has that is itself a program of another one, or was started from a shell of a program."""


def environment_of_program(config: ProgramConfig, services: Services, who: Credentials | None) -> dict[str, str]:
    """What its process and the commands beside it have: the daemon's environment, or its user's, and the program's."""
    inherited = launch.without_launch_variables(services.environment)
    return {
        **user_environment(who, {name: text for name, text in inherited.items() if name not in _OF_OUTER_DAEMON}),
        "SUPERVISOR_ENABLED": "1",
        "SUPERVISOR_PROCESS_NAME": config.process,
        "SUPERVISOR_GROUP_NAME": config.group,
        **({"SUPERVISOR_SERVER_URL": services.server_url} if services.server_url else {}),
        **config.environment,
    }


def command_beside(
    config: ProgramConfig, key: str, command: tuple[str, ...], pid: int | None, services: Services
) -> HealthCheck:
    """A command of the program's that is run beside it, as `key` of its section says."""
    who = None
    with contextlib.suppress(SpawnError):  # starting the command raises it again
        who = cached_credentials(config.user) if config.user else None
    return HealthCheck(
        argv=command,
        environment=environment_of_program(config, services, who) | {"SUPERVISOR_PROGRAM_PID": str(pid or "")},
        directory=config.directory,
        user=config.user,
        timeout_s=config.healthcheck_timeout if key == "healthcheck_command" else config.stopwaitsecs,
        key=key,
    )


def config_digest(config: ProgramConfig) -> str:
    """Tells whether a process was started from this configuration; stays the same over versions with more keys."""
    return hashlib.sha256(
        json.dumps(config.non_defaults(), sort_keys=True, default=_plain, allow_nan=False).encode()
    ).hexdigest()[:16]


def _plain(value: object) -> object:
    return sorted(map(str, value)) if isinstance(value, frozenset) else str(value)


def owner_ids(config: ProgramConfig) -> tuple[int, int] | None:
    """Uid and gid of the user the program runs as; None: the daemon's own. Raises SpawnError."""
    if config.user is None:
        return None
    user = cached_credentials(config.user)
    return user.uid, user.gid


def launch_of(
    config: ProgramConfig,
    control: launch.Control,
    between_failures_s: float,
    microbatches: int,
    waits_for: launch.DaemonIdentity | None = None,
    generation: int | None = None,
    leaves_with: launch.DaemonIdentity | None = None,
) -> launch.Launch | None:
    """All that the worker of a job is told, or its standby (`waits_for`); None for a program that is no job.

    `generation`: of the gang that it belongs to. `leaves_with`: the daemon that it must not outlive for long.
    """
    job = config.job
    if job is None:
        return None
    standby = standby_kind_of(config)
    return launch.Launch(
        **{name: getattr(job, name) for name in _SETTINGS_OF_JOB},
        job=config.name,
        memory_limit=config.memory_limit,
        control=control,
        between_failures_s=between_failures_s,
        microbatches=microbatches,
        generation=generation,
        leaves_with=leaves_with,
        standby="hot" if standby is StandbyKind.HOT else "warm" if waits_for is not None else None,
        waits_for=waits_for,
    )


_SETTINGS_OF_JOB = ({field.name for field in fields(JobConfig)} & {field.name for field in fields(launch.Launch)}) - {
    "standby"  # decided above
}
"""The keys of a job that its worker gets as they are: a setting has one name from the file to its use."""
