"""The matrix of patterns points to tests that exist, and is the one in the documentation."""

import ast

import pytest

from tests.places import ROOT
from tests.training_code.patterns import PATTERNS, Pattern
from tests.training_code.scripts import SCRIPTS


@pytest.mark.parametrize("pattern", PATTERNS, ids=[each.what[:40] for each in PATTERNS])
def test_each_pattern_is_held_by_tests(pattern: Pattern) -> None:
    for test in pattern.tests:
        file, _, name = test.partition("::")
        name, _, case = name.rstrip("]").partition("[")
        functions = [
            each.name for each in ast.parse((ROOT / file).read_text()).body if isinstance(each, ast.FunctionDef)
        ]

        assert name in functions, test
        assert not case or case in [each.name for each in SCRIPTS], test


def test_the_documented_matrix_is_this_one() -> None:
    page = (ROOT / "docs" / "exact-resume.md").read_text()

    assert [each.what for each in PATTERNS if f"| {' | '.join(each.row)} |" not in page] == []
