"""Each script of the corpus is killed and compared, or has its loss named, as its entry says: some of each framework in
every run, all of them each night."""

from collections.abc import Callable

import pytest

from tests.training_code.corpus import MINIMAL, Entry, exact_cases, id_of
from tests.training_code.judge import Verdict
from tests.training_code.starter import Framework

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(("entry", "kills"), exact_cases(Framework.NUMPY, Framework.TENSORFLOW, Framework.JAX))
def test_killed_script_ends_with_the_same_bits_and_nothing_is_named(
    entry: Entry, kills: int, judged: Callable[..., Verdict]
) -> None:
    verdict = judged(entry, kills)

    assert verdict.problem(entry) == ""
    assert verdict.kills >= 2


@pytest.mark.parametrize("entry", [entry for entry in MINIMAL if entry.framework != Framework.TORCH], ids=id_of)
def test_what_a_restart_would_lose_is_said_in_the_first_steps(entry: Entry, judged: Callable[..., Verdict]) -> None:
    assert judged(entry).problem(entry) == ""
