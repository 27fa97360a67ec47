"""The thread of a log file is there while there is something to write, and nothing is lost on its way out or in."""

import threading
import time
from pathlib import Path

import pytest

from supervisor.host.logs.files.file import OutputFile
from supervisor.host.logs.files.file_writer import LogFileWriter
from tests.host.conftest import PATIENCE_S
from tests.reading import content
from tests.waiting import wait_until

IDLE_THREAD_S = 0.01


def has_thread(path: Path) -> bool:
    return any(each.name == path.name for each in threading.enumerate())


def test_thread_ends_while_nothing_is_printed_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "quiet.log"
    writer = LogFileWriter(OutputFile(path, 0, 0), lambda: None, IDLE_THREAD_S)
    writer.use(0, 0)
    wait_until(path.exists)
    wait_until(lambda: not has_thread(path))

    writer.write(b"later\n")
    wait_until(lambda: content(path) == b"later\n")
    wait_until(lambda: not has_thread(path))
    assert not writer.has_ended


def test_every_piece_arrives_in_order_whatever_the_thread_is_at(tmp_path: Path) -> None:
    path = tmp_path / "often.log"
    writer = LogFileWriter(OutputFile(path, 0, 0), lambda: None, IDLE_THREAD_S)
    writer.use(0, 0)
    pieces = [f"{number}\n".encode() for number in range(300)]
    for number, piece in enumerate(pieces):
        writer.write(piece)
        if number % 30 == 0:
            time.sleep(IDLE_THREAD_S)  # about when the thread makes up its mind

    wait_until(lambda: content(path) == b"".join(pieces))


def test_everything_is_written_if_no_thread_can_be_started(tmp_path: Path, no_threads: pytest.MonkeyPatch) -> None:
    path, rung = tmp_path / "short.log", threading.Event()
    writer = LogFileWriter(OutputFile(path, 0, 0), rung.set, IDLE_THREAD_S)
    writer.use(0, 0)
    writer.write(b"one\n")
    writer.write(b"two\n")

    writer.release()

    assert path.read_bytes() == b"one\ntwo\n"
    assert writer.has_ended
    assert rung.is_set()


def test_idle_writer_ends_when_no_pipe_leads_to_it(tmp_path: Path) -> None:
    path, rung = tmp_path / "left.log", threading.Event()
    writer = LogFileWriter(OutputFile(path, 0, 0), rung.set, IDLE_THREAD_S)
    writer.use(0, 0)
    wait_until(path.exists)
    wait_until(lambda: not has_thread(path))

    writer.release()
    wait_until(lambda: writer.has_ended)
    assert rung.wait(PATIENCE_S)
    assert not writer.use(0, 0)
