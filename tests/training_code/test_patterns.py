"""The matrix of patterns points to tests that exist; test_corpus_page.py holds docs/patterns.md to it."""

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
        assert not case or case in [script.name for script in SCRIPTS], test
