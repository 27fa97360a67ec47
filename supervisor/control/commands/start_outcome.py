"""What a start has led to, and what is said of one that has led to nothing."""

import asyncio

from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands.descriptions import advice, mirror_activity
from supervisor.core.program.facts import UP, State
from supervisor.runner.program.runner import Runner

LOOK_S = 2.0  # between two looks at what tells of no change: a store that does not answer


async def until_started(context: CommandContext, runner: Runner) -> None:
    """Returns when the program runs. Raises CommandError with the end of its standard error if it does not come up.

    Of one that waits for something that may take for ever, and goes on by itself, the error says so (WAITING).
    """
    state: State | None = None
    while state is None:
        try:
            async with asyncio.timeout(LOOK_S):
                state = await runner.wait_until(lambda: _settled_state(context, runner))
        except TimeoutError:
            if (silence := _mirror_silence(runner)) is not None:
                raise CommandError(Code.WAITING, silence) from None
    if state in UP | {State.SUCCEEDED}:
        return
    error = start_error(context, runner)
    if runner.records.process.spawn_error is not None or runner.waits_for is not None or error.code is Code.WAITING:
        raise error
    lines = await runner.current.last_error_lines()
    if not lines or (len(lines) == 1 and lines[0] in str(error)):
        raise error
    raise CommandError(error.code, "\n".join([str(error), "the end of its standard error:", *lines]))


def _settled_state(context: CommandContext, runner: Runner) -> State | None:
    """The state that a start has led to; None while it is still under way."""
    if runner.waits_for is not None:
        return runner.state if context.programs.gates.is_hopeless(runner) else None
    return None if runner.state in (State.STARTING, State.ADOPTING) or runner.is_stopping else runner.state


def start_error(context: CommandContext, runner: Runner) -> CommandError:
    """Why it does not run, in the words that Supervisor has for that."""
    waits_for = context.programs.gates.describe_wait(runner) if runner.waits_for is not None else None  # as it is now
    state = describe_stop(runner) if runner.state is State.STOPPED else f"its state is {runner.state}"
    reason = waits_for or runner.reason or state
    if (spawn_error := runner.records.process.spawn_error) is not None:
        code = {"no-file": Code.NO_FILE, "not-executable": Code.NOT_EXECUTABLE}.get(spawn_error.kind)
        return CommandError(code or Code.SPAWN_ERROR, reason)
    if runner.state is State.BACKOFF and (runner.facts.waits_for_storage or runner.facts.waits_for_host):
        return CommandError(Code.WAITING, reason)
    is_failed = waits_for is None and runner.state in (State.BACKOFF, State.FAILED)
    code = Code.SPAWN_ERROR if is_failed else Code.ABNORMAL_TERMINATION
    return CommandError(code, "; ".join([reason, *advice(runner)]))


def describe_stop(runner: Runner) -> str:
    """Of a start that came to nothing as somebody stopped the program: another client, or an update."""
    trains = "ran" if runner.config.job is None else "trained"
    return f"it was told to stop before it {trains}{standing_order(runner)}"


def standing_order(runner: Runner) -> str:
    """What an operator's choice of where to begin means for the next start; empty if there is none."""
    begin_at = runner.facts.begin_at
    if begin_at is None:
        return ""
    begins = f"its next start begins at step {begin_at}" if begin_at else "its next start begins anew"
    if begin_at == runner.facts.set_aside:
        return f"; {begins}, as what it has beyond that is in abandoned/ already"
    return f"; {begins}, unless a stop withdraws that"


def _mirror_silence(runner: Runner) -> str | None:
    """What to say of a start that waits for a store that does not answer; None if it waits for nothing of that kind."""
    mirror = runner.mirror
    if runner.state is not State.STARTING or mirror is None or mirror.status.silent_s <= 0:
        return None
    return f"{', '.join(mirror_activity(mirror.status))}; it starts by itself once the store answers"
