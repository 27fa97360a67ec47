"""One command for many programs, side by side, each result told as it comes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from supervisor.ctl import naming
from supervisor.ctl.client import Client, Refusal
from supervisor.ctl.terminal import Status, Terminal

FAULTS: dict[str, tuple[str, Status]] = {
    "BAD_NAME": ("no such process", Status.WRONG),
    "NO_FILE": ("no such file", Status.WRONG),
    "NOT_EXECUTABLE": ("file is not executable", Status.WRONG),
    "ALREADY_STARTED": ("already started", Status.FINE),
    "SPAWN_ERROR": ("spawn error", Status.NOT_RUNNING),
    "ABNORMAL_TERMINATION": ("abnormal termination", Status.NOT_RUNNING),
    "NOT_RUNNING": ("not running", Status.NOT_RUNNING),
    "BAD_SIGNAL": ("bad signal name", Status.WRONG),
    "BAD_ARGUMENTS": ("bad arguments", Status.WRONG),
    "FAILED": ("failed", Status.WRONG),
    "NOT_A_JOB": ("not a job", Status.WRONG),
    "SHUTDOWN_STATE": ("supervisor shutting down", Status.WRONG),
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
class Order:
    """A command for programs, the line a good result makes, and refusals that do no harm here."""

    command: str
    line: Callable[[Outcome], str]
    forgiven: frozenset[str] = frozenset()


def give(terminal: Terminal, order: Order, names: list[str], **arguments: object) -> Status:
    """Gives the order to every program at once, in the order of the names, and tells each outcome as it comes.

    The worst is the status. Raises Refusal if nobody was given it, and Unreachable.
    """
    status, told = gather(terminal, order, names, **arguments)
    if terminal.as_json:
        terminal.show({"programs": told})
    return status


def gather(
    terminal: Terminal, order: Order, names: list[str], **arguments: object
) -> tuple[Status, list[dict[str, Any]]]:
    """The same, but what is to be shown as JSON is only collected."""
    status, told = Status.FINE, list[dict[str, Any]]()
    for outcome in _outcomes(terminal.client, order.command, names, arguments):
        refusal = outcome.refusal
        text, cost = FAULTS.get(refusal.code, (refusal.code, Status.WRONG)) if refusal else ("", Status.FINE)
        if refusal and refusal.code in order.forgiven:
            cost = Status.FINE
        status = max(status, cost)
        if terminal.as_json:
            told.append(_as_json(outcome))
        elif refusal is None:
            terminal.say(f"{outcome.name}: {order.line(outcome)}")
        else:
            _tell(terminal, outcome.name, refusal, text)
    return status, told


def _tell(terminal: Terminal, name: str, refusal: Refusal, text: str) -> None:
    terminal.say(naming.unknown(name) if refusal.code == "BAD_NAME" else f"{naming.program_of(name)}: ERROR ({text})")
    if refusal.code in _EXPLAINED and str(refusal) not in ("", naming.program_of(name)):
        terminal.explain(str(refusal))


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
        for answer in client.each(command, list(written), **arguments):
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
