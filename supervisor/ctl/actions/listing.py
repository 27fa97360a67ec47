"""Actions that list: status, pid, version, avail, checkpoints, history."""

import time
from typing import Any

from supervisor.ctl import naming, render
from supervisor.ctl.actions.base import Arguments, UsageError, no_arguments, one_name
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal

DOWN_CODES = (0, 100, 200, 1000)  # STOPPED, EXITED, FATAL, UNKNOWN


def status(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """The standing of programs; `--watch` shows it until Ctrl-C."""
    names = [each for each in arguments if each not in ("--watch", "-w")]
    if any(each.startswith("-") for each in names):
        raise UsageError(f"Error: bad argument {next(each for each in names if each.startswith('-'))}")
    if len(names) != len(arguments):
        return _watch(terminal, names)
    try:
        answer = terminal.client.call("status")
    except LoginNeeded:
        raise
    except Unreachable as error:
        terminal.print_line(str(error))
        return ExitStatus.UNKNOWN
    found, unknown = naming.select_programs(names, answer["programs"])
    if terminal.as_json:
        terminal.print_json({**answer, "programs": found, "unknown": unknown})
    else:
        for line in [*map(naming.unknown_line, unknown), *render.status_lines(found)]:
            terminal.print_line(line)
    down = any(program["wire_code"] in DOWN_CODES for program in found)
    return max(ExitStatus.UNKNOWN if unknown else ExitStatus.OK, ExitStatus.DOWN if down else ExitStatus.OK)


def _watch(terminal: Terminal, names: Arguments) -> ExitStatus:
    if terminal.as_json:
        raise UsageError("Error: --watch is for people and --json for programs; use one of them")
    from supervisor.ctl import watch  # its drawing library takes longer to load than all else together

    return watch.watch(terminal, names)


def pid(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """The daemon's process id, or those of programs, 0 for those that are down."""
    if not arguments:
        answer = terminal.client.call("pid")
        if terminal.as_json:
            terminal.print_json(answer)
        else:
            terminal.print_line(str(answer["pid"]))
        return ExitStatus.OK
    programs = terminal.client.call("status")["programs"]
    found, unknown = naming.select_programs(arguments, programs)
    if terminal.as_json:
        terminal.print_json(
            {"programs": [{"name": each["name"], "pid": each["pid"]} for each in found], "unknown": unknown}
        )
    else:
        for name in [naming.ALL] if naming.ALL in arguments else arguments:
            pids = [str(each["pid"] or 0) for each in naming.select_programs([name], programs)[0]]
            for line in [f"No such process {name}"] if name in unknown else pids:
                terminal.print_line(line)
    down = naming.ALL not in arguments and any(not each["pid"] for each in found)
    return max(ExitStatus.ERROR if unknown else ExitStatus.OK, ExitStatus.NOT_RUNNING if down else ExitStatus.OK)


def version(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """The version of the daemon."""
    no_arguments("version", arguments)
    answer = terminal.client.call("version")
    if terminal.as_json:
        terminal.print_json(answer)
    else:
        terminal.print_line(answer["version"])
    return ExitStatus.OK


def avail(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Every program of the configuration, in use or not."""
    no_arguments("avail", arguments)
    answer = terminal.client.call("avail")
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    for each in answer["programs"]:
        used, start = "in use" if each["in_use"] else "avail", "auto" if each["autostart"] else "manual"
        terminal.print_line(f"{each['name']:<32} {used:<9} {start:<9} {each['group_priority']}:{each['priority']}")
    return ExitStatus.OK


def checkpoints(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """A job's checkpoints, newest first, each read and proven unless told not to."""
    if "--verify" in arguments:
        from supervisor.ctl.actions import proving  # what reads checkpoints is a fifth of supervisorctl's start

        return proving.checkpoints_at(terminal, [each for each in arguments if each != "--verify"])
    verify = "--no-verify" not in arguments
    name = one_name("checkpoints", [each for each in arguments if each != "--no-verify"])
    answer = call_for_program(terminal, "checkpoints", name, verify=verify)
    if answer is None:
        return ExitStatus.ERROR
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    now = time.time()
    rows = [
        (
            render.number(each["step"]),
            each["name"],
            render.age(each["created_wall_at"], now),
            render.size(each["size_bytes"]),
            _verdict(each),
        )
        for each in answer["checkpoints"]
    ]
    for line in render.table(("STEP", "CHECKPOINT", "AGE", "SIZE", "STATE"), rows) if rows else ["no checkpoints yet"]:
        terminal.print_line(line)
    return ExitStatus.OK


def _verdict(each: dict[str, Any]) -> str:
    if each["quarantined"]:
        return f"set aside: {each['reason'] or 'reason not recorded'}"
    words = {True: "whole", False: f"damaged: {each['reason']}", None: "not verified"}
    return words[each["valid"]]


def history(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """A program's last attempts, oldest first."""
    limit, name = 20, one_name("history", [each for each in arguments if not each.startswith("-")])
    for option in arguments:
        if option.startswith("-"):
            limit = _limit(option)
    answer = call_for_program(terminal, "history", name, limit=limit)
    if answer is None:
        return ExitStatus.ERROR
    if terminal.as_json:
        terminal.print_json(answer)
        return ExitStatus.OK
    rows = [row for each in answer["attempts"] for row in _attempt_rows(each)]
    head = ("ATTEMPT", "STARTED", "LASTED", "FROM", "TO", "SAVED", "LOST", "ENDED")
    for line in render.table(head, rows) if rows else ["no attempts yet"]:
        terminal.print_line(line)
    return ExitStatus.OK


def _limit(option: str) -> int:
    if not (option[1:].isascii() and option[1:].isdecimal() and 1 <= int(option[1:7]) <= 10_000):
        raise UsageError(f"Error: bad argument {option}")
    return int(option[1:])


def _attempt_rows(each: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for the attempt; before it, one for each checkpoint that was refused when it began, and one for each
    condition of the bits that was another one than before."""
    refused = [("", "", "", "", "", "", "", f"refused {name}: {reason}") for name, reason in each["refused"]]
    refused += [("", "", "", "", "", "", "", f"under other conditions: {text}") for text in each.get("changed", ())]
    ended, from_step = each["ended_wall_at"], each["from_step"]
    row = (
        str(each["attempt"]),
        render.moment(each["started_wall_at"]),
        render.span(each["ran_s"] or 0.0) if ended is not None else "runs",
        "-" if from_step is None else str(from_step),
        "-" if each["to_step"] is None else str(each["to_step"]),
        str(each["checkpoints"]),
        "-" if each["lost_steps"] is None else str(each["lost_steps"]),
        each["text"] or each["cause"] or "",
    )
    return [*refused, row]


def call_for_program(terminal: Terminal, command: str, name: str, **arguments: object) -> dict[str, Any] | None:
    """The answer, or None after the refusal has been told."""
    try:
        return terminal.client.call(command, name=naming.program_of(name), **arguments)
    except Refusal as error:
        if error.code == "BAD_NAME":
            terminal.print_line(naming.unknown_line(name))
        elif error.code == "NOT_A_JOB":
            terminal.print_line(f"{naming.program_of(name)}: ERROR (not a job)")
            terminal.print_detail(str(error))
        else:
            raise
        return None
