"""Scripts made by chance are killed: each ends with the bits of an undisturbed run, or what it loses is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.training_code import judge
from tests.training_code.corpus import Entry, Outcome
from tests.training_code.random_loops import NUMPY, TENSORFLOW, generate
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
