"""One command for many programs, side by side, each result told as it comes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from supervisor.ctl import naming
from supervisor.ctl.client import Client, Refusal
from supervisor.ctl.terminal import ExitStatus, Terminal

FAULTS: dict[str, tuple[str, ExitStatus]] = {
    "BAD_NAME": ("no such process", ExitStatus.ERROR),
    "NO_FILE": ("no such file", ExitStatus.ERROR),
    "NOT_EXECUTABLE": ("file is not executable", ExitStatus.ERROR),
    "ALREADY_STARTED": ("already started", ExitStatus.OK),
    "SPAWN_ERROR": ("spawn error", ExitStatus.NOT_RUNNING),
    "ABNORMAL_TERMINATION": ("abnormal termination", ExitStatus.NOT_RUNNING),
    "NOT_RUNNING": ("not running", ExitStatus.NOT_RUNNING),
    "BAD_SIGNAL": ("bad signal name", ExitStatus.ERROR),
    "BAD_ARGUMENTS": ("bad arguments", ExitStatus.ERROR),
    "FAILED": ("failed", ExitStatus.ERROR),
    "NOT_A_JOB": ("not a job", ExitStatus.ERROR),
    "SHUTDOWN_STATE": ("supervisor shutting down", ExitStatus.ERROR),
}
"""What a refusal is called on a program's line, and the exit status it makes."""

_OF_ALL = frozenset({"FORBIDDEN", "UNKNOWN_COMMAND"})
"""Refusals that hold for every program."""

_EXPLAINED = FAULTS.keys() - {"BAD_NAME", "BAD_SIGNAL", "ALREADY_STARTED", "SHUTDOWN_STATE"}
"""Refusals whose message says more than their name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one program answered: a result or a refusal."""

    name: str
    result: dict[str, Any]
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class BulkCommand:
    """A command for programs, the line a good result makes, and refusals that do no harm here."""

    command: str
    line: Callable[[Outcome], str]
    forgiven: frozenset[str] = frozenset()


def run_bulk(terminal: Terminal, order: BulkCommand, names: list[str], **arguments: object) -> ExitStatus:
    """Gives the order to every program at once, in the order of the names, and tells each outcome as it comes.

    The worst is the status. Raises Refusal if nobody was given it, and Unreachable.
    """
    status, told = collect_outcomes(terminal, order, names, **arguments)
    if terminal.as_json:
        terminal.print_json({"programs": told})
    return status


def collect_outcomes(
    terminal: Terminal, order: BulkCommand, names: list[str], **arguments: object
) -> tuple[ExitStatus, list[dict[str, Any]]]:
    """The same, but what is to be shown as JSON is only collected."""
    status, told = ExitStatus.OK, list[dict[str, Any]]()
    for outcome in _outcomes(terminal.client, order.command, names, arguments):
        refusal = outcome.refusal
        text, cost = FAULTS.get(refusal.code, (refusal.code, ExitStatus.ERROR)) if refusal else ("", ExitStatus.OK)
        if refusal and refusal.code in order.forgiven:
            cost = ExitStatus.OK
        status = max(status, cost)
        if terminal.as_json:
            told.append(_as_json(outcome))
        elif refusal is None:
            terminal.print_line(f"{outcome.name}: {order.line(outcome)}")
        else:
            _print_refusal(terminal, outcome.name, refusal, text)
    return status, told


def _print_refusal(terminal: Terminal, name: str, refusal: Refusal, text: str) -> None:
    terminal.print_line(
        naming.unknown_line(name) if refusal.code == "BAD_NAME" else f"{naming.program_of(name)}: ERROR ({text})"
    )
    if refusal.code in _EXPLAINED and str(refusal) not in ("", naming.program_of(name)):
        terminal.print_detail(str(refusal))


def _as_json(outcome: Outcome) -> dict[str, Any]:
    error = {"code": outcome.refusal.code, "message": str(outcome.refusal)} if outcome.refusal else None
    return {"name": naming.program_of(outcome.name), **outcome.result, "error": error}


def _outcomes(client: Client, command: str, names: list[str], arguments: dict[str, object]) -> Iterator[Outcome]:
    """Outcomes in the order they come: one request, whatever the number of programs.

    A daemon of before that request was known is asked for one after the other.
    """
    written = {naming.program_of(name): name for name in names}
    if not written:
        return
    try:
        for answer in client.call_each(command, list(written), **arguments):
            name, error = str(answer["name"]), answer["error"]
            if error is None:
                yield Outcome(name, answer["result"])
            else:
                yield Outcome(written.get(name, name), {}, Refusal(str(error["code"]), str(error["message"])))
    except Refusal as refusal:
        if refusal.code != "UNKNOWN_COMMAND":
            raise
        yield from (_outcome(client, command, name, written[name], arguments) for name in written)


def _outcome(client: Client, command: str, name: str, written: str, arguments: dict[str, object]) -> Outcome:
    try:
        return Outcome(name, client.call(command, name=name, **arguments))
    except Refusal as refusal:
        if refusal.code in _OF_ALL:
            raise
        return Outcome(written, {}, refusal)
