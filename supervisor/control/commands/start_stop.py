"""The commands `start` and `stop`."""

from supervisor.control.base.context import (
    Arguments,
    CommandContext,
    Result,
    flag_in,
    program_in,
)
from supervisor.control.base.errors import Code, CommandError
from supervisor.core.program import events as fact
from supervisor.core.program.facts import ALIVE, State
from supervisor.runner.fleet.ordering import StartTurn
from supervisor.runner.program.runner import Runner


async def start(context: CommandContext, arguments: Arguments) -> Result:
    """Starts a program; with `wait` (the default) returns when it runs, a job: when it trains."""
    return await start_in_turn(context, arguments, None)


async def start_in_turn(context: CommandContext, arguments: Arguments, turn: StartTurn | None) -> Result:
    """The same for one of many that start in an order: it starts when its turn comes."""
    try:
        return await _start(context, arguments, turn)
    finally:
        if turn is not None:
            turn.give_up()


async def _start(context: CommandContext, arguments: Arguments, turn: StartTurn | None) -> Result:
    runner = program_in(context, arguments)
    wait = flag_in(arguments, "wait", True)
    if turn is not None and not runner.startable.is_set():
        turn.give_up()  # what an earlier daemon left has to end first
    await runner.startable.wait()
    if runner.state in ALIVE and not runner.is_stopping:
        raise CommandError(Code.ALREADY_STARTED, runner.name)
    await runner.restore_state(0)
    if turn is not None:
        await turn.wait_turn()
    await _start_needed(context, runner)
    if context.programs.runners.get(runner.name) is not runner:
        raise CommandError(Code.ABNORMAL_TERMINATION, f"{runner.name} was changed by an update meanwhile; try again")
    _may_start(context)
    context.programs.gates.start_when_ready(runner)
    if wait:
        state = await runner.wait_until(lambda: _settled(context, runner))
        if state not in (State.RUNNING, State.FLUSHING, State.SUCCEEDED):
            raise _start_error(context, runner)
    elif runner.executor.spawn_error is not None:
        raise _start_error(context, runner)
    return {"name": runner.name}


async def _start_needed(context: CommandContext, runner: Runner) -> None:
    """Starts what it depends on and nothing else would start."""
    for needed in context.programs.gates.needed_and_down(runner):
        await needed.startable.wait()
        await needed.restore_state(0)
        _may_start(context)
        if context.programs.runners.get(needed.name) is needed and needed.state not in ALIVE:
            context.programs.gates.start_when_ready(needed)


def _may_start(context: CommandContext) -> None:
    """A start that waited for its turn or its disk while the daemon began to leave is none: it would be remembered."""
    if context.programs.closing:
        raise CommandError(Code.SHUTDOWN_STATE, "supervisord is shutting down")


def _settled(context: CommandContext, runner: Runner) -> State | None:
    if runner.waits_for is not None:
        return runner.state if context.programs.gates.is_hopeless(runner) else None
    return None if runner.state in (State.STARTING, State.ADOPTING) or runner.is_stopping else runner.state


def _start_error(context: CommandContext, runner: Runner) -> CommandError:
    waits_for = context.programs.gates.describe_wait(runner) if runner.waits_for is not None else None  # as it is now
    reason = waits_for or runner.reason or f"ended as {runner.state}"
    if runner.executor.spawn_error is not None:
        code = {"no-file": Code.NO_FILE, "not-executable": Code.NOT_EXECUTABLE}.get(runner.executor.spawn_error.kind)
        return CommandError(code or Code.SPAWN_ERROR, reason)
    return CommandError(Code.ABNORMAL_TERMINATION, reason)


async def stop(context: CommandContext, arguments: Arguments) -> Result:
    """Flushes and stops a program; with `wait` (the default) returns when its process is gone."""
    runner = program_in(context, arguments)
    wait = flag_in(arguments, "wait", True)
    await runner.adoption_settled.wait()
    attempt = runner.attempt
    runs = runner.state in ALIVE or runner.state is State.BACKOFF or runner.waits_for is not None or runner.is_due
    runner.post(fact.StopRequested())  # also where nothing runs: it is not wanted after a reboot either
    if wait or not runs:
        await runner.startable.wait()
    if not runs:
        raise CommandError(Code.NOT_RUNNING, runner.name)
    if wait:
        await runner.wait_until(lambda: True if runner.state not in ALIVE or runner.attempt != attempt else None)
    return {"name": runner.name}
