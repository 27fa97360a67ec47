"""The action `prove`: that a job's training, killed at any instant, ends bit for bit where an undisturbed run ends."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from supervisor.ctl import naming
from supervisor.ctl.actions.base import Arguments, UsageError, call_for_program, one_name
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.numbers import MAX_WHOLE, real_number, whole_number
from supervisor.protocol.printable import printable
from supervisor.protocol.proof import EXIT_STATUS, Verdict

ANYWAY, CANCEL = "--anyway", "--cancel"
NUMBERS: Mapping[str, Callable[[str], int | float | None]] = {
    "--steps": lambda text: whole_number(text, 1),
    "--epochs": lambda text: real_number(text, 1, MAX_WHOLE),
    "--kills": lambda text: whole_number(text, 1),
}
"""What these options take; the daemon, which answers in the same words as the API, has limits of its own."""
OPTIONS = (*NUMBERS, ANYWAY, CANCEL)
NO_VERDICT = ExitStatus.UNKNOWN
"""For everything but a verdict, whose statuses are 0, 1 and 2: a script must not take a refusal for a difference."""

POLL_S = 0.5


def prove(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Proves a job and shows how far that is; Ctrl-C ends the proof."""
    try:
        rest, numbers = _take_numbers(arguments)
        name = one_name("prove", [argument for argument in rest if argument not in (ANYWAY, CANCEL)])
    except UsageError as error:
        raise UsageError(str(error), NO_VERDICT) from error
    try:
        if CANCEL in rest:
            return _cancel(terminal, name)
        answer = call_for_program(terminal, "prove", name, anyway=ANYWAY in rest, **numbers)
        return NO_VERDICT if answer is None else _follow(terminal, name, answer)
    except KeyboardInterrupt:
        with contextlib.suppress(Refusal):  # it was over already
            terminal.client.call("prove_cancel", name=naming.program_of(name))
        terminal.print_line(f"{name}: cancelled; nothing of the proof is left")
    except LoginNeeded:
        raise
    except Unreachable as error:
        terminal.print_unreachable(error)
    except Refusal as error:
        terminal.print_line(f"{name}: ERROR ({_WORDS.get(error.code, error.code)})")
        terminal.print_detail(str(error))
    return NO_VERDICT


_WORDS = {"NOT_PROVEN": "not proven", "NOT_RUNNING": "not being proven", "SHUTDOWN_STATE": "supervisor shutting down"}


def _take_numbers(arguments: Arguments) -> tuple[Arguments, dict[str, int | float]]:
    """The arguments without the options that take a number, and these. Raises UsageError."""
    rest, numbers, left = Arguments(), dict[str, int | float](), list(arguments)
    while left:
        option, equals, text = left.pop(0).partition("=")
        if option in NUMBERS:
            if not equals:
                text = left.pop(0) if left else ""
            number = NUMBERS[option](text)
            if number is None:
                raise UsageError(f"Error: {option} takes a number from 1 on, not {text!r:.40}")
            numbers[option.removeprefix("--")] = number
        elif option.startswith("-") and option not in OPTIONS:
            raise UsageError(f"Error: bad argument {option}")
        else:
            rest.append(f"{option}{equals}{text}")
    return rest, numbers


def _cancel(terminal: Terminal, name: str) -> ExitStatus:
    answer = call_for_program(terminal, "prove_cancel", name)
    if answer is None:
        return NO_VERDICT
    terminal.print_result(answer, [f"{name}: its proof was cancelled; nothing of it is left"])
    return ExitStatus.OK


def _follow(terminal: Terminal, name: str, begun: dict[str, Any]) -> ExitStatus:
    """Shows the proof until it is over."""
    answer = begun
    with _shown(terminal, name) as show:
        while not answer["is_over"]:
            show.update(answer)
            time.sleep(POLL_S)
            answer = terminal.client.call("proof", name=naming.program_of(name))
            if answer["number"] != begun["number"]:
                terminal.print_line(f"{name}: ERROR (another proof began meanwhile)")
                return NO_VERDICT
    return _print_end(terminal, name, answer)


def _print_end(terminal: Terminal, name: str, answer: dict[str, Any]) -> ExitStatus:
    if answer["verdict"] is None:
        terminal.print_result(answer, [f"{name}: ERROR (not proven)"])
        terminal.print_detail(answer["failure"] or "no reason is known")
        return NO_VERDICT
    terminal.print_result(answer, answer["text"].rstrip().splitlines() or [answer["verdict"]])
    return ExitStatus(EXIT_STATUS[Verdict(answer["verdict"])])


class _ProofLines:
    """How far a proof is, in a line each time that something else is done."""

    def __init__(self, terminal: Terminal, name: str) -> None:
        self._terminal = terminal
        self._name = name
        self._said = ""

    def update(self, answer: dict[str, Any]) -> None:
        """Shows how far it is now."""
        if answer["doing"] != self._said and not self._terminal.as_json:
            self._said = answer["doing"]
            self._terminal.print_line(f"{self._name}: {self._said}")


class _ProofBar(_ProofLines):
    """How far a proof is, as a bar on a terminal."""

    def __init__(self, terminal: Terminal, name: str, progress: Any) -> None:
        super().__init__(terminal, name)
        self._progress = progress
        self._task = progress.add_task(f"{name}: starts", total=1.0)

    def update(self, answer: dict[str, Any]) -> None:
        step = "" if answer["step"] is None else f", step {answer['step']}"
        of = "" if answer["of"] is None else f" of {answer['of']}"
        text = printable(f"{self._name}: {answer['doing']}{step}{of}").replace("[", r"\[")
        self._progress.update(self._task, description=text, completed=answer["done"] or 0.0)


@contextlib.contextmanager
def _shown(terminal: Terminal, name: str) -> Iterator[_ProofLines]:
    if terminal.as_json or not terminal.out.isatty():
        yield _ProofLines(terminal, name)
        return
    # only here: it takes longer to load than everything else together
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=terminal.out), transient=True) as progress:
        yield _ProofBar(terminal, name, progress)
