"""Writes docs/patterns.md from the corpus: `python -m tests.training_code.corpus_page`."""

from tests.places import ROOT
from tests.training_code.corpus import EXACT, MINIMAL, Entry, Outcome
from tests.training_code.starter import Framework

PAGE = ROOT / "docs" / "patterns.md"
_HEAD = """\
# Patterns of training code

{scripts} short scripts, in the shapes of tutorials and repositories, are killed and compared by tests. This page is
made from their table (`tests/training_code/corpus.py`). They are in `tests/training_code/minimal` and
`tests/training_code/exact`.

## As their authors would write them

These {minimal} scripts have no more than `with worker.Run(...) as run:` around their loop and `run.step_done()` in it.
Each of them has something that a restart would lose. The worker says what it is before the third step ends, or refuses
to train; with `strict = true` training ends there. A loss at the end of an epoch is named one step after it.

| what is in the script | framework | at the first start | what is said contains |
|---|---|---|---|
"""
_EXACT_HEAD = """
## Made resumable

These {exact} scripts are written as [exact-resume.md](exact-resume.md) says. Each is killed three or four times: in its
first step, in a save, and at lines of its loop that a seed chooses. It ends with the bits of an undisturbed run, in
each file of its last checkpoint, and prints the same result. The worker names nothing in any of its attempts, also
under `strict = true`. Scripts of the first table are among them under the same name, with their remedy. *Lines* counts
those that mention the run, `worker` or `leave_out`, the import included.

| script | what is in it | framework | lines | after each kill |
|---|---|---|---|---|
"""
_TAIL = """
Run all of them, and print what disagrees, with `python -m tests.training_code.corpus_run`.
"""


def page() -> str:
    """The page's whole text."""
    first = "".join(f"{minimal_row(entry)}\n" for entry in MINIMAL)
    second = "".join(f"{exact_row(entry)}\n" for entry in EXACT)
    head = _HEAD.format(scripts=len(MINIMAL) + len(EXACT), minimal=len(MINIMAL))
    return head + first + _EXACT_HEAD.format(exact=len(EXACT)) + second + _TAIL


def minimal_row(entry: Entry) -> str:
    """A script's row among those that lose something."""
    outcome = "refused" if entry.outcome == Outcome.REFUSED else "named"
    return f"| {entry.pattern} | {_framework(entry)} | {outcome} | `{entry.said}` |"


def exact_row(entry: Entry) -> str:
    """A script's row among those that lose nothing."""
    return f"| {entry.name} | {entry.pattern} | {_framework(entry)} | {entry.lines} | equal bits, nothing named |"


def _framework(entry: Entry) -> str:
    return "Keras" if entry.name.startswith("keras") else Framework(entry.framework).value


if __name__ == "__main__":
    PAGE.write_text(page())
