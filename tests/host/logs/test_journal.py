"""The journal's native protocol against a socket that reads it as journald does; what the daemon says in it."""

import contextlib
import fcntl
import io
import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.host.daemon_log.journal import FallbackStream, JournalHandler
from supervisor.host.logs.journal import JournalSocket, entry, is_at

SEALED = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Listener:
    """The journal's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(10)
        self._socket.bind(str(path))

    def receive(self) -> tuple[dict[str, str], int | None]:
        """The next entry's fields, and the seals of the file it came in if it came in one."""
        content, descriptors, _, _ = socket.recv_fds(self._socket, 1 << 20, 1)
        if not descriptors:
            return parse(content), None
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
        with os.fdopen(descriptors[0], "rb") as file:
            file.seek(0)
            return parse(file.read()), seals

    def close(self) -> None:
        self._socket.close()


def parse(content: bytes) -> dict[str, str]:
    """An entry as systemd's description of the protocol has it."""
    fields: dict[str, str] = {}
    stream = io.BytesIO(content)
    while line := stream.readline():
        name, is_plain, value = line.rstrip(b"\n").partition(b"=")
        if not is_plain:
            (length,) = struct.unpack("<Q", stream.read(8))
            value = stream.read(length)
            assert stream.read(1) == b"\n"
        fields[name.decode()] = value.decode()
    return fields


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(tmp_path / "socket")
    yield listener
    listener.close()


@pytest.fixture
def journal(journald: Listener) -> Iterator[JournalSocket]:
    journal = JournalSocket(journald.path)
    yield journal
    journal.close()


def record(level: int = logging.INFO, **facts: object) -> logging.LogRecord:
    """What structlog gives to a handler."""
    return logging.LogRecord("x", level, "", 0, {"level": "info", "timestamp": "2026", **facts}, (), None)


@pytest.mark.parametrize("value", ["plain", "a=b", "", "zwei\nZeilen äöü\n", "\n", "MESSAGE=x\nPRIORITY=0"])
def test_values_arrive_as_they_were(journal: JournalSocket, journald: Listener, value: str):
    journal.send({"MESSAGE": value, "STEP": "7"})

    assert journald.receive() == ({"MESSAGE": value, "STEP": "7"}, None)


def test_an_entry_too_big_for_a_datagram_goes_as_a_sealed_file(journal: JournalSocket, journald: Listener):
    text = "line of a traceback\n" * 100_000

    journal.send({"MESSAGE": text, "PRIORITY": "3"})

    assert journald.receive() == ({"MESSAGE": text, "PRIORITY": "3"}, SEALED)


@pytest.mark.parametrize("name", ["", "step", "_PID", "A B", "1ST", "A=B", "A" * 65])
def test_names_that_the_journal_would_drop_are_refused(name: str):
    with pytest.raises(ValueError, match="cannot name a journal field"):
        entry([(name, "value")])


def test_text_that_is_no_unicode_does_not_stop_the_log(journal: JournalSocket, journald: Listener):
    journal.send({"MESSAGE": os.fsdecode(b"broken \xff name")})

    assert journald.receive()[0]["MESSAGE"] == "broken \\udcff name"


def test_an_entry_can_be_searched_by_program_step_attempt_and_event(journal: JournalSocket, journald: Listener):
    handler = JournalHandler(journal, logging.NullHandler())

    handler.handle(record(event="checkpoint.committed", program="digits", attempt=3, step=1200, save_s=6.1))

    fields, _ = journald.receive()
    assert fields == {
        "MESSAGE": "digits: checkpoint.committed attempt=3 step=1200 save_s=6.1",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "supervisord",
        "EVENT": "checkpoint.committed",
        "PROGRAM": "digits",
        "JOB": "digits",
        "ATTEMPT": "3",
        "STEP": "1200",
        "STEPKEEPER_SAVE_S": "6.1",
    }


def test_a_traceback_stays_one_entry(journal: JournalSocket, journald: Listener):
    handler = JournalHandler(journal, logging.NullHandler())

    handler.handle(record(logging.ERROR, event="internal.failed", exception="Traceback:\n  here\nOops"))

    fields, _ = journald.receive()
    assert (fields["MESSAGE"], fields["PRIORITY"]) == ("internal.failed\nTraceback:\n  here\nOops", "3")


def test_no_fact_takes_a_field_that_means_something_to_the_journal(journal: JournalSocket, journald: Listener):
    handler = JournalHandler(journal, logging.NullHandler())

    handler.handle(record(event="x.happened", message="other", priority=0, **{"errno": 5, "two words": "a"}))

    fields, _ = journald.receive()
    assert (fields["MESSAGE"].split()[0], fields["PRIORITY"]) == ("x.happened", "6")
    assert fields["STEPKEEPER_ERRNO"] == "5"
    assert fields["STEPKEEPER_TWO_WORDS"] == "a"


def test_records_of_other_libraries_arrive_too(journal: JournalSocket, journald: Listener):
    handler = JournalHandler(journal, logging.NullHandler())

    handler.handle(logging.LogRecord("asyncio", logging.WARNING, "", 0, "took %s s", (3,), None))

    fields, _ = journald.receive()
    assert (fields["MESSAGE"], fields["PRIORITY"], fields["EVENT"]) == ("took 3 s", "4", "asyncio")


def test_record_that_cannot_be_formatted_does_not_end_the_log(
    journal: JournalSocket, journald: Listener, capsys: pytest.CaptureFixture[str]
):
    handler = JournalHandler(journal, logging.NullHandler())

    handler.handle(logging.LogRecord("x", logging.WARNING, "", 0, "%d steps", ("many",), None))
    handler.handle(record(event="daemon.ready"))

    assert journald.receive()[0]["EVENT"] == "daemon.ready"
    assert "%d steps" in capsys.readouterr().err


def test_entry_that_the_journal_refuses_goes_to_the_fallback_handler(tmp_path: Path):
    other_way = io.StringIO()
    handler = JournalHandler(JournalSocket(tmp_path / "nobody"), logging.StreamHandler(other_way))

    handler.handle(record(event="daemon.ready"))
    handler.close()

    assert "daemon.ready" in other_way.getvalue()


def test_records_that_neither_the_journal_nor_standard_error_takes_are_counted_and_said(
    journald: Listener, capsys: pytest.CaptureFixture[str]
):
    """As while journald and its sockets are stopped: standard error led there."""
    journald.path.rename(journald.path.with_name("away"))
    with open("/dev/full", "w") as dead, capture_logs() as logged:
        handler = JournalHandler(JournalSocket(journald.path), FallbackStream(dead))
        for _ in range(3):
            handler.handle(record(event="worker.spawned"))
        journald.path.with_name("away").rename(journald.path)
        for _ in range(2):
            handler.handle(record(event="daemon.ready"))
        handler.close()
        with contextlib.suppress(OSError):
            dead.close()

    assert journald.receive()[0]["EVENT"] == "daemon.ready"
    again = {"event": "log.written_again", "path": "the journal", "lost_records": 3, "log_level": "warning"}
    assert logged == [again]
    assert capsys.readouterr().err == ""


def test_a_redirected_standard_error_is_not_taken_for_the_journal(tmp_path: Path):
    with (tmp_path / "file").open("w") as file:
        status = os.fstat(file.fileno())

        assert is_at(file.fileno(), f"{status.st_dev}:{status.st_ino}")
        assert not is_at(file.fileno(), f"{status.st_dev}:{status.st_ino + 1}")
        assert not is_at(file.fileno(), "")
    assert not is_at(sys.maxsize & 0xFFFF, "1:1")
