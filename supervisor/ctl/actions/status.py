"""Actions that show the present state: status, pid, top."""

from typing import Any

from supervisor.ctl import naming, render
from supervisor.ctl.actions.base import Arguments, UsageError, no_options
from supervisor.ctl.client import LoginNeeded, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.plurals import listed

DOWN_CODES = (0, 100, 200, 1000)  # STOPPED, EXITED, FATAL, UNKNOWN


def status(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the status of programs; with `--watch`, until Ctrl-C."""
    names = [argument for argument in arguments if argument not in ("--watch", "-w")]
    no_options(names)
    if len(names) != len(arguments):
        return _watch(terminal, names)
    try:
        answer = terminal.client.call("status")
    except LoginNeeded:
        raise
    except Unreachable as error:
        terminal.print_unreachable(error)
        return ExitStatus.UNKNOWN
    programs, unknown = naming.select_programs(names, answer["programs"])
    lines = [*map(naming.unknown_line, unknown), *render.status_lines(programs)]
    terminal.print_result({**answer, "programs": programs, "unknown": unknown}, lines)
    for text in () if terminal.as_json else _proofs(programs if names else []):
        terminal.print_remark(text)
    for text in () if terminal.as_json else _escapes(programs):
        terminal.print_remark(text)
    for trouble in () if terminal.as_json else (answer.get("ledger_error"), answer.get("hooks_error")):
        if trouble is not None:
            terminal.print_trouble(trouble)
    down = any(program["wire_code"] in DOWN_CODES for program in programs)
    return max(ExitStatus.UNKNOWN if unknown else ExitStatus.OK, ExitStatus.DOWN if down else ExitStatus.OK)


def _proofs(programs: list[dict[str, Any]]) -> list[str]:
    """What the newest proof of each job came to, and how far the one under way is."""
    lines = list[str]()
    for program in programs:
        job = program.get("job") or {}
        if (proof := job.get("proof")) is not None:
            lines.append(f"{program['name']}: {proof['text']}")
        if (proving := job.get("proving")) is not None:
            share = "" if proving["done"] is None else f", {100 * proving['done']:.0f} %"
            lines.append(f"{program['name']}: is being proven: {proving['doing']}{share}")
    return lines


def _escapes(programs: list[dict[str, Any]]) -> list[str]:
    """What can outlive programs although it is to end with them, in one line for all of which the same is true."""
    names: dict[str, list[str]] = {}
    for program in programs:
        if program.get("can_outlive"):
            names.setdefault(program["can_outlive"], []).append(program["name"])
    return [f"{listed(name, ', ')} can be outlived by {what}" for what, name in names.items()]


def _watch(terminal: Terminal, names: Arguments) -> ExitStatus:
    if terminal.as_json:
        raise UsageError("Error: --watch and --json exclude each other; use one of them")
    from supervisor.ctl import watch  # its drawing library takes longer to load than everything else together

    return watch.watch(terminal, names)


def pid(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows the daemon's process id, or those of programs, 0 for those that are down."""
    if not arguments:
        answer = terminal.client.call("pid")
        terminal.print_result(answer, [str(answer["pid"])])
        return ExitStatus.OK
    programs = terminal.client.call("status")["programs"]
    matches, unknown = naming.select_programs(arguments, programs)
    lines = []
    for name in [naming.ALL] if naming.ALL in arguments else arguments:
        pids = [str(program["pid"] or 0) for program in naming.select_programs([name], programs)[0]]
        lines += [f"No such process {name}"] if name in unknown else pids
    listed = [{"name": program["name"], "pid": program["pid"]} for program in matches]
    terminal.print_result({"programs": listed, "unknown": unknown}, lines)
    down = naming.ALL not in arguments and any(not program["pid"] for program in matches)
    return max(ExitStatus.ERROR if unknown else ExitStatus.OK, ExitStatus.NOT_RUNNING if down else ExitStatus.OK)


def top(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Shows what programs use, live; where the output is not a terminal, once."""
    no_options(arguments)
    from supervisor.ctl import top as screen  # its drawing library takes longer to load than everything else together

    show = screen.show_live if terminal.out.isatty() and not terminal.as_json else screen.print_once
    return show(terminal, arguments)
