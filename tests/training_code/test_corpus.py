"""Each script of the corpus is killed and compared, or has its loss named, as its entry says."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.peer import NotInstalled
from tests.training_code import corpus_page, judge, proving
from tests.training_code.corpus import CORPUS, EXACT, EXACT_SCRIPTS, MINIMAL, MINIMAL_SCRIPTS, Entry
from tests.training_code.starter import Framework, Starter

LEAST = 30
"""Scripts of each kind."""


class Starters:
    """One process for each framework, started at its first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[Framework, Starter] = {}

    def of(self, framework: Framework) -> Starter:
        """The framework's; skips the test if it is not installed."""
        if framework not in self._started:
            try:
                self._started[framework] = self._stack.enter_context(Starter(framework))
            except NotInstalled as error:
                pytest.skip(str(error))
        return self._started[framework]


@pytest.fixture(scope="module")
def starters() -> Iterator[Starters]:
    with ExitStack() as stack:
        yield Starters(stack)


def _named(entry: Entry) -> str:
    return f"{entry.outcome}-{entry.name}"


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", EXACT, ids=_named)
def test_killed_script_ends_with_the_same_bits_and_nothing_is_named(
    entry: Entry, starters: Starters, tmp_path: Path
) -> None:
    verdict = judge.judge(entry, starters.of(entry.framework), tmp_path / "script")

    assert verdict.problem(entry) == ""
    assert verdict.kills >= 2


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", MINIMAL, ids=_named)
def test_what_a_restart_would_lose_is_said_in_the_first_steps(entry: Entry, starters: Starters, tmp_path: Path) -> None:
    verdict = judge.judge(entry, starters.of(entry.framework), tmp_path / "script")

    assert verdict.problem(entry) == ""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("entry", proving.PROVED, ids=_named)
def test_a_proof_of_the_script_says_the_same(entry: Entry, tmp_path: Path) -> None:
    try:
        status, said = proving.prove(entry, tmp_path / "proof")
    except NotInstalled as error:
        pytest.skip(str(error))

    assert status == 0, said


def test_each_script_has_an_entry() -> None:
    assert {entry.script for entry in CORPUS} == {*EXACT_SCRIPTS.glob("*.py"), *MINIMAL_SCRIPTS.glob("*.py")}
    assert len(EXACT) >= LEAST
    assert len(MINIMAL) >= LEAST


def test_the_documented_page_is_that_of_the_corpus() -> None:
    assert corpus_page.PAGE.read_text() == corpus_page.page(), (
        "write it again: python -m tests.training_code.corpus_page"
    )
