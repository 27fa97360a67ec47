"""`status --watch`: the status of programs as it changes, with a progress bar for each job."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from supervisor.ctl import naming, render
from supervisor.ctl.client import LoginNeeded, Refusal, Unreachable
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.printable import printable

Shown = TypeVar("Shown")

PERIOD_S = 0.5  # between two requests: fast enough to see steps advance, slow enough to cost nothing
BAR_COLUMNS = 24
WIDE_COLUMNS = 110  # what all columns take beside a short reason
NARROW_NAME, NARROW_BAR = 16, 6  # so that the rest fits 80 columns
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


@contextmanager
def drawing(live: Live) -> Iterator[Live]:
    """Draws during the block, which hides the cursor; SIGTERM ends it as an exception does, which shows it again."""

    def end(number: int, frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # once
        raise SystemExit(128 + number)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is something to undo
    before = signal.signal(signal.SIGTERM, end)
    try:
        with live:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            yield live
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _live(terminal: Terminal, names: list[str]) -> None:
    console = Console(file=terminal.out)
    with drawing(Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")) as live:
        while True:
            live.update(_frame(terminal, names, console.width), refresh=True)
            time.sleep(PERIOD_S)


def _lines(terminal: Terminal, names: list[str]) -> None:
    last: list[str] = []
    while True:
        lines = _ask(
            terminal, names, lambda programs, unknown: [*unknown, *render.status_lines(programs)], lambda why: [why]
        )
        if lines != last:
            for line in lines:
                terminal.print_line(line)
            terminal.print_line("")
        last = lines
        time.sleep(PERIOD_S)


def _frame(terminal: Terminal, names: list[str], columns: int) -> RenderableType:
    return _ask(
        terminal,
        names,
        lambda programs, unknown: frame(programs, unknown, time.time(), columns),
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
    matches, unknown = naming.select_programs(names, programs)
    return shown(matches, [naming.unknown_line(name) for name in unknown])


def frame(
    programs: Sequence[dict[str, Any]], unknown: Sequence[str], now_wall: float, columns: int = WIDE_COLUMNS
) -> RenderableType:
    """A table with a row for each program; jobs have a bar, speed, time left and the age of the last checkpoint.

    On a terminal with fewer columns than WIDE_COLUMNS what does not fit beside stands below the table.
    """
    is_wide = columns >= WIDE_COLUMNS
    grid = Table(box=None, pad_edge=False, expand=False)
    for head in ("PROGRAM", "STATE", "PROGRESS", "STEP", "STEPS/S", "LEFT", "CHECKPOINT" if is_wide else "SAVED"):
        limit = NARROW_NAME if head == "PROGRAM" and not is_wide else None
        grid.add_column(head, no_wrap=True, header_style="dim", max_width=limit, overflow="ellipsis")
    if is_wide:
        grid.add_column("")
    below: list[Text] = []
    for program in programs:
        name = printable(program["name"])
        state, cells, details = _row_or_why(program, now_wall, is_wide)
        grid.add_row(Text(name), state, *cells, *([Text(details)] if is_wide else []))
        if details and not is_wide:
            below.append(Text(f"{name}: {details}", "dim", no_wrap=True, overflow="ellipsis"))
    below += [Text(printable(line), "red", no_wrap=True, overflow="ellipsis") for line in unknown]
    return Group(grid, *below)


def _row_or_why(
    program: dict[str, Any], now_wall: float, is_wide: bool
) -> tuple[Text, tuple[RenderableType, ...], str]:
    """State, cells and details of a program; of one that can't be shown, why: that must not hide the others."""
    empty = ("", "", "", "", "")
    try:
        state = Text(program["state"], COLOURS.get(program["wire_state"], "default"))
        job = program["job"]
        cells = _job_cells(program, job, now_wall, is_wide) if job else empty
        return state, cells, printable(_details(program))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this program's line
        return Text("UNKNOWN", "red"), empty, printable(render.not_shown(error))


def _job_cells(
    program: dict[str, Any], job: dict[str, Any], now_wall: float, is_wide: bool
) -> tuple[RenderableType, ...]:
    step, total, step_s, saved = job["step"], job["total_steps"], job["step_s"], job["checkpoint"]
    moving = program["wire_code"] == 20
    bar: RenderableType = ""
    if step is not None and total:
        bar = ProgressBar(total=total, completed=min(step, total), width=BAR_COLUMNS if is_wide else NARROW_BAR)
    span, number = (render.span, str) if is_wide else (_brief_span, _brief_number)
    age = span(now_wall - saved["committed_wall_at"]) if saved else ""
    return (
        bar,
        "" if step is None else "/".join(map(number, (step, total) if total else (step,))),
        render.rate(1 / step_s) if moving and step_s else "",
        span((total - step) * step_s) if moving and step_s and total and step is not None else "",
        age if not is_wide or not saved else f"{saved['step']}, {age} ago",
    )


def _brief_span(length_s: float) -> str:
    """A length of time in at most 8 characters."""
    days, rest_s = divmod(max(0, int(min(length_s, render.MAX_SPAN_S))), 86400)
    return f"{days}d {rest_s // 3600}h" if days else render.span(length_s)


def _brief_number(count: int) -> str:
    """A number of steps in at most 5 characters, up to ten million."""
    return str(count) if count < 100_000 else f"{count // 1000}k"


def _details(program: dict[str, Any]) -> str:
    """What the other columns leave out: the metrics of a job that trains, the stage of its start, or the reason why it
    does not run."""
    job = program["job"]
    if job is None:
        return render.one_line(program["description"])
    if job["save_error"]:
        return render.one_line(f"last save failed: {job['save_error']}")
    if (notice := program.get("notice")) and notice["doing"]:
        return render.one_line(notice["doing"])
    if program["reason"]:
        return render.one_line(program["reason"])
    if program["wire_state"] == "STARTING":
        return render.one_line(program["description"]).removeprefix(f"pid {program['pid']}, ")
    metrics = " ".join(f"{name}={value:.4g}" for name, value in job["metrics"].items())
    return "; ".join(filter(None, [_newest_state(job), metrics]))


def _newest_state(job: dict[str, Any]) -> str:
    """What a death would cost, if that is less than what came after the last checkpoint."""
    if (copied := job.get("memory_step")) is None:  # a daemon of an earlier version does not say
        return ""
    on_disk = f"{job['checkpoint']['step']:,}" if job["checkpoint"] else "none"
    return f"newest: step {copied:,} in memory, {on_disk} on disk"
