"""Wherever an action takes a number, a bad one is said in a line; the daemon does not hear of it."""

from collections.abc import Callable

import pytest

from tests.ctl.conftest import Result
from tests.ctl.daemon_end import DaemonEnd

BAD = ["", "nan", "inf", "-1", "1e400", "9" * 5000, "٣"]
PLACES: dict[str, tuple[str, ...]] = {
    "drill": ("drill", "digits", "--in"),
    "history": ("history", "digits", "-{}"),
    "maintail": ("maintail", "-{}"),
    "page": ("page", "--port"),
    "prove epochs": ("prove", "digits", "--epochs"),
    "prove kills": ("prove", "digits", "--kills"),
    "prove steps": ("prove", "digits", "--steps"),
    "start": ("start", "digits", "--from-step"),
    "tail": ("tail", "digits", "-{}"),
    "tail attempt": ("tail", "digits", "--attempt"),
    "timeline": ("timeline", "digits", "-{}"),
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:5] or "empty")
@pytest.mark.parametrize("place", PLACES)
def test_bad_number_is_said(place: str, text: str, ctl: Callable[..., Result], daemon: DaemonEnd) -> None:
    *words, last = PLACES[place]
    result = ctl(*words, *([last.format(text)] if "{}" in last else [last, text]))

    assert result.status != 0
    assert "Error: " in result.out + result.err
    assert not daemon.asked
