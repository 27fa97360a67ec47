"""What programs say by sd_notify(3), from real processes over real sockets."""

import array
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.host.pipes.notify import (
    DATAGRAMS_A_SECOND,
    DATAGRAMS_AT_ONCE,
    LONGEST_PAUSE_S,
    MAX_BYTES,
    MAX_STATUS,
    READ_AT_ONCE,
    NotifyError,
    NotifyMessage,
    NotifySocket,
    parse_notification,
)
from supervisor.host.processes import marks
from tests.host.slow_to_close import freed_late, slow_to_close
from tests.reading import descriptors
from tests.system.harness import let_others_in
from tests.waiting import wait_until_async

MARK = "/state:web:1"
SEND = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), sys.argv[1])"
WAIT = f"{SEND}\nimport time; time.sleep(1000)"


class Heard:
    """A socket for an attempt whose worker is `worker`, and what came in."""

    def __init__(self, folder: Path, worker: int | None = None, owner: tuple[int, int] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.said: list[NotifyMessage] = []
        self.refused: list[str] = []
        self.socket = NotifySocket(folder, owner, MARK, self.said.append, self.refused.append)
        self.socket.pid = worker
        self.path = str(self.socket.path)

    async def until(self, look: Callable[[], object]) -> None:
        await wait_until_async(look)


@pytest.fixture
def sender() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(path: str, text: str, mark: str | None = MARK, program: str = WAIT) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, **({marks.VARIABLE: mark} if mark else {})}
        command = [sys.executable, "-c", program, path, text]
        started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_datagram_fields_are_parsed():
    assert parse_notification(b"READY=1") == NotifyMessage(ready=True)
    assert parse_notification(b"READY=1\nSTATUS=loading 3 of 7\nMAINPID=4\n") == NotifyMessage(True, "loading 3 of 7")
    assert parse_notification("STATUS=bereit für alles".encode()) == NotifyMessage(False, "bereit für alles")
    assert parse_notification(b"STATUS=") == NotifyMessage(False, "")
    assert parse_notification(b"READY=0\nX_VENDOR=a=b") == NotifyMessage()
    assert parse_notification(b"STATUS=red \x1b[31m\x07 alert") == NotifyMessage(False, "red  [31m  alert")
    assert parse_notification(b"STATUS=" + b"x" * 3000) == NotifyMessage(False, "x" * MAX_STATUS)


@pytest.mark.parametrize(
    "datagram", [b"", b"\n\n", b"READY", b"READY=1\nhello", b"\x00\xff", b"=1", b"X=" + b"x" * MAX_BYTES]
)
def test_nonsense_is_refused(datagram: bytes):
    with pytest.raises(NotifyError):
        parse_notification(datagram)


@pytest.mark.integration
async def test_the_worker_and_what_it_started_are_believed(
    tmp_path: Path, sender: Callable[..., "subprocess.Popen[bytes]"]
):
    heard = Heard(tmp_path / "a1")
    worker = sender(heard.path, "STATUS=by the worker", mark=None)
    heard.socket.pid = worker.pid
    await heard.until(lambda: len(heard.said) == 1)
    sender(heard.path, "STATUS=by a child in a session of its own")
    await heard.until(lambda: len(heard.said) == 2)

    assert not heard.refused
    heard.socket.close()


@pytest.mark.integration
async def test_others_are_not_believed_also_of_the_same_user(
    tmp_path: Path, sender: Callable[..., "subprocess.Popen[bytes]"]
):
    heard = Heard(tmp_path / "a1", worker=os.getpid() + 1_000_000)

    sender(heard.path, "READY=1", mark="/state:other:1")
    await heard.until(lambda: heard.refused)

    assert not heard.said and not heard.socket.was_ready
    assert "not a process of this program" in heard.refused[0]
    heard.socket.close()


@pytest.mark.integration
async def test_sender_that_has_exited_is_trusted_by_its_user(
    tmp_path: Path, sender: Callable[..., "subprocess.Popen[bytes]"]
):
    heard = Heard(tmp_path / "a1", worker=os.getpid() + 1_000_000)

    sender(heard.path, "READY=1", mark=None, program=SEND).wait()
    heard.socket.drain()

    assert heard.said == [NotifyMessage(True)]
    heard.socket.close()


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_can_not_even_send(tmp_path: Path):
    let_others_in(tmp_path)
    heard = Heard(tmp_path / "a1")
    (tmp_path / "a1").chmod(0o711)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", heard.path)
        except PermissionError:
            os._exit(13)
        os._exit(0)

    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 13
    heard.socket.close()


async def test_nonsense_is_reported_once_in_a_while_and_the_rest_is_heard(tmp_path: Path):
    heard = Heard(tmp_path / "a1", worker=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        for number in range(100):
            way.sendto(b"nonsense %d" % number, heard.path)
            await asyncio.sleep(0)
        way.sendto(b"X" * (MAX_BYTES + 100), heard.path)
        way.sendto(b"STATUS=sense", heard.path)
    await heard.until(lambda: heard.said)

    assert len(heard.refused) == 1
    heard.socket.close()


async def test_descriptors_that_come_along_are_closed(tmp_path: Path):
    """As `systemd-notify` does, which waits until its barrier is closed."""
    heard = Heard(tmp_path / "a1", worker=os.getpid())
    before = descriptors()
    ends = [os.pipe2(os.O_NONBLOCK) for _ in range(20)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        rights = array.array("i", [writing for _, writing in ends])
        way.connect(heard.path)
        way.sendmsg([b"BARRIER=1\nREADY=1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    for _, writing in ends:
        os.close(writing)
    await heard.until(lambda: heard.said)

    await heard.until(lambda: len(os.listdir("/proc/self/fd")) == before + len(ends))
    assert all(os.read(reading, 1) == b"" for reading, _ in ends)
    for reading, _ in ends:
        os.close(reading)
    heard.socket.close()


@pytest.mark.parametrize("when", ["received", "unread"])
async def test_a_descriptor_whose_close_takes_long_holds_nobody_up(tmp_path: Path, when: str):
    heard = Heard(tmp_path / "a1", worker=os.getpid())
    ours, theirs = slow_to_close(limit_s=120)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.connect(heard.path)
        socket.send_fds(way, [b"STATUS=here"], [ours.fileno()])
    ours.close()
    with freed_late(theirs) as was_held:
        if when == "received":
            await heard.until(lambda: heard.said)
        heard.socket.close()

    assert not was_held.is_set()


async def test_the_next_daemon_listens_at_the_same_path_and_knows_of_the_readiness(tmp_path: Path):
    first = Heard(tmp_path / "a1", worker=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.sendto(b"READY=1", first.path)
        await first.until(lambda: first.said)
        first.socket.close()

        second = Heard(tmp_path / "a1", worker=os.getpid())
        way.sendto(b"STATUS=again", second.path)
        await second.until(lambda: second.said)

    assert second.socket.was_ready
    second.socket.close()


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("systemd-notify") is None, reason="needs systemd-notify")
async def test_systemd_notify_itself_is_heard_and_does_not_wait(tmp_path: Path):
    """It speaks in the name of the process that started it."""
    heard = Heard(tmp_path / "a1")
    told = subprocess.Popen(  # noqa: ASYNC220
        ["/bin/sh", "-c", "systemd-notify --ready --status='by systemd-notify'; exit $?"],
        env={**os.environ, "NOTIFY_SOCKET": heard.path, marks.VARIABLE: MARK},
    )
    await heard.until(lambda: heard.said)

    assert NotifyMessage(True, "by systemd-notify") in heard.said
    assert await asyncio.to_thread(told.wait, 20) == 0
    heard.socket.close()


@pytest.mark.hostile
async def test_a_program_that_is_ready_without_end_is_ready_once_and_holds_nobody_up(tmp_path: Path):
    """Each word was a line of the daemon's log, and an event."""
    heard = Heard(tmp_path / "attempt", worker=os.getpid())
    stop = threading.Event()
    flood = threading.Thread(target=send_until, args=(heard.path, stop), daemon=True)
    flood.start()
    await heard.until(lambda: len(heard.said) > DATAGRAMS_AT_ONCE)
    before, began = len(heard.said), time.monotonic()
    await asyncio.sleep(1.0)
    more, took_s = len(heard.said) - before, time.monotonic() - began
    stop.set()
    heard.socket.close()
    flood.join()

    assert [message.ready for message in heard.said].count(True) == 1
    assert more <= (took_s + LONGEST_PAUSE_S) * DATAGRAMS_A_SECOND + READ_AT_ONCE


def send_until(path: str, stop: threading.Event) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.connect(path)
        while not stop.is_set():
            with contextlib.suppress(OSError):
                sender.send(b"READY=1\nSTATUS=here")
