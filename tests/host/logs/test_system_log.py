"""What programs print reaches syslog and the journal, line by line, and neither of them ever makes a program wait."""

import logging
import os
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.logs import syslog
from supervisor.host.logs.capture import LogCapture, Tee
from supervisor.host.logs.inputs import LogInputs
from supervisor.host.logs.messages import CapturePipe, CaptureRefused
from supervisor.host.logs.system_log import LINE_BYTES, LineSplitter
from tests.fuzzing import cases
from tests.host.conftest import PATIENCE_S
from tests.reading import content
from tests.waiting import wait_until

SYSLOG = Tee("web", 3, "stdout", syslog=True)
JOURNAL = Tee("grp:web", 3, "stderr", journal=True)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(path))
        end.settimeout(PATIENCE_S)
        yield end
    path.unlink()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogCapture]:
    made = LogCapture(tmp_path / "state", syslog_at=tmp_path / "log", journal_at=tmp_path / "journal")
    (tmp_path / "state").mkdir()
    made.start()
    yield made
    made.close()


def received(end: socket.socket, count: int) -> list[bytes]:
    return [end.recv(65536) for _ in range(count)]


@pytest.mark.integration
def test_each_line_comes_with_the_program_as_its_identifier_and_the_file_gets_all(logs: LogCapture, tmp_path: Path):
    with listening(tmp_path / "log") as end:
        pipe = logs.open_pipe(tmp_path / "out.log", 0, 0, SYSLOG)
        os.write(pipe, "one\nzwei für\n".encode())
        os.write(pipe, b"thr")
        os.write(pipe, b"ee\r\n\nunfinished")
        os.close(pipe)
        lines = received(end, 4)

    for line, text in zip(lines, ["one", "zwei für", "three", "unfinished"], strict=True):
        assert re.fullmatch(rf"<14>[A-Z][a-z]{{2}} [ 123]\d \d\d:\d\d:\d\d web: {text}", line.decode())
    wait_until(lambda: content(tmp_path / "out.log") == "one\nzwei für\nthree\r\n\nunfinished".encode())


@pytest.mark.integration
def test_without_a_file_there_is_none(logs: LogCapture, tmp_path: Path):
    with listening(tmp_path / "log") as end:
        pipe = logs.open_pipe(None, 0, 0, SYSLOG)
        os.write(pipe, b"only there\n")
        assert end.recv(65536).endswith(b"web: only there")
        os.close(pipe)

    assert {path.name for path in tmp_path.iterdir()} == {"state"}


@pytest.mark.integration
def test_the_journal_gets_fields(logs: LogCapture, tmp_path: Path):
    with listening(tmp_path / "journal") as end:
        pipe = logs.open_pipe(None, 0, 0, JOURNAL)
        os.write(pipe, b"loss = 0.5\n")
        fields = dict(line.split(b"=", 1) for line in end.recv(65536).splitlines())
        os.close(pipe)

    assert fields == {
        b"MESSAGE": b"loss = 0.5",
        b"PRIORITY": b"6",
        b"SYSLOG_IDENTIFIER": b"grp:web",
        b"PROGRAM": b"grp:web",
        b"JOB": b"grp:web",
        b"ATTEMPT": b"3",
        b"STEPKEEPER_STREAM": b"stderr",
    }


@pytest.mark.integration
def test_lines_are_kept_for_a_log_daemon_that_is_down(logs: LogCapture, tmp_path: Path):
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0, SYSLOG)
    os.write(pipe, b"early\n")
    wait_until(lambda: "nobody listens" in logs.failures.get(tmp_path / "log", ""))

    with listening(tmp_path / "log") as end:
        os.write(pipe, b"late\n")
        assert [line.rpartition(b": ")[2] for line in received(end, 2)] == [b"early", b"late"]
        wait_until(lambda: not logs.failures.get(tmp_path / "log"))
        os.close(pipe)


@pytest.mark.integration
def test_log_daemon_that_does_not_read_blocks_nobody_and_dropped_lines_are_counted(logs: LogCapture, tmp_path: Path):
    block = b"x" * 999 + b"\n"
    with listening(tmp_path / "log") as end:
        pipe = logs.open_pipe(None, 0, 0, SYSLOG)
        began_at = time.monotonic()
        for _ in range(5000):  # five times what is kept for it
            os.write(pipe, block)
        took_s = time.monotonic() - began_at
        wait_until(lambda: "does not read" in logs.failures.get(tmp_path / "log", ""))

        lines = []
        wait_until(lambda: lines.append(end.recv(65536)) or b"dropped" in lines[-1])
        os.close(pipe)

    assert took_s < PATIENCE_S
    lost = int(re.findall(rb"dropped (\d+) lines", lines[-1])[0])
    assert 0 < lost < 5000


@pytest.mark.integration
def test_next_logger_goes_on_sending_lines(logs: LogCapture, tmp_path: Path):
    with listening(tmp_path / "log") as end:
        pipe = logs.open_pipe(None, 0, 0, SYSLOG)
        os.write(pipe, b"first\n")
        end.recv(65536)
        first = logs.logger_pid
        assert first is not None
        os.kill(first, 9)
        wait_until(lambda: logs.logger_pid not in (None, first))
        os.write(pipe, b"second\n")

        assert end.recv(65536).endswith(b"web: second")
        os.close(pipe)


@pytest.mark.integration
def test_lines_are_sent_between_two_daemons(tmp_path: Path):
    (tmp_path / "state").mkdir()
    first, second = (LogCapture(tmp_path / "state", syslog_at=tmp_path / "log") for _ in range(2))
    with listening(tmp_path / "log") as end:
        first.start()
        pipe = first.open_pipe(None, 0, 0, SYSLOG)
        os.write(pipe, b"first\n")
        end.recv(65536)
        first.detach()
        os.write(pipe, b"between\n")
        assert end.recv(65536).endswith(b"web: between")
        second.start()
        wait_until(lambda: second.open_pipe_count == 1)
        os.write(pipe, b"second\n")

        assert end.recv(65536).endswith(b"web: second")
        os.close(pipe)
        second.close()


def test_without_a_thread_to_be_had_a_pipe_is_refused_until_there_is_one(
    tmp_path: Path, no_threads: pytest.MonkeyPatch
):
    told: list[object] = []
    reading, writing = os.pipe()
    take = CapturePipe(os.fstat(reading).st_ino, "", 0, 0, syslog=str(tmp_path / "log"), program="web")
    with select.epoll() as epoll, listening(tmp_path / "log") as end:
        sources = LogInputs(epoll, lambda: None, lambda _, message: told.append(message), lambda *_: None)
        sources.add_pipe(take, os.dup(reading))
        assert told == [CaptureRefused(take.id, "can't start new thread")]

        no_threads.undo()
        sources.add_pipe(take, reading)
        os.write(writing, b"now\n")
        sources.read_piece(reading)

        assert end.recv(65536).endswith(b"web: now")
        sources.close_all(drain=False)
    os.close(writing)


def test_names_become_tags_that_end_where_they_should():
    assert syslog.identifier("grp:web_01") == "grp.web_01"
    assert syslog.identifier("a[b]/c d" * 30) == ("a.b..c.d" * 30)[:64]
    assert b"\n" not in syslog.datagram("x", b"a\nb\0c", 0.0) and b"\0" not in syslog.datagram("x", b"a\nb\0c", 0.0)


class Kept:
    """In the place of a log daemon's way."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def queue_line(self, message: object, line: bytes) -> None:
        self.lines.append(line)


@pytest.mark.fuzz
@cases(500)
@given(st.lists(st.binary(max_size=60) | st.just(b"\n") | st.just(b"y" * (LINE_BYTES + 7))))
def test_lines_do_not_depend_on_how_the_output_is_cut(pieces: list[bytes]):
    kept = Kept()
    lines = LineSplitter([(kept, lambda line, wall_at: line)])  # type: ignore[list-item]
    for piece in pieces:
        lines.feed(piece)
    lines.end()

    assert all(0 < len(line) <= LINE_BYTES and b"\n" not in line for line in kept.lines)
    whole = b"".join(pieces)
    assert b"".join(kept.lines).replace(b"\r", b"") == whole.replace(b"\n", b"").replace(b"\r", b"")


def test_record_that_cannot_be_formatted_does_not_end_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with listening(tmp_path / "log") as end:
        handler = syslog.SyslogHandler("supervisor", tmp_path / "log")
        handler.handle(logging.LogRecord("x", logging.ERROR, "f", 1, "%d steps", ("many",), None))
        handler.handle(logging.LogRecord("x", logging.ERROR, "f", 1, "all is well", (), None))
        line = end.recv(65536)
    handler.close()

    assert line.endswith(b": all is well")
    assert "%d steps" in capsys.readouterr().err


def test_the_daemons_own_records_go_there_too_and_a_log_that_hangs_delays_little(tmp_path: Path):
    with listening(tmp_path / "log") as end:
        handler = syslog.SyslogHandler("super visor", tmp_path / "log", timeout_s=0.05)
        handler.emit(logging.LogRecord("x", logging.ERROR, "f", 1, "what %s\nmore", ("happened",), None))
        line = end.recv(65536)
        handler.setLevel(logging.INFO)
        began_at = time.monotonic()
        for _ in range(2000):
            handler.emit(logging.LogRecord("x", logging.INFO, "f", 1, "x" * 500, (), None))
        took_s = time.monotonic() - began_at
    handler.emit(logging.LogRecord("x", logging.INFO, "f", 1, "nobody listens", (), None))
    handler.close()

    assert re.fullmatch(rf"<11>\w+ [ \d]\d [\d:]+ super\.visor\[{os.getpid()}\]: what happened more", line.decode())
    assert took_s < PATIENCE_S
