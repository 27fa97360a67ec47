"""Shows a proof while it goes on: a bar on a terminal, plain lines, or JSON."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from supervisor.protocol.proof import ProofReport
from supervisor.protocol.wire.codec import encode_record
from supervisor.prove.following import RunProgress
from supervisor.prove.texts import report_lines

LINE_S = 10.0  # between two plain lines of one run
JSON_S = 0.5


class Display(Protocol):
    """What shows a proof."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...

    def show(self, progress: RunProgress) -> None:
        """Shows how far it is."""

    def report(self, report: ProofReport) -> None:
        """Shows the verdict."""


class Lines:
    """Plain lines, or JSON: at most one each so many seconds for one run and number of kills, and none twice."""

    def __init__(self, every_s: float, say: Callable[[RunProgress], str], say_report: Callable[[ProofReport], str],
                 progress_to: TextIO | None = None) -> None:  # fmt: skip
        self._every_s, self._say, self._say_report = every_s, say, say_report
        self._to = progress_to or sys.stdout
        self._shown: tuple[object, ...] = ()
        self._shown_at = 0.0
        self._line = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def show(self, progress: RunProgress) -> None:
        now, what = time.monotonic(), (progress.run, progress.kills, progress.state)
        if what == self._shown and now - self._shown_at < self._every_s:
            return
        self._shown, self._shown_at, said = what, now, self._line
        self._line = self._say(progress)
        if self._line != said:
            print(self._line, file=self._to, flush=True)

    def report(self, report: ProofReport) -> None:
        print(self._say_report(report), flush=True)  # noqa: T201


def plain_lines() -> Lines:
    """For a log: progress goes to standard error."""
    return Lines(LINE_S, _line, lambda report: "\n".join(report_lines(report)), sys.stderr)


def json_lines() -> Lines:
    """For a program: one object a line, the report last."""
    return Lines(JSON_S, lambda progress: json.dumps({"progress": asdict(progress)}, allow_nan=False), encode_record)


def _line(progress: RunProgress) -> str:
    of = "" if progress.of is None else f" of {progress.of}"
    kills = f", {progress.kills} of {progress.planned} kills" if progress.planned else ""
    return f"{progress.run}: {progress.state.lower()}, step {progress.step}{of}{kills}"


class Bar:
    """A bar for each run, on a terminal."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description:<18}"), BarColumn(30), TextColumn("{task.fields[note]}"))
        self._console = Console(stderr=True, highlight=False)
        self._bars = Bars(*columns, TimeElapsedColumn(), console=self._console)
        self._tasks: dict[str, object] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, progress: RunProgress) -> None:
        task = self._tasks.get(progress.run)
        if task is None:
            task = self._tasks[progress.run] = self._bars.add_task(progress.run, total=None, note="")
        note = _line(progress).partition(": ")[2]
        self._bars.update(task, completed=progress.step, total=progress.of, note=note)  # type: ignore[arg-type]

    def report(self, report: ProofReport) -> None:
        self._bars.stop()
        print("\n".join(report_lines(report)), flush=True)  # noqa: T201
