"""Runs what takes hours, and keeps what came of it: `python -m tests.nightly [--last] [PART...]`.

Each part is a command; one that fails keeps none of the others from running. When each ran last, on which commit and
what failed is kept in the user's cache, and printed before and after; `--last` prints it and runs nothing. The exit
status is 0 if every part passed on the commit that is checked out and nothing in the tree is changed, which a release
needs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.places import ROOT

HERE = ("-m", "pytest", "-q", "-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
PARTS: dict[str, tuple[str, ...]] = {
    "tests": HERE,
    "fuzz": (*HERE, "--timeout=0", "-m", "fuzz"),
    "coverage": ("-m", "tests.coverage_gate"),
    "tensorflow": ("-m", "tests.tensorflow_range"),
    "exactness": ("-m", "bench.exactness"),
    "soak": ("-m", "bench.soak", "--minutes", "60"),
}
"""What Python is started with. `tests`: all of them, also those marked `nightly`."""
FUZZ_CASES = "1000"
"""For each parser; `make fuzz` gives them more."""
CHANGED = "+"


@dataclass(frozen=True)
class Result:
    """How a part ended last. `commit`: with `CHANGED` if the tree was changed. `ended_at`: Unix time."""

    commit: str
    ended_at: float
    took_s: float
    status: int

    def text(self) -> str:
        """In words."""
        end = "passed" if self.status == 0 else f"failed with {self.status}"
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.ended_at))
        return (
            f"{end} on {self.commit[:12]}{CHANGED * self.commit.endswith(CHANGED)}, {day}, {self.took_s / 60:.0f} min"
        )


class Nightly:
    """The parts, in a checkout, and what is kept of them."""

    def __init__(self, parts: Mapping[str, Sequence[str]], checkout: Path, record: Path) -> None:
        self._parts = parts
        self._checkout = checkout
        self._record = record

    def run(self, part: str) -> None:
        """Runs a part to its end, with its output here, and keeps how it ended at once: a night may be cut short."""
        print(f"nightly {part}: begins", flush=True)
        began_at, commit = time.time(), self.commit()
        environment = {**os.environ, "FUZZ_CASES": FUZZ_CASES} if part == "fuzz" else None
        command = [sys.executable, *self._parts[part]]
        status = subprocess.run(command, cwd=self._checkout, env=environment, check=False).returncode
        results = {**self._results(), part: Result(commit, time.time(), time.time() - began_at, status)}
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._record.write_text(json.dumps({name: asdict(result) for name, result in results.items()}, indent=1))

    def show(self) -> bool:
        """Prints the last result of each part; whether all passed on what is checked out, with nothing changed."""
        results, commit = self._results(), self.commit()
        for part in self._parts:
            print(f"nightly {part}: {results[part].text() if part in results else 'never ran'}")
        passed = [part for part, result in results.items() if result.status == 0 and result.commit == commit]
        whole = not commit.endswith(CHANGED) and set(self._parts) <= set(passed)
        print(f"nightly: {commit[:12]} {'has passed whole' if whole else 'has not passed whole'}", flush=True)
        return whole

    def commit(self) -> str:
        """What is checked out, with `CHANGED` if the tree differs from it."""

        def git(*arguments: str) -> str:
            command = ["git", *arguments]
            return subprocess.run(
                command, cwd=self._checkout, check=True, capture_output=True, text=True
            ).stdout.strip()

        return git("rev-parse", "HEAD") + CHANGED * bool(git("status", "--porcelain"))

    def _results(self) -> dict[str, Result]:
        kept = json.loads(self._record.read_text()) if self._record.exists() else {}
        return {part: Result(**result) for part, result in kept.items()}


def record_of(checkout: Path) -> Path:
    """Where the results of a checkout are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "stepkeeper" / f"nightly{str(checkout).replace('/', '-')}.json"


def main(arguments: Sequence[str], nightly: Nightly, parts: Collection[str] = PARTS) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--last", action="store_true", help="print how the parts ended last, and run nothing")
    parser.add_argument("part", nargs="*", help=f"only these of {', '.join(parts)}")
    options = parser.parse_args(arguments)
    if unknown := set(options.part) - set(parts):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    has_passed = nightly.show()
    if not options.last:
        for part in options.part or parts:
            nightly.run(part)
        has_passed = nightly.show()
    return 0 if has_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Nightly(PARTS, ROOT, record_of(ROOT))))
