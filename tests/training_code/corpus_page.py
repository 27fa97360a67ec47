"""Writes docs/patterns.md from its tables: `python -m tests.training_code.corpus_page`."""

from tests.places import ROOT
from tests.training_code import rig
from tests.training_code.corpus import EXACT, MINIMAL, Entry
from tests.training_code.patterns import PATTERNS
from tests.training_code.scripts import SCRIPTS

PAGE = ROOT / "docs" / "patterns.md"
_HEAD = """\
# Patterns of training code

What of training code as people write it is exact after a kill, what is named or refused, and what to write instead.
Tests hold every row (`make bench-exactness`), under `deterministic` where bits are compared.

## Patterns

Jobs are killed at random steps, at the first, at the last of an epoch, in its tail and in saves. *Named* is at the
first step and trains on, *refused* is before the second.

| what people write | after a kill |
|---|---|
"""
_SCRIPTS_HEAD = """
## Tutorials

{scripts} scripts have the structure of their frameworks' tutorials (`tests/training_code/resumable`, each with a
patch of the {least} to {most} lines that stepkeeper added): TensorFlow, Keras, TF1, PyTorch, Ignite, accelerate and
KerasRS. Each is killed in its first step, in an epoch, in its tail, and after and inside of a save, and ends with the
bits of an undisturbed run.
"""
_CORPUS_HEAD = """
## Short scripts

{minimal} scripts (`tests/training_code/minimal`) have no more than `with worker.Run(...) as run:` around their loop
and `run.step_done()` in it. Each loses something at a restart, which the worker names or refuses before the third
step ends (or one step after the end of the epoch that loses it).

{exact} scripts (`tests/training_code/exact`) are the same with their remedy, and others; {least} to {most} lines of
each mention the run, `worker` or `leave_out`. Each is killed three or four times, and ends with the bits and the
output of an undisturbed run; the worker names nothing.

| what is in the script | remedy | script |
|---|---|---|
"""


def page() -> str:
    """The page's whole text."""
    added, lines = [len(rig.added_lines(script.name)) for script in SCRIPTS], [entry.lines for entry in EXACT]
    remedies = {entry.name: entry for entry in EXACT}
    return "".join(
        [
            _HEAD,
            *(_row(*pattern.row) for pattern in PATTERNS),
            _SCRIPTS_HEAD.format(scripts=len(SCRIPTS), least=min(added), most=max(added)),
            _CORPUS_HEAD.format(minimal=len(MINIMAL), exact=len(EXACT), least=min(lines), most=max(lines)),
            *(corpus_row(entry, remedies.get(entry.name)) for entry in MINIMAL),
        ]
    )


def corpus_row(minimal: Entry, exact: Entry | None) -> str:
    """What a script loses, what to write instead, and the script of the same name that loses nothing."""
    return _row(minimal.pattern, *((exact.pattern, exact.name) if exact else ("", minimal.name)))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
