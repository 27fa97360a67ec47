"""Numbers that a job's user wrote into a checkpoint are shown, however wrong they are, and texts in every locale."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.ctl import render
from supervisor.protocol.printable import printable
from tests.ctl.conftest import CTL
from tests.ctl.daemon_end import program
from tests.fuzzing import cases

NUMBERS = st.none() | st.floats() | st.sampled_from([1e300, -1e300, 1e18, -1.0, float("nan"), float("inf")])


@pytest.mark.fuzz
@cases(300)
@given(NUMBERS, st.none() | st.integers(-1, 1 << 70), st.text(max_size=40))
def test_any_time_size_and_text_is_shown_in_one_line(wall: float | None, size: int | None, text: str) -> None:
    shown = [render.moment(wall), render.age(wall, 1.7e9), render.span(wall), render.size(size), printable(text)]

    for line in shown:
        assert "\x1b" not in line
    assert all(len(line) < 40 for line in shown[:3])


def test_a_time_that_no_calendar_has_is_unknown() -> None:
    assert render.moment(1e300) == render.age(-1e300, 1.7e9) == "unknown"


@pytest.mark.integration
@pytest.mark.parametrize(("action", "shown"), [("status", "gr\\xf6\\xdfe"), ("tail größe", "M\\u2026")])
def test_text_that_the_locale_lacks_is_printed_as_an_escape(daemon, action: str, shown: str) -> None:
    daemon.answers["status"] = {"programs": [program("größe"), program("last")], "ledger_error": None}
    daemon.logs["größe", "stdout"] = "M…\n".encode()
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}

    done = subprocess.run([*CTL, "-s", daemon.url, *action.split()], env=ascii_only, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert shown.encode() in done.stdout
    assert (b"last" in done.stdout) == (action == "status")
