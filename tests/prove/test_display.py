"""How far a proof is, in lines."""

import pytest

from supervisor.prove import display
from supervisor.prove.following import RunProgress


@pytest.mark.parametrize("lines", [display.plain_lines, display.json_lines])
def test_a_line_is_printed_only_if_it_says_something_new(lines, monkeypatch, capsys):
    monkeypatch.setattr(display, "LINE_S", 0.0)
    monkeypatch.setattr(display, "JSON_S", 0.0)
    shown = lines()

    for step in (0, 0, 0, 7, 7, 8):
        shown.show(RunProgress("undisturbed", step, None, "STARTING"))

    out, err = capsys.readouterr()
    assert len((out + err).splitlines()) == 3
