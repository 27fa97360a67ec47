"""Runs the benches, each twice, and writes what they printed into docs/benchmarks.md, with pictures.

Run with `python -m bench.all_benches` (all of them: hours; `saves daemon` picks). The second run says how much a figure
differs on one machine on one day. The page keeps what stands outside of the markers, and the results of other benches.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from bench import harness

PAGE = harness.ROOT / "docs" / "benchmarks.md"
IMAGES = PAGE.parent / "images"
RUNS = 2
BENCHES = {
    "daemon": "--rounds 4 --idle 10",
    "fleet": "--programs 1 400 1000 --rounds 2 --idle 5 --repeats 4 --kills 2",
    "saves": "--sizes 10 100 400 --repeats 8 --kills 0 --no-orbax",
    "restores": "",
    "selections": "",
    "shards": "",
    "preempt": "",
    "relaunch": "",
    "goodput": "",
    "mirror": "--rounds 2",
}
WIDTH = 180  # of the tables that benches print


def measured(name: str, arguments: str) -> tuple[str, dict[str, Any]]:
    """What a bench printed, and the results that it wrote. Raises SystemExit if it failed."""
    command = [sys.executable, "-m", f"bench.{name}", *shlex.split(arguments)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": str(WIDTH)}
    ran = subprocess.run(command, cwd=harness.ROOT, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"bench.{name} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    results: dict[str, Any] = json.loads((harness.RESULTS / f"{name}.json").read_text())
    return ran.stdout, results


def medians(results: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every list of numbers in some results, by its place, as its median."""
    if isinstance(results, dict):
        for key, value in results.items():
            if key != "machine":
                yield from medians(value, (*path, str(key)))
    elif isinstance(results, list):
        numbers = [number for number in results if isinstance(number, int | float) and not isinstance(number, bool)]
        if numbers and len(numbers) == len(results):
            yield path, statistics.median(numbers)
        else:
            for place, value in enumerate(results):
                yield from medians(value, (*path, str(place)))


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """How far apart the medians of two runs are."""
    first, second = dict(medians(one)), dict(medians(other))
    apart = sorted(
        abs(first[place] - second[place]) / max(abs(first[place]), abs(second[place]))
        for place in first.keys() & second.keys()
        if first[place] and second[place]
    )
    if not apart:
        return "The two runs have no series of figures to compare."
    middle, most = 100 * statistics.median(apart), 100 * apart[-1]
    return f"Of {len(apart)} medians in two runs, half differ by less than {middle:.0f} %, the worst by {most:.0f} %."


def block(name: str, arguments: str, printed: str, runs: list[dict[str, Any]], picture: str | None) -> str:
    """The part of the page about one bench. `picture`: its file, below the page's folder."""
    command = f"python -m bench.{name} {arguments}".strip()
    lines = [line.rstrip() for line in printed.splitlines() if line.strip() and str(harness.ROOT) not in line]
    machine = harness.describe(runs[-1]["machine"])
    tables = "\n".join(line for line in lines if line != machine)
    day = datetime.now(UTC).date()
    shown = f"![{name}: medians of each run as bars, all values as dots]({picture})\n\n" if picture else ""
    return (
        f"<!-- {name}: begin -->\n### {name}\n\n`{command}` on {day}: {machine}. {difference(*runs)}\n\n{shown}"
        f"```text\n{tables}\n```\n<!-- {name}: end -->\n"
    )


def with_block(page: str, name: str, text: str) -> str:
    """The page with this part in place of the one before, or at its end."""
    present = re.compile(rf"<!-- {re.escape(name)}: begin -->.*?<!-- {re.escape(name)}: end -->\n", re.DOTALL)
    if present.search(page):
        return present.sub(lambda _: text, page)
    return f"{page.rstrip()}\n\n{text}"


def main() -> None:
    from bench import pictures  # brings matplotlib, which takes a second and the functions above do without

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("benches", nargs="*", metavar="BENCH", help=f"of {', '.join(BENCHES)}; default: all")
    names = parser.parse_args().benches or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    for name in names:
        printed, runs = "", []
        for number in range(RUNS):
            print(f"{name}, run {number + 1} of {RUNS}", flush=True)
            printed, results = measured(name, BENCHES[name])
            runs.append(results)
        path = IMAGES / f"bench-{name}.svg"
        picture = str(path.relative_to(PAGE.parent)) if pictures.draw(name, runs, path) else None
        PAGE.write_text(with_block(PAGE.read_text(), name, block(name, BENCHES[name], printed, runs, picture)))


if __name__ == "__main__":
    main()
