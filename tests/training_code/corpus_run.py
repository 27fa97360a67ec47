"""Runs the corpus and prints what disagrees: `python -m tests.training_code.corpus_run [--loses] [NAME...]`."""

import collections
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.peer import NotInstalled
from tests.training_code import judge
from tests.training_code.corpus import CORPUS, Entry, Outcome
from tests.training_code.judge import Verdict
from tests.training_code.starter import Framework, Starter

LANES = 2


def main() -> None:
    arguments = sys.argv[1:]
    also_loses = "--loses" in arguments
    names = [each for each in arguments if not each.startswith("--")]
    waiting = collections.deque(
        sorted(
            (each for each in CORPUS if not names or any(name in str(each.script) for name in names)),
            key=lambda entry: list(Framework).index(entry.framework),
            reverse=True,
        )
    )
    verdicts: dict[Entry, tuple[Verdict, str, float]] = {}
    began = time.monotonic()

    def lane(number: int) -> None:
        starters: dict[Framework, Starter] = {}
        with tempfile.TemporaryDirectory(prefix="corpus-") as text:
            while waiting:
                entry = waiting.popleft() if number == 0 else waiting.pop()
                started = time.monotonic()
                folder = Path(text) / f"{entry.outcome}-{entry.name}"
                try:
                    if entry.framework not in starters:
                        starters[entry.framework] = Starter(entry.framework)
                    starter = starters[entry.framework]
                    verdict = judge.judge(entry, starter, folder)
                    lost = ""
                    if also_loses and entry.outcome == Outcome.NAMED:
                        lost = judge.compare(
                            entry, starters[entry.framework], Path(text) / f"loses-{entry.name}"
                        ).detail
                except (TimeoutError, NotInstalled) as error:
                    verdict, lost = Verdict(type(error).__name__, detail=str(error)), ""
                verdicts[entry] = (verdict, lost, time.monotonic() - started)
                print(
                    f"{entry.script.parent.name}/{entry.name}: {verdict.problem(entry) or verdict.outcome}"[:300],
                    flush=True,
                )
            for each in starters.values():
                each.__exit__(None, None, None)

    lanes = [threading.Thread(target=lane, args=(number,)) for number in range(LANES)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    report(verdicts, also_loses)
    print(f"{time.monotonic() - began:.0f} s")


def report(verdicts: dict[Entry, tuple[Verdict, str, float]], also_loses: bool) -> None:
    """Prints what disagrees, false names first, then the counts."""
    false_names, wrong, fine = [], [], collections.Counter[str]()
    totals = collections.Counter(str(entry.outcome) for entry in verdicts)
    for entry, (verdict, lost, _) in sorted(verdicts.items(), key=lambda item: (item[0].outcome, item[0].name)):
        where = f"{entry.script.parent.name}/{entry.name}"
        if entry.outcome == Outcome.EXACT and verdict.remarks:
            false_names += [f"{where}: {remark}" for remark in verdict.remarks]
        if problem := verdict.problem(entry):
            said = " ".join(problem.split())
            wrong.append(
                f"{where}: expected {entry.outcome} {entry.said!r}, got {said[:200]} … {said[-600:]}"
                if len(said) > 800
                else f"{where}: expected {entry.outcome} {entry.said!r}, got {said}"
            )
        else:
            fine[str(entry.outcome)] += 1
        if also_loses and entry.outcome == Outcome.NAMED:
            print(f"{where} loses: {lost or 'NOTHING'}")
    print(f"\nFALSE NAMES ({len(false_names)})", *false_names, sep="\n  ")
    print(f"\nDISAGREE ({len(wrong)})", *wrong, sep="\n  ")
    print("\n" + ", ".join(f"{name} {fine[name]} of {total}" for name, total in totals.items()))
    slow = sorted(verdicts.items(), key=lambda item: -item[1][2])[:6]
    print("slowest:", ", ".join(f"{entry.name} {took:.1f} s" for entry, (_, _, took) in slow))


if __name__ == "__main__":
    main()
