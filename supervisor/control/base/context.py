"""What commands act on, and the arguments they are asked with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.config import SupervisordConfig
from supervisor.control.base.errors import Code, CommandError
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.hooks import HookRunner
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.host.notices.drills import Drills
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.program.runner import Runner

Arguments = Mapping[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What commands act on. `shut_down` and `reload` return at once; the work follows."""

    programs: Programs
    ledger: Ledger
    logs: LogCapture
    checkpoints: CheckpointStore
    shut_down: Callable[[], None]
    reload: Callable[[], None]
    settings: SupervisordConfig
    is_reloading: Callable[[], bool]
    notices: NoticeDispatcher
    hooks: HookRunner
    drills: Drills
    listening: ListenerHub
    disks: BlockingCalls = field(default_factory=BlockingCalls)


def program_in(context: CommandContext, arguments: Arguments) -> Runner:
    """The program that `name` means. Raises CommandError."""
    name = text_in(arguments, "name")
    runner = context.programs.runners.get(name)
    if runner is None:
        raise CommandError(Code.BAD_NAME, name)
    return runner


def text_in(arguments: Arguments, key: str) -> str:
    """An argument that has to be there. Raises CommandError."""
    value = arguments.get(key)
    if not isinstance(value, str):
        raise CommandError(Code.BAD_ARGUMENTS, f"{key} is {value!r:.80}, not a text")
    return value


def flag_in(arguments: Arguments, key: str, default: bool) -> bool:
    """An argument that may be left out. Raises CommandError."""
    value = arguments.get(key, default)
    if not isinstance(value, bool):
        raise CommandError(Code.BAD_ARGUMENTS, f"{key} is {value!r:.80}, not true or false")
    return value
