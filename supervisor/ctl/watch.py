"""`status --watch`: the status of programs as it changes, with a progress bar for each job."""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from supervisor.ctl import naming, render
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal, printable

Shown = TypeVar("Shown")

PERIOD_S = 0.5  # between two requests: fast enough to see steps advance, slow enough to cost nothing
BAR_COLUMNS = 24
COLOURS = {"RUNNING": "green", "STARTING": "yellow", "BACKOFF": "yellow", "STOPPING": "yellow", "FATAL": "red"}


def watch(terminal: Terminal, names: list[str]) -> ExitStatus:
    """Shows the programs until Ctrl-C; if the output is no terminal, as plain lines whenever they change."""
    try:
        if terminal.out.isatty():
            _live(terminal, names)
        else:
            _lines(terminal, names)
    except KeyboardInterrupt:
        return ExitStatus.OK  # Ctrl-C is the way to leave
    return ExitStatus.OK


def _live(terminal: Terminal, names: list[str]) -> None:
    console = Console(file=terminal.out)
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        while True:
            live.update(_frame(terminal, names), refresh=True)
            time.sleep(PERIOD_S)


def _lines(terminal: Terminal, names: list[str]) -> None:
    last: list[str] = []
    while True:
        lines = _ask(terminal, names, lambda found, unknown: [*unknown, *render.status_lines(found)], lambda why: [why])
        if lines != last:
            for line in lines:
                terminal.print_line(line)
            terminal.print_line("")
        last = lines
        time.sleep(PERIOD_S)


def _frame(terminal: Terminal, names: list[str]) -> RenderableType:
    return _ask(
        terminal,
        names,
        lambda found, unknown: frame(found, unknown, time.time()),
        lambda why: Text(printable(f"{why}; trying again"), "red"),
    )


def _ask(
    terminal: Terminal,
    names: list[str],
    shown: Callable[[list[dict[str, Any]], list[str]], Shown],
    on_error: Callable[[str], Shown],
) -> Shown:
    """What `shown` makes of the programs, or `on_error` of an error: a daemon that does not answer may come back."""
    try:
        programs = terminal.client.call("status")["programs"]
    except LoginNeeded:
        raise
    except (Unreachable, Refusal) as error:
        return on_error(str(error))
    found, unknown = naming.select_programs(names, programs)
    return shown(found, [naming.unknown_line(name) for name in unknown])


def frame(programs: Sequence[dict[str, Any]], unknown: Sequence[str], now_wall: float) -> RenderableType:
    """A table with a row for each program; jobs have a bar, speed, time left and the age of the last checkpoint."""
    grid = Table(box=None, pad_edge=False, expand=False)
    for head in ("PROGRAM", "STATE", "PROGRESS", "STEP", "STEPS/S", "LEFT", "CHECKPOINT", ""):
        grid.add_column(head, no_wrap=head != "", header_style="dim")
    for program in programs:
        state = Text(program["state"], COLOURS.get(program["wire_state"], "default"))
        job = program["job"]
        cells = _job_cells(program, job, now_wall) if job else ("", "", "", "", "")
        grid.add_row(Text(printable(program["name"])), state, *cells, Text(printable(_details(program, job))))
    for line in unknown:
        grid.add_row(Text(printable(line), "red"))
    return grid


def _job_cells(program: dict[str, Any], job: dict[str, Any], now_wall: float) -> tuple[RenderableType, ...]:
    step, total, step_s, saved = job["step"], job["total_steps"], job["step_s"], job["checkpoint"]
    moving = program["wire_code"] == 20
    bar: RenderableType = ""
    if step is not None and total:
        bar = ProgressBar(total=total, completed=min(step, total), width=BAR_COLUMNS)
    return (
        bar,
        "" if step is None else f"{step}/{total}" if total else str(step),
        render.rate(1 / step_s) if moving and step_s else "",
        render.span((total - step) * step_s) if moving and step_s and total and step is not None else "",
        f"{saved['step']}, {render.age(saved['committed_wall_at'], now_wall)} ago" if saved else "",
    )


def _details(program: dict[str, Any], job: dict[str, Any] | None) -> str:
    """What the other columns leave out: the metrics of a job that trains, or the reason why it does not."""
    if job is None:
        return render.one_line(program["description"])
    if job["save_error"]:
        return render.one_line(f"last save failed: {job['save_error']}")
    if (notice := program.get("notice")) and notice["doing"]:
        return render.one_line(notice["doing"])
    if program["reason"]:
        return render.one_line(program["reason"])
    return " ".join(f"{name}={value:.4g}" for name, value in job["metrics"].items())
