"""One action on several hosts, side by side: what is wrong comes first, and a host that is dead holds up nobody."""

import io
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from supervisor.ctl import render
from supervisor.ctl.actions import gpus
from supervisor.ctl.actions.run import run_action
from supervisor.ctl.hosts import ANSWERS_WITHIN_S, Host
from supervisor.ctl.naming import unknown_line
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.plurals import counted

READS = frozenset({"avail", "checkpoints", "goodput", "gpus", "history", "maintail", "notices", "pid", "series"})
READS |= {"status", "tail", "timeline", "version"}
"""Actions that change nothing: they may be asked of all hosts. Others are done where --limit says."""
FOLLOWS = frozenset({"events", "fg", "open", "prove", "top"})
"""Actions for one daemon, as they hold the terminal."""
TOGETHER = frozenset({"page"})
"""Actions that show all hosts themselves."""
FOLLOWING = frozenset({"-f", "-w", "--watch"})
"""Options that make an action one of these."""

_WORST = ("FATAL", "UNKNOWN", "BACKOFF", "EXITED", "STOPPED", "STOPPING", "STARTING")
"""States in the order in which they are shown; others follow."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host answered. `text`, `errors`: what the action printed; `document`: its JSON, if it printed any."""

    host: Host
    status: ExitStatus
    text: str = ""
    errors: str = ""
    document: dict[str, Any] | None = None

    @property
    def error(self) -> str | None:
        """Why there is no result."""
        return None if self.document is None else self.document.get("error")


def refusal(action: str, arguments: Sequence[str], is_limited: bool) -> str | None:
    """Why an action is not done on several hosts at once; None if it is."""
    if action in FOLLOWS or (action in READS and FOLLOWING & {*arguments}):
        return f"{action} holds the terminal for one daemon; name its host with --limit"
    changes = action not in READS or any(argument.partition("=")[0] == gpus.RETURN for argument in arguments)
    if changes and not is_limited:
        return f"{action} changes something; say on which hosts with --limit NAME,NAME, or --limit all"
    return None


def run_on_all(
    hosts: Sequence[Host],
    connect: Callable[[Host, TextIO, TextIO], Terminal],
    action: str,
    arguments: list[str],
    within_s: float = ANSWERS_WITHIN_S,
) -> list[Answer]:
    """Runs an action on all hosts at once; each answers within that time if it changes nothing. In their order.

    `connect`: gives a host's terminal, which prints into these streams.
    """
    as_object = action == "status"
    answers: dict[Host, Answer] = {}

    def run(host: Host) -> None:
        out, err = io.StringIO(), io.StringIO()
        words = [*arguments, "--json"] if as_object else arguments
        terminal = connect(host, out, err)
        is_json = as_object or terminal.as_json
        try:
            status = run_action(terminal, action, words)
        except Exception as error:  # noqa: BLE001 - a daemon of another version, or no daemon, must not hide the others
            text = f"the answer can't be understood: {error!r:.200}"
            answers[host] = Answer(host, ExitStatus.UNKNOWN, text, document={"error": text} if is_json else None)
        else:
            document = json.loads(out.getvalue()) if is_json else None
            answers[host] = Answer(host, status, "" if is_json else out.getvalue(), err.getvalue(), document)

    threads = [threading.Thread(target=run, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + within_s if action in READS else None
    for thread in threads:
        thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
    late = {"error": f"no answer within {within_s:g} s"}
    return [
        answers.get(host) or Answer(host, ExitStatus.UNKNOWN, late["error"], document=late if as_object else None)
        for host in hosts
    ]


def print_answers(terminal: Terminal, action: str, answers: Sequence[Answer]) -> ExitStatus:
    """Prints them, each line with its host, what is wrong first; gives the outcome of all."""
    outcome = max(answer.status for answer in answers)
    if terminal.as_json:
        terminal.print_json({"hosts": [_object(answer) for answer in answers]})
        return outcome
    width = max(len(answer.host.name) for answer in answers)
    if action == "status":
        _print_status(terminal, answers, width)
    else:
        for answer in sorted(answers, key=lambda answer: -answer.status):
            for line in answer.text.splitlines():
                terminal.print_line(f"{answer.host.name:<{width}}  {line}")
    for answer in answers:
        for line in answer.errors.splitlines():
            terminal.print_detail(f"{answer.host.name}: {line.strip()}")
    return outcome


def _object(answer: Answer) -> dict[str, Any]:
    where = {"host": answer.host.name, "url": answer.host.url, "exit_status": int(answer.status)}
    if answer.document is None:
        return {**where, "error": answer.text.strip() or None}
    result = {key: value for key, value in answer.document.items() if key != "schema"}
    return {**where, "error": answer.error, "result": None if answer.error is not None else result}


def _print_status(terminal: Terminal, answers: Sequence[Answer], width: int) -> None:
    silent = [answer for answer in answers if answer.error is not None]
    for answer in silent:
        terminal.print_line(f"{answer.host.name:<{width}}  {'UNKNOWN':<10}{render.one_line(str(answer.error))}")
    results = [
        (answer.host, answer.document) for answer in answers if answer.error is None and answer.document is not None
    ]
    for name in _unknown_everywhere([document for _, document in results]):
        terminal.print_line(unknown_line(name))
    programs = [(host, program) for host, document in results for program in document["programs"]]
    lines = render.status_lines([program for _, program in programs])
    ranked = sorted(zip(programs, lines, strict=True), key=lambda item: _rank(item[0][1]))
    for (host, _), line in ranked:
        terminal.print_line(f"{host.name:<{width}}  {line}")
    for host, document in results:
        for trouble in (document.get("ledger_error"), document.get("hooks_error")):
            if trouble is not None:
                terminal.print_trouble(f"{host.name}: {trouble}")
    down = sum(_rank(program) < len(_WORST) - 2 for _, program in programs)
    terminal.print_remark(
        f"{counted(len(answers), 'host')}, {len(silent)} of them without an answer; "
        f"{counted(len(programs), 'program')}, {down} of them down"
    )


def _unknown_everywhere(documents: Sequence[dict[str, Any]]) -> list[str]:
    """Names that no host knows."""
    unknown = [{*document.get("unknown", ())} for document in documents]
    return sorted(set.intersection(*unknown)) if unknown else []


def _rank(program: dict[str, Any]) -> int:
    state = program.get("wire_state")
    return _WORST.index(state) if state in _WORST else len(_WORST)
