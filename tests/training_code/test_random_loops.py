"""Scripts made by chance are killed: each ends with the bits of an undisturbed run, or what it loses is named."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.training_code import judge
from tests.training_code.corpus import Entry, Outcome
from tests.training_code.random_loops import NUMPY, TENSORFLOW, Kind, carrying, generate
from tests.training_code.starter import Framework, Starters

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
KILLS = 3
FLAVOURS = {Framework.NUMPY: NUMPY, Framework.TENSORFLOW: TENSORFLOW}


@dataclass(frozen=True)
class Generated(Entry):
    """A script that is no file of the corpus."""

    folder: Path = Path()

    @property
    def script(self) -> Path:
        return self.folder / f"{self.name}.py"


def seeds(in_the_suite: int, framework: Framework, nightly: int) -> list[Any]:
    return [
        pytest.param(framework, seed, marks=[pytest.mark.nightly] if seed >= in_the_suite else [])
        for seed in range(nightly)
    ]


@pytest.mark.parametrize(("framework", "seed"), [*seeds(3, Framework.NUMPY, 300), *seeds(2, Framework.TENSORFLOW, 150)])
def test_nothing_is_lost_without_a_word(framework: Framework, seed: int, starters: Starters, tmp_path: Path) -> None:
    entry = Generated(f"loop_{seed}", framework, "", Outcome.EXACT, folder=tmp_path)
    script = generate(seed, FLAVOURS[framework])
    entry.script.write_text(script.text)

    verdict = judge.compare(entry, starters.of(entry.framework), tmp_path / "runs", KILLS)

    assert verdict.outcome in (Outcome.EXACT, "other bits"), verdict.detail
    assert verdict.outcome == Outcome.EXACT or verdict.remarks, f"{script.kinds}: {verdict.detail}"


SAID = {
    "closure": r"\bn \(", "callback of a package": r"\bn \(", "list in a closure": r"\bseen \(",
    "setting of the optimizer": r"\.momentum",
    **dict.fromkeys(("iterator of a dataset", "shuffled iterator", "iterator for NumPy"), "the iterator of"),
}  # fmt: skip
"""What is named of a kind, as a pattern, where it is not the name that the script gives it."""
EXACT = frozenset({
    "global Random", "global generator of NumPy", "random operation", "seeded random operation",  # checkpoints have it
    # each step sets these before it reads them:
    "text of an object", "number or none of an object", "member of an enumeration in an object",
    "function of an object", "weights taken aside",
})  # fmt: skip
LATER = frozenset({"attribute until it is known", "flag and mean"})
"""The restart names it, which finds that its first pass has set it otherwise."""
AT_ONCE = 10


def kinds_of(framework: Framework, kinds: Sequence[Kind]) -> list[Any]:
    return [pytest.param(framework, kinds[at : at + AT_ONCE]) for at in range(0, len(kinds), AT_ONCE)]


@pytest.mark.parametrize(
    ("framework", "kinds"),
    [*kinds_of(Framework.NUMPY, NUMPY.kinds), *kinds_of(Framework.TENSORFLOW, TENSORFLOW.own_kinds)],
)
def test_whatever_each_step_changes_is_named_in_the_first_attempt(
    framework: Framework, kinds: Sequence[Kind], starters: Starters, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(carrying(kinds, FLAVOURS[framework]).text)

    ended = starters.of(framework).start(script, tmp_path)

    assert ended.status == 0, ended.stderr
    said = "\n".join(judge.remarks_of(ended))
    names = {kind.name: SAID.get(kind.name, rf"\bcarried_{number}(?!\d)") for number, kind in enumerate(kinds)}
    named = {kind for kind, name in names.items() if re.search(name, said)}
    assert named == names.keys() - EXACT - LATER
