"""Scripts made by chance are killed: each ends with the bits of an undisturbed run, or what it loses is named."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.training_code import judge
from tests.training_code.corpus import Entry, Outcome
from tests.training_code.random_loops import generate
from tests.training_code.starter import Framework, Starters

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
KILLS = 3


@dataclass(frozen=True)
class Generated(Entry):
    """A script that is no file of the corpus."""

    folder: Path = Path()

    @property
    def script(self) -> Path:
        return self.folder / f"{self.name}.py"


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 300))]
)
def test_nothing_is_lost_without_a_word(seed: int, starters: Starters, tmp_path: Path) -> None:
    entry = Generated(f"loop_{seed}", Framework.NUMPY, "", Outcome.EXACT, folder=tmp_path)
    entry.script.write_text(generate(seed).text)

    verdict = judge.compare(entry, starters.of(entry.framework), tmp_path / "runs", KILLS)

    assert verdict.outcome in (Outcome.EXACT, "other bits"), verdict.detail
    assert verdict.outcome == Outcome.EXACT or verdict.remarks, f"{generate(seed).kinds}: {verdict.detail}"
