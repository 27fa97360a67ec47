"""Remarks reach stderr, and a stderr that nobody reads ends nothing."""

import io
import os
import sys

import pytest

from worker.process.user_messages import print_message


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def broken() -> io.TextIOWrapper:
    reading, writing = os.pipe()
    os.close(reading)
    return io.TextIOWrapper(io.FileIO(writing, "w"), line_buffering=True)


def test_a_remark_is_one_line(capsys: pytest.CaptureFixture[str]):
    print_message("saved")

    assert capsys.readouterr().err == "stepkeeper: saved\n"


@pytest.mark.parametrize("stream", [lambda: None, closed, broken])
def test_a_stderr_that_nobody_reads_ends_nothing(stream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", stream())

    print_message("saved")
