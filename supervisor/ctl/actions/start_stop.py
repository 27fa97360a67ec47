"""Actions on running programs: start, stop, restart, signal, clear."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.actions.bulk import BulkCommand, Outcome, collect_outcomes, run_bulk
from supervisor.ctl.naming import ALL, Program, by_priority, is_many, program_of, select_programs
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.numbers import whole_number

DOWN_CODES = (0, 40, 100, 200, 1000)  # all but STARTING, RUNNING, BACKOFF, which are Supervisor's "running" states
UP_CODES = (10, 20, 30, 40)  # those and STOPPING: `stop` waits until the process has exited
ALIVE_CODES = (10, 20, 40)  # STARTING, RUNNING, STOPPING: there is a process to signal

ROLLING = "--rolling"
DISCARD = "--discard"
FROM_SCRATCH = "--from-scratch"
FROM_STEP = "--from-step"

_RACE = frozenset({"ALREADY_STARTED", "NOT_RUNNING"})
"""These are not failures: a program to stop was down already, or one to start was up."""

_NOT_STOPPED = frozenset({"NOT_SAVED", "CANT_RESTART"})
"""Why the daemon stops no program for a restart, unless it is to discard what is lost by it."""


def _told(outcome: Outcome, done: str) -> str:
    """What the daemon said of a job, which no other program has."""
    return str(outcome.result.get("text") or done)


_DISCARDING_STOP = BulkCommand("stop", lambda outcome: _told(outcome, "stopped"), _RACE)
_STOP = replace(_DISCARDING_STOP, is_failure=lambda outcome: bool(outcome.result.get("is_loss")))
"""A job that has lost steps is a failure, unless the user has said that they may be lost."""


def start(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Starts programs; returns when each runs (a job: trains), or shows why it does not."""
    more: dict[str, object] = {}
    names, step = _take_step(arguments)
    if step is not None:
        more["from_step"] = step
    if FROM_SCRATCH in names:
        more["from_scratch"] = True
        names = [name for name in names if name != FROM_SCRATCH]
    if not names:
        raise UsageError("Error: start requires a process name", ExitStatus.NO_NAME)
    if more and any(map(is_many, names)):
        raise UsageError(f"Error: {FROM_SCRATCH} and {FROM_STEP} give up checkpoints; name each job")
    forgiven = _RACE if any(map(is_many, names)) else frozenset[str]()
    chosen = _select(terminal, names, DOWN_CODES)
    has_order = frozenset({"ALREADY_STARTED"}) if more else frozenset[str]()  # which a job that runs does not carry out
    return run_bulk(terminal, BulkCommand("start", lambda _: "started", forgiven, has_order), chosen, **more)


def _take_step(arguments: Arguments) -> tuple[Arguments, int | None]:
    """The arguments without --from-step, and its number. Raises UsageError."""
    rest, step = list(arguments), None
    for place, argument in enumerate(arguments):
        option, equals, text = argument.partition("=")
        if option == FROM_STEP:
            text = text if equals else next(iter(arguments[place + 1 :]), "")
            del rest[place : place + (1 if equals else 2)]
            step = whole_number(text, 1)
            if step is None:
                raise UsageError(
                    f"Error: {FROM_STEP} takes the step of a checkpoint, as `supervisorctl checkpoints` lists them"
                )
            break
    return rest, step


def stop(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Stops programs; returns when each process has exited. Jobs save a checkpoint first."""
    if not arguments:
        raise UsageError("Error: stop requires a process name")
    return run_bulk(terminal, _STOP, _select(terminal, arguments, UP_CODES, last_first=True))


def restart(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Stops the named programs, then starts them; those that were down are only started. A job that can't save, or a
    program that could not be started again, is left as it is, unless it may be lost (--discard).
    """
    discard, is_rolling = DISCARD in arguments, ROLLING in arguments
    names = [argument for argument in arguments if argument not in (DISCARD, ROLLING)]
    if not names:
        raise UsageError("Error: restart requires a process name")
    if is_rolling:
        return _restart_rolling(terminal, names, discard)
    down, stopped = _stop_saved(terminal, _select(terminal, names, UP_CODES, last_first=True), discard)
    refused = _not_stopped(stopped)
    up, started = collect_outcomes(
        terminal,
        BulkCommand("start", lambda _: "started", _RACE),
        [name for name in _select(terminal, names, None) if program_of(name) not in refused],
    )
    if terminal.as_json:
        terminal.print_json({"stopped": stopped, "started": started})
    return max(down, up)


def _stop_saved(terminal: Terminal, names: Arguments, discard: bool) -> tuple[ExitStatus, list[dict[str, Any]]]:
    """Stops programs to start them again; unless `discard`, not those that would lose steps, or could not start."""
    try:
        if discard:
            return collect_outcomes(terminal, _DISCARDING_STOP, names, restarts=True)
        return collect_outcomes(terminal, _STOP, names, only_if_saved=True, restarts=True)
    except KeyboardInterrupt:
        terminal.print_detail(f"the restart of {', '.join(names)} goes on: the daemon starts what it has stopped")
        raise


def _not_stopped(stops: list[dict[str, Any]]) -> set[str]:
    """The programs that were not stopped, as they can't save, or could not be started again."""
    errors = {outcome["name"]: outcome["error"] for outcome in stops if outcome["error"] is not None}
    return {name for name, error in errors.items() if error["code"] in _NOT_STOPPED}


def _restart_rolling(terminal: Terminal, names: Arguments, discard: bool) -> ExitStatus:
    """Stops and starts one program after the other; if one does not start, leaves the others as they are."""
    status, stopped, started = ExitStatus.OK, list[dict[str, Any]](), list[dict[str, Any]]()
    left = list(dict.fromkeys(_select(terminal, names, UP_CODES)))
    while left and status is ExitStatus.OK:
        name = left.pop(0)
        status, outcomes = _stop_saved(terminal, [name], discard)
        stopped += outcomes
        if _not_stopped(outcomes):
            left.insert(0, name)
        if status is ExitStatus.OK:
            status, outcomes = collect_outcomes(terminal, BulkCommand("start", lambda _: "started", _RACE), [name])
            started += outcomes
    if terminal.as_json:
        terminal.print_json({"stopped": stopped, "started": started, "left": left})
    else:
        for name in left:
            terminal.print_line(f"{name}: left as it is")
    return status


def send_signal(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Sends a signal to the process of each program."""
    if len(arguments) < 2:
        raise UsageError("Error: signal requires a signal name and a process name")
    signal, *names = arguments
    forgiven = _RACE if any(map(is_many, names)) else frozenset[str]()
    chosen = _select(terminal, names, ALIVE_CODES)
    command = BulkCommand("signal", _signalled, forgiven)
    return run_bulk(terminal, command, chosen, signal=signal)


def _signalled(outcome: Outcome) -> str:
    text = outcome.result.get("text")
    return f"signalled; {text}" if text else "signalled"


def clear(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Empties the log files of each program, running or not."""
    if not arguments:
        raise UsageError("Error: clear requires a process name")
    return run_bulk(terminal, BulkCommand("clear", lambda _: "cleared"), _select(terminal, arguments, None))


def rotate(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Begins new log files for each program, running or not; the present ones become their newest backups."""
    if not arguments:
        raise UsageError("Error: rotate requires a process name")
    return run_bulk(terminal, BulkCommand("rotate", lambda _: "rotated"), _select(terminal, arguments, None))


def _select(
    terminal: Terminal, names: Arguments, codes: tuple[int, ...] | None, *, last_first: bool = False
) -> Arguments:
    """The names, with `all`, groups and patterns replaced by their programs in one of these states (None: in any)."""

    def is_meant(program: Program) -> bool:
        return codes is None or program["wire_code"] in codes

    return expand_names(terminal, names, is_meant, last_first=last_first)


def expand_names(
    terminal: Terminal, names: Arguments, is_meant: Callable[[Program], bool], *, last_first: bool = False
) -> Arguments:
    """The names, with `all`, groups and patterns replaced by their programs for which `is_meant` holds.

    Unknown names stay. The programs of a group are in start order, with `last_first` in stop order. Raises UsageError
    for an option that the action has left among them: nothing is done without what it asks for.
    """
    option = next((name for name in names if name.startswith("--")), None)
    if option is not None:
        raise UsageError(f"Error: bad argument {option}: no program was touched")
    if not any(map(is_many, names)):
        return names
    programs = by_priority(terminal.client.call("status")["programs"])
    if last_first:
        programs.reverse()
    expanded: Arguments = []
    for name in [ALL] if ALL in names else names:
        matches, unknown = select_programs([name], programs)
        is_named = not is_many(name) or [program["name"] for program in matches] == [name]
        expanded += unknown or [program["name"] for program in matches if is_meant(program) or is_named]
    return expanded
