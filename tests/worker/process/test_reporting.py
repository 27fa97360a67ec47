"""Messages for people reach stderr, and a stderr that nobody reads does no harm."""

import io
import os
import sys

import pytest

from worker.process.reporting import print_message


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def broken() -> io.TextIOWrapper:
    reading, writing = os.pipe()
    os.close(reading)
    return io.TextIOWrapper(io.FileIO(writing, "w"), line_buffering=True)


def test_message_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]):
    print_message("saved")

    assert capsys.readouterr().err == "stepkeeper: saved\n"


@pytest.mark.parametrize("stream", [lambda: None, closed, broken])
def test_unread_stderr_does_no_harm(stream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", stream())

    print_message("saved")
