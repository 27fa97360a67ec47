"""A prefix before each line of a log, wherever the pieces are cut."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.logs.capture import LogCapture, Tee
from supervisor.host.logs.log_input import LinePrefix
from tests.waiting import wait_until


@given(st.lists(st.binary(max_size=8).map(lambda piece: piece.replace(b"\r", b"\n"))))
def test_every_line_has_one_and_no_byte_is_lost(pieces: list[bytes]):
    prefix = LinePrefix("{program}[{attempt}] {channel}", "x", 3, "stdout")

    written = b"".join(map(prefix.add_to, pieces))

    lines = b"".join(pieces).split(b"\n")
    last = lines.pop()
    expected = b"".join(b"x[3] stdout %b\n" % line for line in lines) + (b"x[3] stdout " + last if last else b"")
    assert written == expected


def test_a_programs_name_is_no_template():
    assert LinePrefix("{program}", "{time}{attempt}", 1, "stdout").add_to(b"a\n") == b"{time}{attempt} a\n"


def test_the_time_has_milliseconds_and_a_zone():
    written = LinePrefix("{time}", "x", 1, "stdout").add_to(b"a\nb\n")

    assert re.fullmatch(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d) a\n\1 b\n", written)


@pytest.mark.integration
def test_the_logger_writes_it(tmp_path: Path):
    (tmp_path / "state").mkdir()
    logs = LogCapture(tmp_path / "state")
    logs.start()
    pipe = logs.open_pipe(tmp_path / "x.log", 0, 0, Tee("g:x", 2, "stderr", prefix="{program} {channel}:"))
    os.write(pipe, b"\xff one\ntwo")
    os.close(pipe)
    wait_until(lambda: (tmp_path / "x.log").exists() and b"two" in (tmp_path / "x.log").read_bytes(), "it is written")
    logs.close()

    assert (tmp_path / "x.log").read_bytes() == b"g:x stderr: \xff one\ng:x stderr: two"
