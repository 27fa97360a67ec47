"""Actions on what the daemon supervises: avail, reread, update, add, remove."""

from collections.abc import Mapping
from typing import Any

from supervisor.ctl.actions.base import Arguments, UsageError, no_arguments
from supervisor.ctl.client import Refusal
from supervisor.ctl.naming import ALL, program_of
from supervisor.ctl.terminal import ExitStatus, Terminal

DISCARD = "--discard"
_CHANGES = {"added": "available", "changed": "changed", "removed": "disappeared"}
_DONE = {"removed": "removed", "updated": "updated", "added": "added"}

_NOT_ADDED = {
    "ALREADY_ADDED": ("ERROR: process group already active", ExitStatus.OK),
    "BAD_NAME": ("ERROR: no such process/group: {}", ExitStatus.ERROR),
    "FAILED": ("{}: ERROR (not applied)\n    {}", ExitStatus.ERROR),
    "SHUTDOWN_STATE": ("ERROR: shutting down", ExitStatus.ERROR),
}
_NOT_REMOVED = {
    "STILL_RUNNING": ("ERROR: process/group still running: {}", ExitStatus.ERROR),
    "NOT_SAVED": ("{}: ERROR (not saved)\n    {}", ExitStatus.ERROR),
    "BAD_NAME": ("ERROR: no such process/group: {}", ExitStatus.ERROR),
    "SHUTDOWN_STATE": ("ERROR: shutting down", ExitStatus.ERROR),
}
"""Supervisor's words for refusals, and the exit status each makes."""


def avail(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists every program of the configuration, in use or not."""
    no_arguments("avail", arguments)
    answer = terminal.client.call("avail")
    lines = []
    for program in answer["programs"]:
        used, start = "in use" if program["in_use"] else "avail", "auto" if program["autostart"] else "manual"
        lines.append(f"{program['name']:<32} {used:<9} {start:<9} {program['group_priority']}:{program['priority']}")
    terminal.print_result(answer, lines)
    return ExitStatus.OK


def reread(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists what `update` would change."""
    no_arguments("reread", arguments)
    answer = terminal.client.call("reread")
    lines = sorted(f"{name}: {word}" for key, word in _CHANGES.items() for name in answer[key])
    terminal.print_result(answer, [*(lines or ["No config updates to processes"]), *_broken_lines(answer)])
    _print_remarks(terminal, answer)
    for name, why in answer.get("not_applied", {}).items() if not terminal.as_json else ():
        terminal.print_remark(f"the last update did not apply the section of {name}: {why}")
    return ExitStatus.ERROR if answer.get("broken") else ExitStatus.OK


def _broken_lines(answer: Mapping[str, Any]) -> list[str]:
    """The sections that were left out, with what is wrong with each."""
    lines = list[str]()
    for section in answer.get("broken", ()):
        kept = f"; {', '.join(section['kept'])} as before" if section["kept"] else ""
        lines += [f"ERROR: [{section['section']}] is left out{kept}", *(f"  {text}" for text in section["problems"])]
    return lines


def _print_remarks(terminal: Terminal, answer: Mapping[str, Any]) -> None:
    """What is new of what `supervisord --check-config` says of a file that can be used."""
    for remark in answer.get("remarks", ()) if not terminal.as_json else ():
        terminal.print_remark(remark)


def update(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Applies the configuration; programs whose section did not change keep running."""
    discard, chosen = DISCARD in arguments, [argument for argument in arguments if argument != DISCARD]
    request: dict[str, object] = {"discard": True} if discard else {}
    if chosen and ALL not in chosen:
        request["names"] = [program_of(name) for name in chosen]
    try:
        answer = terminal.client.call("update", **request)
    except Refusal as error:
        if error.code not in ("BAD_NAME", "SHUTDOWN_STATE"):
            raise
        is_leaving = error.code == "SHUTDOWN_STATE"
        terminal.print_line("ERROR: already shutting down" if is_leaving else f"ERROR: no such group: {error}")
        return ExitStatus.ERROR
    lines = [line for action in answer["actions"] for line in _action_lines(action)]
    terminal.print_result(answer, [*lines, *_broken_lines(answer)])
    _print_remarks(terminal, answer)
    remarks = (action.get("remark") for action in answer["actions"] if not terminal.as_json)
    for remark in filter(None, remarks):
        terminal.print_remark(remark)
    is_refused = any(action["action"] == "refused" for action in answer["actions"])
    has_lost = any(action.get("is_loss") for action in answer["actions"])
    is_failure = answer.get("broken") or is_refused or (has_lost and not discard)
    return ExitStatus.ERROR if is_failure else ExitStatus.OK


def _action_lines(action: Mapping[str, Any]) -> list[str]:
    """What the update did to one program."""
    name, text = action["name"], action.get("text")
    if action["action"] == "refused":
        return [f"{name}: ERROR (not applied)", f"    {text}"]
    return [f"{name}: {text or _action_text(name, action['action'])}"]


def _action_text(name: str, action: str) -> str:
    if action not in _DONE:
        return action
    return f"{_DONE[action]} process" if ":" in name else f"{_DONE[action]} process group"


def add(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Begins to supervise programs or groups of the configuration."""
    return _each(terminal, arguments, "add", "added", _NOT_ADDED)


def remove(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Ceases to supervise programs or groups that are down."""
    names = [argument for argument in arguments if argument != DISCARD]
    more: dict[str, object] = {} if DISCARD not in arguments else {"discard": True}
    return _each(terminal, names, "remove", "removed", _NOT_REMOVED, **more)


def _each(
    terminal: Terminal,
    names: Arguments,
    command: str,
    done: str,
    refusals: Mapping[str, tuple[str, ExitStatus]],
    **more: object,
) -> ExitStatus:
    """Runs the command for one name after the other, as later ones may need earlier ones; the worst outcome counts."""
    if not names:
        raise UsageError(f"Error: {command} requires the name of a program or a group")
    status, objects = ExitStatus.OK, list[dict[str, Any]]()
    for name in names:
        error, answer = None, dict[str, Any]()
        try:
            answer = terminal.client.call(command, name=program_of(name), **more)
            line = f"{name}: {done} process group"
        except Refusal as refusal:
            if refusal.code not in refusals:
                raise
            text, failure = refusals[refusal.code]
            line, status = text.format(name, refusal), max(status, failure)
            error = {"code": refusal.code, "message": str(refusal)}
        objects.append({**answer, "name": program_of(name), "error": error})
        if not terminal.as_json:
            terminal.print_line(line)
            for job in answer.get("unsaved", ()):
                terminal.print_remark(f"{job['name']} {job['text']}")
    if terminal.as_json:
        terminal.print_json({"programs": objects})
    return status
