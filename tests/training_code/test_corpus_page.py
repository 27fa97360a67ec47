"""The corpus is complete, and the page of the documentation is made from it."""

from tests.training_code import corpus_page
from tests.training_code.corpus import CORPUS, EXACT, EXACT_SCRIPTS, MINIMAL, MINIMAL_SCRIPTS

LEAST = 30
"""Scripts of each kind."""


def test_each_script_has_an_entry() -> None:
    assert {entry.script for entry in CORPUS} == {*EXACT_SCRIPTS.glob("*.py"), *MINIMAL_SCRIPTS.glob("*.py")}
    assert len(EXACT) >= LEAST
    assert len(MINIMAL) >= LEAST


def test_the_documented_page_is_that_of_the_corpus() -> None:
    assert corpus_page.PAGE.read_text() == corpus_page.page(), "write it: python -m tests.training_code.corpus_page"
