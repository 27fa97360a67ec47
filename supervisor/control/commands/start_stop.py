"""The commands `start` and `stop`."""

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import structlog

from supervisor.control.base.context import CommandContext, ProgramName, find_job, find_program, require_recorded
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands.start_outcome import describe_stop, standing_order, start_error, until_started
from supervisor.core.program import events
from supervisor.core.program.facts import ALIVE, State
from supervisor.protocol.numbers import MAX_WHOLE
from supervisor.runner.fleet.ordering import StartTurn, in_start_order
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.saving import save_and_train_on
from supervisor.runner.program.takeover_progress import TakeoverStage

CLIENT_TIMEOUT_S = 5.0  # from the end of a restart's stops to its start, which clients send at once

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StartRequest:
    """`wait`: answer when the program runs, also if its start is under way already; otherwise at once.
    `from_scratch`: a job gives up its checkpoints, which are set aside, and begins anew; `from_step`: it begins from
    the checkpoint of that step, and newer ones are set aside. Either holds until a start succeeds or a stop is
    requested."""

    name: str
    wait: bool = True
    from_scratch: bool = False
    from_step: Annotated[int | None, {"minimum": 1, "maximum": MAX_WHOLE}] = None


@dataclass(frozen=True, slots=True)
class StopRequest:
    """`wait`: answer when the process has exited; otherwise at once. `only_if_saved`: a job that trains saves first,
    and if that fails it is not stopped but trains on (NOT_SAVED), as for a restart that can wait. `restarts`: the
    client starts it again; if it is gone by then, or the daemon is, the program is started nevertheless. With both, a
    program that could not be started again is not stopped (CANT_RESTART).
    """

    name: str
    wait: bool = True
    only_if_saved: bool = False
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """A program that was stopped. These are of a job, else null: `text`: how far it came and what of that is saved;
    `step`: the last one that it did; `safe_step`: at which the next start begins; `checkpoint`: the newest, null also
    once newer ones were set aside for `--from-step`.

    `unsaved_steps`: will be trained again; `is_loss`: this stop ended training whose last steps are not saved.
    """

    name: str
    text: str | None = None
    step: int | None = None
    safe_step: int | None = None
    checkpoint: str | None = None
    unsaved_steps: int = 0
    is_loss: bool = False


async def start(context: CommandContext, request: StartRequest, turn: StartTurn | None = None) -> ProgramName:
    """Starts a program; with `wait` (the default) returns when it runs, or a job when it trains.

    `turn`: the place of the program among others that start in order.
    """
    try:
        runner = find_program(context, request.name)
        runner.requests.restarts = False
        _refuse_on_spare_node(
            runner, Code.WAITING, "it trains by itself once one of those that train is lost or leaves"
        )
        begins_at, stops = _begins_at(context, request), runner.requests.stops
        await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)
        if turn is not None and runner.takeover.has_leftovers and not runner.takeover.is_startable:
            turn.give_up()
        await runner.takeover.until(TakeoverStage.STARTABLE)
        if begins_at is not None:  # a worker that is being adopted says first whether it goes on
            await runner.wait_until(lambda: True if runner.state is not State.ADOPTING else None)
        if runner.state in ALIVE and not runner.is_stopping:
            if runner.state is not State.STARTING or begins_at is not None or not request.wait:
                raise _already_started(runner, is_order=begins_at is not None)
            if turn is not None:
                turn.give_up()
            await until_started(context, runner)
            return ProgramName(runner.name)
        await runner.restore_state(0)
        if turn is not None:
            await turn.wait_turn()
        await _start_dependencies(context, runner)
        _require_as_asked(context, runner, stops)
        if begins_at is not None:
            if runner.state in ALIVE and not runner.is_stopping:  # somebody else was faster: the order would be lost
                raise _already_started(runner, is_order=True)
            runner.post(events.BeginAtRequested(begins_at))
        context.programs.gates.start_when_ready(runner)
        is_order = begins_at is not None
        recorded = asyncio.create_task(context.ledger.wanted.until_recorded(with_decisions=is_order))
        if request.wait:
            await until_started(context, runner)
        elif runner.records.process.spawn_error is not None:
            raise start_error(context, runner)
        effect = "may begin from the newest checkpoint" if is_order else "would not start it"
        await require_recorded(context, recorded, f"{runner.name} was started", effect)
        return ProgramName(runner.name)
    finally:
        if turn is not None:
            turn.give_up()


def _require_as_asked(context: CommandContext, runner: Runner, stops: int) -> None:
    """Raises CommandError if, while the start waited, an update, a shutdown or a stop came. `stops`: as many there were
    when it was asked for."""
    if context.programs.runners.get(runner.name) is not runner:
        text = f"an update changed {runner.name} before it could start; try again"
        raise CommandError(Code.ABNORMAL_TERMINATION, text)
    _require_not_closing(context)
    if runner.requests.stops != stops:
        raise CommandError(Code.ABNORMAL_TERMINATION, describe_stop(runner))


def _begins_at(context: CommandContext, request: StartRequest) -> int | None:
    """The step that the request names, 0: anew; None if it names none. Raises CommandError."""
    if not request.from_scratch and request.from_step is None:
        return None
    find_job(context, request.name)
    if request.from_scratch and request.from_step is not None:
        raise CommandError(Code.BAD_ARGUMENTS, "from_scratch and from_step exclude each other")
    return request.from_step or 0


def _already_started(runner: Runner, is_order: bool) -> CommandError:
    """`is_order`: the request says where to begin, which is not carried out."""
    text = f"{runner.name} runs, so its checkpoints are left as they are; stop it, then start it so"
    return CommandError(Code.ALREADY_STARTED, text if is_order else runner.name)


async def _start_dependencies(context: CommandContext, runner: Runner) -> None:
    """Starts the programs that it depends on and that nothing else would start."""
    for needed in context.programs.gates.needed_and_down(runner):
        await needed.takeover.until(TakeoverStage.STARTABLE)
        await needed.restore_state(0)
        _require_not_closing(context)
        if context.programs.runners.get(needed.name) is needed and needed.state not in ALIVE:
            context.programs.gates.start_when_ready(needed)


def _refuse_on_spare_node(runner: Runner, code: Code, remedy: str) -> None:
    """The gang alone starts a worker there, and an answer would have to wait for it."""
    if runner.spare_of is not None and runner.pid is None:
        raise CommandError(code, f"this is a spare node of the gang: {remedy}")


def _require_not_closing(context: CommandContext) -> None:
    """Refuses a start that waited for its turn or its disk until the daemon began to shut down: the next daemon would
    carry it out."""
    if context.programs.closing:
        raise CommandError(Code.SHUTDOWN_STATE, "supervisord is shutting down")


async def stop(context: CommandContext, request: StopRequest) -> Stopped:
    """Flushes and stops a program; with `wait` (the default) returns when its process has exited, and says what of a
    job's training is saved.
    """
    runner = find_program(context, request.name)
    _refuse_on_spare_node(runner, Code.NOT_RUNNING, "nothing runs here; to end the job, use scancel")
    runner.requests.stops += 1  # at once: only starts that came before are not carried out
    await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)
    if request.only_if_saved and request.restarts and (why := await runner.find_restart_obstacle()) is not None:
        goes_on = "runs" if runner.config.job is None else "trains"
        text = f"{why}; {runner.name} {goes_on} on; restart --discard stops it nevertheless"
        raise CommandError(Code.CANT_RESTART, text)
    if request.only_if_saved and (why := await save_and_train_on(runner, "restart")) is not None:
        raise CommandError(Code.NOT_SAVED, f"{why}; {_trains_on(runner)}")
    attempt, is_alive = runner.attempt, runner.state in ALIVE
    runs = not runner.is_down or runner.waits_for is not None or runner.is_due
    withdraws = runner.facts.begin_at is not None
    runner.post(events.StopRequested())  # also where nothing runs: after a reboot it is not to start either
    if (restarts := request.restarts and runs) or context.ledger.wanted.is_wanted(runner.name):  # by a restart's stop
        context.ledger.wanted.record_wanted(runner.name, restarts)
    runner.requests.restarts = restarts
    if request.wait or not runs:
        await runner.takeover.until(TakeoverStage.STARTABLE)
    if request.wait and runs:
        await runner.wait_until(lambda: True if runner.state not in ALIVE or runner.attempt != attempt else None)
    ends = not request.wait and runner.state in ALIVE
    progress = runner.progress if ends else runner.progress_of(attempt)
    done = "told to stop" if ends else "stopped"
    if progress is not None:
        done = f"{done}; {progress.describe_present()}" if ends else progress.describe_end()
    done += standing_order(runner)
    said = f"{runner.name} was {done}" if runs else f"{runner.name} does not run"
    if not restarts or withdraws:
        recorded = context.ledger.wanted.until_recorded(with_decisions=withdraws)
        effect = "may yet carry out the order that this withdraws" if withdraws else "would start it again"
        await require_recorded(context, recorded, said, effect)
    if not runs:
        raise CommandError(Code.NOT_RUNNING, runner.name)
    if progress is None:
        return Stopped(runner.name)
    return Stopped(
        runner.name,
        done,
        progress.step,
        progress.safe_step,
        progress.checkpoint,
        progress.unsaved,
        is_loss=is_alive and not ends and not progress.is_safe,
    )


async def stop_one(context: CommandContext, request: StopRequest) -> Stopped:
    """Flushes and stops a program; with `wait` (the default) returns when its process has exited, and says what of a
    job's training is saved.
    """
    try:
        return await stop(context, request)
    finally:
        start_if_client_gone(context, [request.name])


def start_if_client_gone(context: CommandContext, names: Iterable[str], patience_s: float = CLIENT_TIMEOUT_S) -> None:
    """Starts, after `patience_s`, those of the stopped programs that a client wanted to start again and did not.

    A restart is a stop and a start. Between them whoever asked for it may have pressed Ctrl-C, lost the connection or
    closed the page, which must not leave a job stopped for good.
    """
    stopped = filter(None, map(context.programs.runners.get, names))
    if left := in_start_order(runner for runner in stopped if runner.requests.restarts):
        context.background.start(_start_stopped(context, [runner.name for runner in left], patience_s))


async def _start_stopped(context: CommandContext, names: Iterable[str], patience_s: float) -> None:
    await asyncio.sleep(patience_s)
    for name in names:
        runner = context.programs.runners.get(name)
        if runner is None or not runner.requests.restarts:
            continue
        log.warning("restart.client_gone", program=name, next="start")
        with contextlib.suppress(CommandError):  # status and history say why, as of any start
            await start(context, StartRequest(name, wait=False))


def _trains_on(runner: Runner) -> str:
    """What follows from a stop that was refused."""
    begins = f"from step {runner.progress.safe_step}" if runner.progress is not None else ""
    return f"{runner.name} trains on; restart --discard restarts it {begins}"
