"""`top`: what programs use, those that use most processor time first, until Ctrl-C."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from supervisor.ctl import naming, render
from supervisor.ctl.client import Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.ctl.watch import drawing
from supervisor.protocol.printable import printable

PERIOD_S = 2.0  # long enough for a percentage that means something
HEAD = ("PROGRAM", "STATE", "PID", "PROCS", "CPU%", "MEMORY", "GPU MEM", "STEPS/S")

Answer = dict[str, Any]


def print_once(terminal: Terminal, names: list[str], period_s: float = PERIOD_S) -> ExitStatus:
    """Prints once, as lines or JSON, what was used during `period_s`."""
    before = terminal.client.call("top")
    time.sleep(period_s)
    programs, unknown = naming.select_programs(names, with_cpu_percent(before, terminal.client.call("top")))
    if terminal.as_json:
        terminal.print_json({"programs": programs, "unknown": unknown})
    else:
        for line in [*map(naming.unknown_line, unknown), *render.table(HEAD, map(cells, programs))]:
            terminal.print_line(line)
    return ExitStatus.UNKNOWN if unknown else ExitStatus.OK


def show_live(terminal: Terminal, names: list[str]) -> ExitStatus:
    """Draws a table until Ctrl-C. Raises Unreachable if the daemon does not answer at first; later it may come back."""
    before = terminal.client.call("top")
    try:
        with drawing(Live(console=Console(file=terminal.out), auto_refresh=False, vertical_overflow="crop")) as screen:
            after = before  # all but the percentages is there at once
            while True:
                screen.update(frame(*naming.select_programs(names, with_cpu_percent(before, after))), refresh=True)
                before = after
                after = _next_answer(terminal, screen)
    except KeyboardInterrupt:
        return ExitStatus.OK  # Ctrl-C is the way to leave


def _next_answer(terminal: Terminal, screen: Live) -> Answer:
    """What the daemon answers a period later, or later still, if it does not answer then; that is shown."""
    while True:
        time.sleep(PERIOD_S)
        try:
            return terminal.client.call("top")
        except (Unreachable, Refusal) as error:
            screen.update(Text(printable(f"{error}; trying again"), "red"), refresh=True)


def with_cpu_percent(before: Answer, after: Answer) -> list[dict[str, Any]]:
    """The later answer's programs with `cpu_percent` (100: one processor), the largest first; None: not known."""
    passed_s = after["at_s"] - before["at_s"]
    earlier = {(entry["name"], entry["pid"]): entry["cpu_s"] for entry in before["programs"]}
    rows = []
    for program in after["programs"]:
        used_s, percent = earlier.get((program["name"], program["pid"])), None
        if used_s is not None and program["cpu_s"] is not None and passed_s > 0:
            percent = max(0.0, 100.0 * (program["cpu_s"] - used_s) / passed_s)  # less: a process left with its time
        rows.append({**program, "cpu_percent": percent})
    return sorted(rows, key=lambda row: (-(row["cpu_percent"] or 0.0), -(row["memory_bytes"] or 0), row["name"]))


def cells(program: dict[str, Any]) -> tuple[str, ...]:
    """One row of the table."""

    def known(value: float | None, form: str) -> str:
        return "" if value is None else form.format(value)

    def bytes_of(key: str) -> str:
        return "" if program[key] is None else render.size(program[key])

    return (
        program["name"],
        program["wire_state"],
        str(program["pid"] or ""),
        str(program["processes"] or ""),
        known(program["cpu_percent"], "{:.1f}"),
        bytes_of("memory_bytes"),
        bytes_of("gpu_memory_bytes"),
        render.rate(1 / program["step_s"]) if program["step_s"] else "",
    )


def frame(programs: Sequence[dict[str, Any]], unknown: Sequence[str]) -> RenderableType:
    """The table as rich draws it."""
    grid = Table(box=None, pad_edge=False, expand=False)
    for number, head in enumerate(HEAD):
        grid.add_column(head, no_wrap=True, header_style="dim", justify="left" if number < 2 else "right")
    for program in programs:
        grid.add_row(*(Text(printable(cell)) for cell in cells(program)))
    for name in unknown:
        grid.add_row(Text(printable(naming.unknown_line(name)), "red"))
    return grid
