"""Processes that an earlier daemon started: watched, told apart from others, and how they ended."""

import asyncio
import errno
import os
import platform
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from supervisor.host.pipes import control_pipes
from supervisor.host.pipes.control_pipes import READ_BYTES, ControlPipes
from supervisor.host.processes import leftovers, marks, process_status
from supervisor.host.processes.process import Process, adopt
from supervisor.host.processes.process_status import Exit, read_start_time
from supervisor.protocol import layout
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import Done, Failed, Flush, FromWorker, Identify, Progress, Then
from tests.host.conftest import PATIENCE_S
from tests.waiting import wait_until

KERNEL = tuple(int(word) for word in platform.release().split("-")[0].split(".")[:2])
WAITS = "read line < {fifo}; exit 7"


async def watched(pid: int) -> tuple[Process, "asyncio.Future[Exit]"]:
    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    process = adopt(pid, read_start_time(pid) or 0, False, ended.set_result)
    assert process is not None
    return process, ended


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A child that reads from it waits until `release`."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


def waiting(fifo: Path, leads: bool = False) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sh", "-c", WAITS.format(fifo=fifo)], start_new_session=leads)


def orphan(fifo: Path) -> int:
    """Pid of one that waits and is not our child."""
    command = f'sh -c "{WAITS.format(fifo=fifo)}" > /dev/null & echo $!'
    return int(subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True).stdout)


def release(fifo: Path) -> None:
    fifo.write_text("go\n")


@pytest.mark.integration
async def test_a_child_that_was_started_before_the_daemon_executed_itself_is_reaped(fifo: Path) -> None:
    child = waiting(fifo)
    _, ended = await watched(child.pid)

    release(fifo)

    assert await asyncio.wait_for(ended, PATIENCE_S) == Exit(7, None)
    assert read_start_time(child.pid) is None
    child.returncode = 7


@pytest.mark.integration
async def test_an_orphan_tells_its_exit_status(fifo: Path) -> None:
    _, ended = await watched(orphan(fifo))

    release(fifo)

    told = await asyncio.wait_for(ended, PATIENCE_S)
    assert told == Exit(7, None) or (KERNEL < (6, 15) and told == Exit(None, None))


@pytest.mark.integration
async def test_a_process_that_is_let_go_lives_and_is_watched_no_more(fifo: Path) -> None:
    child = waiting(fifo)
    process, ended = await watched(child.pid)

    process.detach()

    assert child.poll() is None
    release(fifo)
    assert child.wait(PATIENCE_S) == 7
    assert not ended.done()


async def test_another_process_with_the_same_pid_is_not_taken_over() -> None:
    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    assert adopt(os.getpid(), (read_start_time(os.getpid()) or 0) - 1, False, ended.set_result) is None


async def test_a_process_of_which_nobody_can_tell_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its worker would be ended, and another one started."""
    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    start_time, before = read_start_time(os.getpid()) or 0, len(os.listdir("/proc/self/fd"))

    def fail(*arguments: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    for what in ("os.pidfd_open", "supervisor.host.processes.process.read_start_time"):
        with monkeypatch.context() as patch:
            patch.setattr(what, fail)
            with pytest.raises(OSError, match="Too many open files"):
                adopt(os.getpid(), start_time, False, ended.set_result)

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.integration
def test_a_zombie_tells_how_it_ended() -> None:
    child = subprocess.Popen(["sh", "-c", "kill -KILL $$"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    assert process_status.exit_of_zombie(child.pid, read_start_time(child.pid) or 0) == Exit(None, 9)
    assert process_status.exit_of_zombie(child.pid, 1) is None
    child.wait()


@pytest.mark.integration
def test_the_configuration_a_process_was_started_from_can_be_read() -> None:
    child = subprocess.Popen(["sleep", "100"], env={marks.CONFIGURATION: "abc"})
    try:
        # exec closes the pipe that Popen waits for before the kernel shows the new environment
        wait_until(Path(f"/proc/{child.pid}/environ").read_bytes)
        assert marks.read_configuration_digest(child.pid) == "abc"
        assert marks.read_configuration_digest(os.getpid()) is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.integration
async def test_stopping_adopted_process_is_waited_for_until_the_timeout(fifo: Path) -> None:
    child = waiting(fifo)
    start_time = read_start_time(child.pid) or 0

    assert not await leftovers.wait_for_exit(child.pid, start_time, 0.05)
    release(fifo)
    assert await leftovers.wait_for_exit(child.pid, start_time, PATIENCE_S)
    assert read_start_time(child.pid) is None  # after a reload it is our child, and nobody else asks how it ended
    child.returncode = 7


@pytest.mark.integration
async def test_a_child_that_is_ended_as_left_over_is_no_zombie_afterwards(fifo: Path) -> None:
    child = waiting(fifo, leads=True)

    await leftovers.end_leftovers([psutil.Process(child.pid)], PATIENCE_S, signal.SIGTERM)

    assert read_start_time(child.pid) is None
    child.returncode = -signal.SIGTERM


@pytest.mark.integration
async def test_a_process_that_somebody_has_stopped_is_not_waited_for_as_it_hears_no_signal(fifo: Path) -> None:
    child = waiting(fifo, leads=True)
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)

    how = await leftovers.end_leftovers([psutil.Process(child.pid)], 5.0, signal.SIGTERM)

    assert "flushed and exited when asked" in how
    child.returncode = -signal.SIGTERM


# --- pipes that are there already -------------------------------------------------------------------------------------


class Ends:
    """The pipes of an attempt whose daemon is gone, held by its worker."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in (layout.TO_WORKER, layout.FROM_WORKER):
            os.mkfifo(folder / name)
        self.hears = os.open(folder / layout.TO_WORKER, os.O_RDWR | os.O_NONBLOCK)
        self.says = os.open(folder / layout.FROM_WORKER, os.O_RDWR)

    def close(self) -> None:
        os.close(self.hears)
        os.close(self.says)


async def test_messages_sent_without_a_daemon_are_received(tmp_path: Path) -> None:
    folder = tmp_path / "a1"
    ends = Ends(folder)
    os.write(ends.hears, b'{"type":"fl')  # the daemon died in the middle of a line
    os.write(
        ends.says, b'ss","attempt":1,"step":3}\n' + encode_message(Progress(1, 4))
    )  # and had read half of this one
    heard: asyncio.Queue[FromWorker] = asyncio.Queue()
    found = ControlPipes(folder, 1, None, heard.put_nowait, lambda error: None, is_there=True)

    found.send(Identify(1))

    assert await asyncio.wait_for(heard.get(), PATIENCE_S) == Progress(1, 4)
    assert os.read(ends.hears, 4096) == b'{"type":"fl\n' + encode_message(Identify(1))
    found.detach()
    assert folder.exists()
    ends.close()


async def test_file_that_is_no_pipe_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a1"
    folder.mkdir()
    (folder / layout.TO_WORKER).touch()
    (folder / layout.FROM_WORKER).touch()

    with pytest.raises(OSError, match="not a named pipe"):
        ControlPipes(folder, 1, None, lambda message: None, lambda error: None, is_there=True)

    assert not control_pipes.send_once(folder, Flush(1, 1, "update", Then.STOP))


def test_of_more_words_than_are_read_the_last_are_heard(tmp_path: Path) -> None:
    """A script may have had run after run."""
    words = b"".join(encode_message(Done(1, step)) for step in range(3000))
    assert len(words) > READ_BYTES
    (tmp_path / layout.LAST_WORDS).write_bytes(words + encode_message(Failed(1, 9, "no")))

    assert control_pipes.read_last_words(tmp_path, 1)[-2:] == [Done(1, 2999), Failed(1, 9, "no")]


def test_last_words_of_another_attempt_and_through_a_link_are_not_heard(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(encode_message(Done(1, 9)))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / layout.LAST_WORDS).symlink_to(tmp_path / "elsewhere")
    (tmp_path / layout.LAST_WORDS).write_bytes(encode_message(Done(2, 9)) + b"garbage\n" + encode_message(Done(1, 9)))

    assert control_pipes.read_last_words(tmp_path, 1) == [Done(1, 9)]
    assert control_pipes.read_last_words(tmp_path / "linked", 1) == []
    assert control_pipes.read_last_words(tmp_path / "nowhere", 1) == []
