"""The commands, in one fixed table: a name that comes from outside is looked up here and nowhere else."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor import __version__
from supervisor.config.section_relations import is_look_stuck
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.base.json_types import read_request
from supervisor.control.commands import (
    checkpoints,
    configuration,
    gpus,
    history,
    notices,
    processes,
    prove,
    series,
    start_stop,
    status,
    top,
)
from supervisor.control.commands.configuration import UnsavedJob
from supervisor.control.endpoints import why_not_open


@dataclass(frozen=True, slots=True)
class Command:
    """One entry of the table. `changes`: requires the right to change things, and is refused during a shutdown.

    The annotations of `act` say what a client sends and gets: its parameter `request`, if it has one, and its result
    are dataclasses (json_types.py).
    """

    act: Callable[..., Awaitable[object]]
    changes: bool

    @property
    def request_type(self) -> type | None:
        """The dataclass that arguments are read into; None: the command takes none."""
        return self.act.__annotations__.get("request")

    @property
    def answer_type(self) -> Any:
        """The dataclass of the result."""
        return self.act.__annotations__["return"]

    async def run(self, context: CommandContext, arguments: Mapping[str, Any]) -> object:
        """The command's result for a client's arguments. Raises CommandError."""
        if self.request_type is None:
            return await self.act(context)
        return await self.act(context, read_request(self.request_type, arguments))


@dataclass(frozen=True, slots=True)
class DaemonPid:
    """The daemon's process id."""

    pid: int


@dataclass(frozen=True, slots=True)
class DaemonVersion:
    """The daemon's version."""

    version: str


async def pid(context: CommandContext) -> DaemonPid:
    """Gives the daemon's process id."""
    return DaemonPid(os.getpid())


async def version(context: CommandContext) -> DaemonVersion:
    """Gives the daemon's version."""
    return DaemonVersion(__version__)


@dataclass(frozen=True, slots=True)
class ShutdownRequest:
    """`wait`: answer when all programs have stopped, with what is not saved; otherwise at once."""

    wait: bool = False


@dataclass(frozen=True, slots=True)
class DaemonLeaves:
    """The daemon ends, or is replaced. `unsaved`: the jobs that would lose steps, or have, as far as that is known."""

    unsaved: tuple[UnsavedJob, ...] = ()


async def reload(context: CommandContext) -> DaemonLeaves:
    """Replaces the daemon by a new one that reads the configuration; programs whose section did not change keep
    running. Names the jobs that can't be saved before the next daemon applies their changed sections. Refused while
    the ledger can't be written, and if the next daemon would not start.
    """
    changes = await configuration.reread_with(context, is_whole=True)  # with an unusable file the present daemon stays
    if is_look_stuck():
        text = "the file system of a checkpoint_dir does not answer, and until then the daemon can't be replaced"
        raise CommandError(Code.FAILED, f"cannot reload: {text}; try again once it answers, or use update")
    if (why := await context.ledger.wanted.until_recorded(with_decisions=True)) is not None:
        effect = "the next daemon would not know what runs, and end it"
        raise CommandError(Code.FAILED, f"cannot reload: {why}; {effect}")
    if (why := await asyncio.to_thread(_find_obstacle, context)) is not None:
        raise CommandError(Code.FAILED, f"cannot reload: the next daemon would not start: {why}; this one goes on")
    unsaved = await configuration.jobs_at_risk(context, (*changes.changed, *changes.removed))
    context.reload()
    return DaemonLeaves(unsaved)


def _find_obstacle(context: CommandContext) -> str | None:
    """Why the next daemon would not start. Blocks."""
    configuration = context.programs.configuration
    return context.next_daemon.find_obstacle() or why_not_open(configuration.last_read, configuration.started_with)


async def shutdown(context: CommandContext, request: ShutdownRequest) -> DaemonLeaves:
    """Flushes and stops all programs, then ends the daemon."""
    context.shut_down()
    return DaemonLeaves(await configuration.until_stopped(context) if request.wait else ())


COMMANDS: Mapping[str, Command] = {
    "add": Command(configuration.add, changes=True),
    "avail": Command(configuration.avail, changes=False),
    "checkpoint": Command(checkpoints.checkpoint, changes=True),
    "checkpoints": Command(checkpoints.checkpoints, changes=False),
    "clear": Command(processes.clear, changes=True),
    "rotate": Command(processes.rotate, changes=True),
    "drill": Command(notices.drill, changes=True),
    "export": Command(checkpoints.export, changes=True),
    "goodput": Command(history.goodput, changes=False),
    "gpu_return": Command(gpus.gpu_return, changes=True),
    "gpus": Command(gpus.gpus, changes=False),
    "history": Command(history.history, changes=False),
    "notices": Command(notices.notices, changes=False),
    "pid": Command(pid, changes=False),
    "proof": Command(prove.proof, changes=False),
    "prove": Command(prove.prove, changes=True),
    "prove_cancel": Command(prove.prove_cancel, changes=True),
    "reload": Command(reload, changes=True),
    "remove": Command(configuration.remove, changes=True),
    "reread": Command(configuration.reread, changes=True),
    "send_stdin": Command(processes.send_stdin, changes=True),
    "series": Command(series.series, changes=False),
    "shutdown": Command(shutdown, changes=True),
    "signal": Command(processes.send_signal, changes=True),
    "start": Command(start_stop.start, changes=True),
    "status": Command(status.status, changes=False),
    "stop": Command(start_stop.stop_one, changes=True),
    "timeline": Command(history.timeline, changes=False),
    "top": Command(top.top, changes=False),
    "update": Command(configuration.update, changes=True),
    "version": Command(version, changes=False),
}

ALIASES: Mapping[str, str] = {"story": "timeline"}
"""Earlier names of commands, which go on working."""


def find_command(name: str) -> Command | None:
    """The command of that name or alias."""
    return COMMANDS.get(ALIASES.get(name, name))
