"""One command for many programs, side by side; the result of each is printed as it comes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor.ctl import naming
from supervisor.ctl.client import Refusal
from supervisor.ctl.terminal import ExitStatus, Terminal

FAULTS: dict[str, tuple[str, ExitStatus]] = {
    "BAD_NAME": ("no such process", ExitStatus.ERROR),
    "NO_FILE": ("no such file", ExitStatus.ERROR),
    "NOT_EXECUTABLE": ("file is not executable", ExitStatus.ERROR),
    "ALREADY_STARTED": ("already started", ExitStatus.OK),
    "SPAWN_ERROR": ("spawn error", ExitStatus.NOT_RUNNING),
    "ABNORMAL_TERMINATION": ("abnormal termination", ExitStatus.NOT_RUNNING),
    "NOT_RUNNING": ("not running", ExitStatus.NOT_RUNNING),
    "WAITING": ("waiting", ExitStatus.NOT_RUNNING),
    "BAD_SIGNAL": ("bad signal name", ExitStatus.ERROR),
    "BAD_ARGUMENTS": ("bad arguments", ExitStatus.ERROR),
    "FAILED": ("failed", ExitStatus.ERROR),
    "NOT_A_JOB": ("not a job", ExitStatus.ERROR),
    "NOT_SAVED": ("not saved", ExitStatus.ERROR),
    "CANT_RESTART": ("can't be started again", ExitStatus.ERROR),
    "SHUTDOWN_STATE": ("supervisor shutting down", ExitStatus.ERROR),
}
"""What a refusal is called on a program's line, mostly in Supervisor's words, and its exit status."""

_WITH_DETAIL = frozenset(FAULTS) - {"BAD_NAME", "ALREADY_STARTED", "SHUTDOWN_STATE"}
"""Refusals whose message says more than their name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command ended for one program: with a result or a refusal."""

    name: str
    result: dict[str, Any]
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class BulkCommand:
    """A command for programs, the line for a result, and the refusals that are not failures.

    `unforgiven`: those that are failures although their status is OK, and whose message says why. `is_failure`: whether
    a result is one nevertheless.
    """

    command: str
    line: Callable[[Outcome], str]
    forgiven: frozenset[str] = frozenset()
    unforgiven: frozenset[str] = frozenset()
    is_failure: Callable[[Outcome], bool] = lambda outcome: False


def run_bulk(terminal: Terminal, command: BulkCommand, names: list[str], **arguments: object) -> ExitStatus:
    """Runs the command for every program at once and prints each outcome as it comes; gives the worst exit status.

    Raises Refusal if the daemon refuses the whole command, and Unreachable.
    """
    status, objects = collect_outcomes(terminal, command, names, **arguments)
    if terminal.as_json:
        terminal.print_json({"programs": objects})
    return status


def collect_outcomes(
    terminal: Terminal, command: BulkCommand, names: list[str], **arguments: object
) -> tuple[ExitStatus, list[dict[str, Any]]]:
    """Does what `run_bulk` does, but returns what is to be printed as JSON."""
    status, objects = ExitStatus.OK, list[dict[str, Any]]()
    written = {naming.program_of(name): name for name in names}
    if not written:
        return status, objects
    for answer in terminal.client.call_each(command.command, list(written), **arguments):
        outcome = _outcome(answer, written)
        status = max(status, _exit_status(outcome, command))
        objects.append({"name": answer["name"], **outcome.result, "error": answer["error"]})
        if terminal.as_json:
            continue
        if outcome.refusal is None:
            terminal.print_line(f"{outcome.name}: {command.line(outcome)}")
        else:
            _print_refusal(terminal, outcome.name, outcome.refusal, _WITH_DETAIL | command.unforgiven)
    return status, objects


def _outcome(answer: dict[str, Any], written: dict[str, str]) -> Outcome:
    """`written`: names as the user wrote them, by the daemon's."""
    name, error = str(answer["name"]), answer["error"]
    if error is None:
        return Outcome(name, answer["result"])
    return Outcome(written.get(name, name), {}, Refusal(str(error["code"]), str(error["message"])))


def _exit_status(outcome: Outcome, command: BulkCommand) -> ExitStatus:
    refusal = outcome.refusal
    if refusal is None:
        return ExitStatus.ERROR if command.is_failure(outcome) else ExitStatus.OK
    if refusal.code in command.forgiven:
        return ExitStatus.OK
    if refusal.code in command.unforgiven:
        return ExitStatus.ERROR
    return FAULTS[refusal.code][1] if refusal.code in FAULTS else ExitStatus.ERROR


def _print_refusal(terminal: Terminal, name: str, refusal: Refusal, with_detail: frozenset[str]) -> None:
    """`with_detail`: refusals whose message is printed too."""
    if refusal.code == "BAD_NAME":
        terminal.print_line(naming.unknown_line(name))
        return
    text = FAULTS[refusal.code][0] if refusal.code in FAULTS else refusal.code
    is_waiting = refusal.code == "WAITING"  # it is started, and goes on by itself: no error
    terminal.print_line(f"{naming.program_of(name)}: {text if is_waiting else f'ERROR ({text})'}")
    if refusal.code in with_detail and str(refusal) not in ("", naming.program_of(name)):
        terminal.print_detail(str(refusal))
