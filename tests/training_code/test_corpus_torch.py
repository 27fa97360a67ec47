"""Each script of the corpus that uses PyTorch is killed and compared, or has its loss named: in a file of its own, so
that two files run side by side."""

from collections.abc import Callable

import pytest

from tests.training_code.corpus import EXACT, MINIMAL, Entry, id_of, is_in_every_run
from tests.training_code.judge import Verdict
from tests.training_code.starter import Framework

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, marks=() if is_in_every_run(entry) else pytest.mark.nightly)
        for entry in EXACT
        if entry.framework == Framework.TORCH
    ],
    ids=id_of,
)
def test_killed_script_ends_with_the_same_bits_and_nothing_is_named(
    entry: Entry, judged: Callable[[Entry], Verdict]
) -> None:
    verdict = judged(entry)

    assert verdict.problem(entry) == ""
    assert verdict.kills >= 2


@pytest.mark.parametrize("entry", [entry for entry in MINIMAL if entry.framework == Framework.TORCH], ids=id_of)
def test_what_a_restart_would_lose_is_said_in_the_first_steps(entry: Entry, judged: Callable[[Entry], Verdict]) -> None:
    assert judged(entry).problem(entry) == ""
