"""Runs the corpus in two lanes and prints what disagrees: `python -m tests.training_code.corpus_run [NAME...]`.

NAME: a part of a script's path. `--loses`: shows too what each script that is named loses. `--prove`: has
`worker.prove` judge the sample of `proving` instead.
"""

import collections
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peer import NotInstalled
from tests.training_code import judge, proving
from tests.training_code.corpus import CORPUS, Entry, Outcome
from tests.training_code.judge import Verdict
from tests.training_code.starter import Framework, Starters

LANES = 2
MOST_TEXT = 900


@dataclass(frozen=True)
class Row:
    """What happened to a script. `lost`: how it ends after kills, for those that are named."""

    entry: Entry
    verdict: Verdict
    lost: str = ""

    @property
    def where(self) -> str:
        return f"{self.entry.script.parent.name}/{self.entry.name}"

    @property
    def problem(self) -> str:
        """On one line."""
        text = " ".join(self.verdict.problem(self.entry).split())
        return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT // 3]} … {text[-MOST_TEXT * 2 // 3 :]}"


class Lane:
    """Judges scripts one after the other, with a starter for each framework."""

    def __init__(self, folder: Path, also_loses: bool) -> None:
        self._folder = folder
        self._also_loses = also_loses
        self._starters = Starters()

    def judged(self, entry: Entry) -> Row:
        """What happened to a script."""
        folder = self._folder / f"{entry.outcome}-{entry.name}"
        try:
            starter = self._starters.of(entry.framework)
            verdict = judge.judge(entry, starter, folder)
            is_loser = self._also_loses and entry.outcome == Outcome.NAMED
            lost = judge.compare(entry, starter, folder / "loses").detail if is_loser else ""
        except (TimeoutError, NotInstalled) as error:
            return Row(entry, Verdict(type(error).__name__, detail=str(error)))
        return Row(entry, verdict, lost)


def main() -> None:
    options = {argument for argument in sys.argv[1:] if argument.startswith("--")}
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    chosen = [entry for entry in CORPUS if not names or any(name in str(entry.script) for name in names)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="corpus-") as text:
        if "--prove" in options:
            print_proofs([entry for entry in chosen if entry in proving.PROVED], Path(text))
        else:
            print_report(judge_all(chosen, Path(text), "--loses" in options), "--loses" in options)
    print(f"{time.monotonic() - began:.0f} s")


def judge_all(entries: Sequence[Entry], folder: Path, also_loses: bool) -> list[Row]:
    """Judges all, one lane from each end: so that few starters have the same framework."""
    order = list(Framework)
    waiting = collections.deque(sorted(entries, key=lambda entry: order.index(entry.framework), reverse=True))
    rows: list[Row] = []

    def work(name: str, next_entry: Callable[[], Entry]) -> None:
        lane = Lane(folder / name, also_loses)
        while waiting:
            row = lane.judged(next_entry())
            rows.append(row)
            print(f"{row.where}: {row.problem[:300] or row.verdict.outcome}", flush=True)

    ends = (waiting.popleft, waiting.pop)[:LANES]
    lanes = [threading.Thread(target=work, args=(f"lane-{number}", end)) for number, end in enumerate(ends)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return sorted(rows, key=lambda row: (row.entry.outcome, row.entry.name))


def print_report(rows: Sequence[Row], also_loses: bool) -> None:
    """Prints what disagrees, false names first, then the counts."""
    false_names = [
        f"{row.where}: {remark}" for row in rows if row.entry.outcome == Outcome.EXACT for remark in row.verdict.remarks
    ]
    wrong = [
        f"{row.where}: expected {row.entry.outcome} {row.entry.said!r}, got {row.problem}"
        for row in rows
        if row.problem
    ]
    if also_loses:
        losers = [row for row in rows if row.entry.outcome == Outcome.NAMED]
        print("\nLOST", *(f"{row.where}: {row.lost or 'NOTHING'}" for row in losers), sep="\n  ")
    print(f"\nFALSE NAMES ({len(false_names)})", *false_names, sep="\n  ")
    print(f"\nDISAGREE ({len(wrong)})", *wrong, sep="\n  ")
    fine = collections.Counter(str(row.entry.outcome) for row in rows if not row.problem)
    totals = collections.Counter(str(row.entry.outcome) for row in rows)
    print("\n" + ", ".join(f"{outcome} {fine[outcome]} of {total}" for outcome, total in totals.items()))
    kills = collections.Counter(row.verdict.kills for row in rows if row.entry.outcome == Outcome.EXACT)
    counts = ", ".join(f"{scripts} with {count}" for count, scripts in sorted(kills.items()))
    print(f"kills of exact scripts: {counts}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor time of all attempts: {used.ru_utime + used.ru_stime:.0f} s")


def print_proofs(entries: Sequence[Entry], folder: Path) -> None:
    """Prints the verdict of `worker.prove` on each script."""
    for entry in entries:
        try:
            status, said = proving.prove(entry, folder / entry.name)
        except (NotInstalled, subprocess.TimeoutExpired) as error:
            status, said = -1, str(error)
        print(f"{entry.name}: exit status {status}: {said if status else said.partition(chr(10))[0]}", flush=True)


if __name__ == "__main__":
    main()
