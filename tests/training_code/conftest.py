"""What the tests of the corpus share: a starter for each framework, and the judgement of a script."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import judge
from tests.training_code.corpus import ALL_KILLS, Entry
from tests.training_code.judge import Verdict
from tests.training_code.starter import Starters


@pytest.fixture(scope="module")
def starters() -> Starters:
    return Starters()


@pytest.fixture
def judged(starters: Starters, tmp_path: Path) -> Callable[..., Verdict]:
    """Judges a script; skips the test if its framework is not installed."""

    def judged(entry: Entry, kills: int = ALL_KILLS) -> Verdict:
        try:
            return judge.judge(entry, starters.of(entry.framework), tmp_path / "script", kills)
        except NotInstalled as error:
            pytest.skip(str(error))

    return judged
