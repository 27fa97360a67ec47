"""What the commands work on, and how they find the program that a client names."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from supervisor.config import SupervisordConfig
from supervisor.config.keys.job import JobConfig
from supervisor.control.base.errors import Code, CommandError
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.hooks import HookRunner
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.host.notices.drills import Drills
from supervisor.host.service.next_daemon import NextDaemon
from supervisor.runner.fleet.expected_times import ExpectedTimes
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.gpus.guard import GpuGuard
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The parts of the running daemon that commands work on. `shut_down` and `reload` return at once, before the work
    is done."""

    programs: Programs
    ledger: Ledger
    logs: LogCapture
    checkpoints: CheckpointStore
    shut_down: Callable[[], None]
    reload: Callable[[], None]
    settings: SupervisordConfig
    is_reloading: Callable[[], bool]
    next_daemon: NextDaemon
    notices: NoticeDispatcher
    expected_times: ExpectedTimes
    hooks: HookRunner
    drills: Drills
    listening: ListenerHub
    proofs: Proofs
    gpus: GpuGuard
    disks: BlockingCalls = field(default_factory=BlockingCalls)
    background: BackgroundTasks = field(default_factory=lambda: BackgroundTasks(log))


@dataclass(frozen=True, slots=True)
class ProgramName:
    """A request about one program that says nothing else, or an answer that only repeats which one it was about."""

    name: str


def find_program(context: CommandContext, name: str) -> Runner:
    """The program of that name. Raises CommandError."""
    runner = context.programs.runners.get(name)
    if runner is None:
        raise CommandError(Code.BAD_NAME, name)
    return runner


def find_job(context: CommandContext, name: str) -> tuple[Runner, JobConfig]:
    """The training job of that name. Raises CommandError."""
    runner = find_program(context, name)
    if runner.config.job is None:
        raise CommandError(Code.NOT_A_JOB, f"{name} is not a training job: its section sets no checkpoint_dir")
    return runner, runner.config.job


async def require_recorded(context: CommandContext, recorded: Awaitable[str | None], done: str, effect: str) -> None:
    """Refuses to call a request carried out that the next daemon would not know of."""
    if (why := await recorded) is not None:
        text = f"{done}, but that cannot be recorded in {context.settings.state_dir}: {why}"
        raise CommandError(Code.FAILED, f"{text}; until it is, the next daemon {effect}")
