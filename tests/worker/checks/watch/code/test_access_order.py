"""Watching one step leaves nothing behind that traces."""

import sys
from typing import Any

import pytest

from worker.checks.watch.code.access_order import AccessOrder


def trace_of_a_debugger(*_: Any) -> None:
    """Traces no line."""


@pytest.mark.parametrize("is_first_ended_first", [True, False], ids=["first", "last"])
def test_of_two_watches_each_may_end_first(is_first_ended_first: bool) -> None:
    before = sys.gettrace()
    sys.settrace(trace_of_a_debugger)
    try:
        watches = [AccessOrder({"loss"}, ()) for _ in range(2)]
        for watch in watches:
            watch.begin([])

        for watch in watches if is_first_ended_first else reversed(watches):
            watch.end()
        (lambda: None)()  # a watch that was put back takes itself away at the next call

        assert sys.gettrace() is trace_of_a_debugger
    finally:
        sys.settrace(before)
