"""How many cases a test that feeds a parser is run with: few in the suite, FUZZ_CASES where somebody asks for more."""

import os
from typing import Any

from hypothesis import settings

CASES = int(os.environ.get("FUZZ_CASES", "0"))
"""0: as many as each test says."""
QUICK = "QUICK" in os.environ
"""`make quick` sets it: a tenth of the cases, for every edit; `make check` and `make test` run all."""


def cases(few: int, **other: Any) -> settings:
    """The settings of a test that feeds a parser; `few`: cases in the suite, enough to notice a broken parser."""
    return settings(max_examples=CASES or (max(few // 10, 5) if QUICK else few), derandomize=not CASES, **other)
