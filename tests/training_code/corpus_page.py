"""Writes docs/patterns.md from its tables: `python -m tests.training_code.corpus_page`."""

from tests.places import ROOT
from tests.training_code import rig
from tests.training_code.corpus import EXACT, MINIMAL, Entry, Outcome
from tests.training_code.patterns import PATTERNS
from tests.training_code.scripts import SCRIPTS

PAGE = ROOT / "docs" / "patterns.md"
_HEAD = """\
# Patterns of training code

What becomes of training code as people write it: what is exact after a kill, what is named or refused at its start,
and what to write instead. Tests hold every row, under `deterministic` where bits are compared; the page is made from
their tables.

## Patterns

Jobs are killed, or broken off, at random steps, at the first step, at the last step of an epoch, in its tail and
inside of saves. *Named* is at the first step and trains on, *refused* is before the second. `make bench-exactness`
runs these tests and prints the table.

| what people write | after a kill |
|---|---|
"""
_SCRIPTS_HEAD = """
## Tutorials

{scripts} scripts have the structure of their frameworks' tutorials (`tests/training_code/resumable`, with a patch
beside each that shows what stepkeeper added). Each is killed four or five times: in its first step, in the middle of an
epoch, in what follows an epoch's last step, just after a save, and once inside of one (its files are written, its
folder has no name yet). Each ends with the bits of an undisturbed run.

| script | what is in it | lines added |
|---|---|---|
"""
_CORPUS_HEAD = """
The last three use training code of packages from PyPI as it is
([loops of libraries](exact-resume.md#loops-of-libraries)).

## Short scripts

{minimal} scripts in the shapes of tutorials and repositories (`tests/training_code/minimal`) have no more than
`with worker.Run(...) as run:` around their loop and `run.step_done()` in it. Each has something that a restart would
lose. The worker says what it is before the third step ends and trains on, or refuses to train; with `strict = true`
training ends there. A loss at the end of an epoch is named one step after it.

{exact} scripts (`tests/training_code/exact`) are written as [exact-resume.md](exact-resume.md) says: those of the first
kind with their remedy, and others. Each is killed three or four times: in its first step, in a save, and at lines of
its loop that a seed chooses. It ends with the bits of an undisturbed run, in each file of its last checkpoint, and
prints the same result; the worker names nothing in any attempt, also under `strict = true`. *Lines* counts those that
mention the run, `worker` or `leave_out`, the import included.
`python -m tests.training_code.corpus_run` runs all of them and prints what disagrees.

| what is in the script | what is said contains | remedy | script | lines |
|---|---|---|---|---|
"""
_OTHERS_HEAD = """
Exact too, with nothing that had to be named:

| what is in the script | script | lines |
|---|---|---|
"""


def page() -> str:
    """The page's whole text."""
    remedies = {entry.name: entry for entry in EXACT}
    named = {entry.name for entry in MINIMAL}
    return "".join(
        [
            _HEAD,
            *(_row(*pattern.row) for pattern in PATTERNS),
            _SCRIPTS_HEAD.format(scripts=len(SCRIPTS)),
            *(_row(script.name, script.patterns, str(len(rig.added_lines(script.name)))) for script in SCRIPTS),
            _CORPUS_HEAD.format(minimal=len(MINIMAL), exact=len(EXACT)),
            *(corpus_row(entry, remedies.get(entry.name)) for entry in MINIMAL),
            _OTHERS_HEAD,
            *(_row(entry.pattern, entry.name, str(entry.lines)) for entry in EXACT if entry.name not in named),
        ]
    )


def corpus_row(minimal: Entry, exact: Entry | None) -> str:
    """What a script loses, what is said of it, and the script of the same name that loses nothing."""
    said = f"`{minimal.said}`{' (refused)' if minimal.outcome == Outcome.REFUSED else ''}"
    remedy = (exact.pattern, exact.name, str(exact.lines)) if exact else ("", minimal.name, "")
    return _row(minimal.pattern, said, *remedy)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
