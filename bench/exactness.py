"""Tests whether a killed job has the same result as an undisturbed one, bit for bit: SIGKILL at random seeded moments.

Run with `python -m bench.exactness` (100 kills of each example; on two idle cores about 15 s a kill with TensorFlow, 5
s with PyTorch, 2 s without either). Prints a table and writes bench/results/exactness.json; exits with 1 if anything
differs. A run is killed up to 20 times and then trains to its end; every second run also finds its newest checkpoint
damaged before a relaunch. It compares the hashes of all files of the last checkpoint: weights, optimizer,
data position, random state. Each kill is counted under the phase that it interrupted, read from its files.
The scripts of tests/training_code follow, each killed at certain lines, and then the matrix of patterns: for each, the
tests that hold it.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench import harness
from bench.peer import NotInstalled
from tests.places import ROOT
from tests.system import killing
from tests.system.killing import End, Moment
from tests.training_code import rig
from tests.training_code.patterns import PATTERNS, Pattern
from tests.training_code.scripts import SCRIPTS, Script
from tests.training_code.strike import SAVE

BY_NAME = {script.name: script for script in SCRIPTS}


@dataclass(frozen=True)
class Outcome:
    """The result of one example. `error`: why it could not be measured."""

    example: str
    undisturbed: End | None = None
    disturbed: tuple[End, ...] = ()
    error: str | None = None

    @property
    def differing(self) -> list[End]:
        return [end for end in self.disturbed if self.undisturbed and end.same_as != self.undisturbed.same_as]

    @property
    def is_exact(self) -> bool:
        return self.error is None and bool(self.disturbed) and not self.differing


def measured(name: str, folder: Path, kills: int, seed: int, limit: int) -> Outcome:
    """The example's runs, in a folder of its own."""
    try:
        undisturbed, disturbed = killing.rounds(killing.EXAMPLES[name], folder / name, kills, seed, limit)
    except (AssertionError, NotInstalled, OSError) as error:
        return Outcome(name, error=str(error))
    return Outcome(name, undisturbed, tuple(disturbed))


def row(outcome: Outcome) -> tuple[str, ...]:
    """One example's row of the table."""
    if outcome.error is not None:
        return outcome.example, *("-",) * 7, f"[red]failed: {outcome.error[:200]}[/]"
    hits = [hit for end in outcome.disturbed for hit in end.hits]
    met = Counter(hit.met for hit in hits)
    damaged = sum(hit.damaged is not None for hit in hits)
    refused = sum(len(attempt["refused"]) for end in outcome.disturbed for attempt in end.attempts)
    runs, same = len(outcome.disturbed), len(outcome.disturbed) - len(outcome.differing)
    verdict = "[green]all the same bits[/]" if outcome.is_exact else f"[red]{runs - same} of {runs} differ[/]"
    counts = (len(hits), met[Moment.STEP], met[Moment.SAVE], met[Moment.RESTORE], damaged, refused, runs)
    return outcome.example, *map(str, counts), verdict


def recorded(outcome: Outcome) -> dict[str, Any]:
    """One example's entry in the file."""
    return {
        "example": outcome.example,
        "exact": outcome.is_exact,
        "error": outcome.error,
        "undisturbed": outcome.undisturbed.same_as if outcome.undisturbed else None,
        "runs": [
            {
                "end": end.same_as,
                "wall_s": round(end.wall_s, 1),
                "kills": [
                    {"meant": hit.kill.moment, "met": hit.met, "step": hit.step, "damaged": hit.damaged}
                    for hit in end.hits
                ],
            }
            for end in outcome.disturbed
        ],
    }


def measured_script(script: Script, folder: Path) -> tuple[Script, bool, str]:
    """Whether a script as people write it ends with the same bits if it is killed, and how its run went, in words."""
    try:
        undisturbed = rig.run(script.name, folder / script.name / "undisturbed")
        killed = rig.run(script.name, folder / script.name / "killed", script.strikes)
    except (AssertionError, NotInstalled, OSError) as error:
        return script, False, f"[red]failed: {str(error)[:200]}[/]"
    same = killed.result == undisturbed.result and killed.hits == script.strikes
    return script, same, "[green]the same bits[/]" if same else "[red]differs[/]"


def script_row(script: Script, end: str) -> tuple[str, ...]:
    """A script's row of the table."""
    kills, in_saves = len(script.strikes), sum(pattern == SAVE for pattern, _ in script.strikes)
    return script.name, script.patterns, str(len(rig.added_lines(script.name))), str(kills), str(in_saves), end


def measured_pattern(pattern: Pattern) -> tuple[Pattern, bool]:
    """Whether all tests that hold a pattern pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--timeout", "900", *pattern.tests]
    return pattern, subprocess.run(command, cwd=ROOT, check=False, capture_output=True).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="kills of each example")
    parser.add_argument("--each", type=int, default=20, help="maximum number of kills in one run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples", nargs="+", choices=list(killing.EXAMPLES), default=list(killing.EXAMPLES))
    parser.add_argument(
        "--scripts",
        nargs="*",
        choices=list(BY_NAME),
        default=list(BY_NAME),
        help="training scripts to test, written as people write them",
    )
    parser.add_argument("--no-patterns", action="store_true", help="leave out the matrix of patterns")
    parser.add_argument("--together", type=int, default=2, help="examples that run at the same time")
    parser.add_argument("--folder", type=Path, help="keep logs and checkpoints there")
    options = parser.parse_args()
    console = Console(width=130)
    with tempfile.TemporaryDirectory(prefix="exactness-") as temporary:
        folder = options.folder or Path(temporary)
        with ThreadPoolExecutor(options.together) as pool:
            asked = [
                pool.submit(measured, name, folder, options.kills, options.seed, options.each)
                for name in options.examples
            ]
            scripts = [pool.submit(measured_script, BY_NAME[name], folder) for name in options.scripts]
            matrix = list(pool.map(measured_pattern, () if options.no_patterns else PATTERNS))
            outcomes = [future.result() for future in asked]
            ends = [future.result() for future in scripts]
    table = Table(
        "example", "kills", "in a step", "in a save", "before a step", "damaged", "refused", "runs", "the end"
    )
    for outcome in outcomes:
        table.add_row(*row(outcome))
    console.print(table)
    written = Table("script", "contents", "lines added", "kills", "in a save", "the end")
    for script, _, end in ends:
        written.add_row(*script_row(script, end))
    console.print(written)
    patterns = Table("pattern", "after a kill")
    for pattern, holds in matrix:
        what, end = pattern.row
        patterns.add_row(escape(what), f"[green]{escape(end)}[/]" if holds else "[red]its tests fail[/]")
    if matrix:
        console.print(patterns)
    kept = {script.name: same for script, same, _ in ends}
    held = {pattern.what: holds for pattern, holds in matrix}
    results = list(map(recorded, outcomes))
    harness.write("exactness", {"seed": options.seed, "results": results, "scripts": kept, "patterns": held})
    return 0 if all(outcome.is_exact for outcome in outcomes) and all((*kept.values(), *held.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
