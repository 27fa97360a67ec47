"""A job's user mounts something over what is its own in the runtime folder: nobody waits for that, nor reads it."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from supervisor.host.pipes.control_pipes import ControlPipes, create_empty_folder, read_last_words, send_once
from supervisor.host.processes import marks, ownership, stacks
from supervisor.host.user_folders.folder_removal import REMOVED, remove_folder
from supervisor.host.user_folders.mounted_over import folder_of_user, open_in, open_in_folder_of_user
from supervisor.protocol import layout
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import Done, Identify
from tests.host.processes.test_ownership import sleeper
from tests.silent_mount import SilentMount

pytestmark = [
    pytest.mark.integration,
    pytest.mark.hostile,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
]


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The folder of an attempt, as its worker left it."""
    folder = layout.attempt_folder(tmp_path / "run", "p", 1)
    folder.mkdir(parents=True)
    for pipe in (layout.TO_WORKER, layout.FROM_WORKER):
        os.mkfifo(folder / pipe)
    (folder / layout.LAST_WORDS).write_bytes(encode_message(Done(1, 9)))
    (folder / layout.STACKS).write_text("Thread 1")
    return folder


@pytest.fixture
def silent(attempt: Path) -> Iterator[Path]:
    """The folder, over which something is mounted that does not answer."""
    with SilentMount(attempt) as mount:
        mount.answers_attributes = False
        yield attempt


def soon(work: Callable[[], object]) -> object:
    """What it gives or raises. Raises TimeoutError if it waits for the mount."""
    outcome: Future[object] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where this is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(5.0)


def adopt(folder: Path) -> None:
    async def work() -> None:
        ControlPipes(folder, 1, None, print, print, is_there=True).detach()

    asyncio.run(work())


@pytest.mark.parametrize(
    "work", [adopt, remove_folder, lambda folder: create_empty_folder(folder, 0o700)], ids=["adopt", "remove", "create"]
)
def test_what_is_mounted_over_is_refused_at_once(silent: Path, work: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match=r"mounted over|busy"):
        soon(lambda: work(silent))


def test_nobody_hears_a_worker_whose_folder_is_mounted_over(silent: Path) -> None:
    assert soon(lambda: send_once(silent, Identify(1))) is False
    assert soon(lambda: read_last_words(silent, 1)) == []
    assert soon(lambda: stacks._content(silent / layout.STACKS)) is None


def test_a_standby_does_not_become_an_attempt_whose_folder_is_mounted_over(silent: Path) -> None:
    async def work() -> None:
        pipes = ControlPipes(silent.parent / "s1", 0, None, print, print)
        try:
            pipes.move_to_attempt(silent, 1)
        finally:
            pipes.detach()

    with pytest.raises(OSError, match="busy"):
        soon(lambda: asyncio.run(work()))


def test_whose_a_process_is_is_known_though_its_folder_and_its_files_do_not_answer(
    silent: Path, tmp_path: Path
) -> None:
    """It has cleared its environment, and has a file open that has the name of a pipe: the daemon's start waits."""
    state = tmp_path / "state"
    state.mkdir()
    marks.mark_of_attempt(state, "p", 1)
    ownership.note_folder(state)
    with SilentMount(tmp_path / "mount", name=layout.TO_WORKER) as mount, sleeper(None, stdin=mount.file) as pid:
        mount.answers_attributes = False

        verdict = soon(lambda: ownership.judge(pid, state, silent))

    assert verdict == ownership.Ownership(True)


def test_a_file_is_not_read_over_which_another_one_is_mounted(attempt: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(encode_message(Done(1, 7)))
    assert read_last_words(attempt, 1) == [Done(1, 9)]
    subprocess.run(["mount", "--bind", other, attempt / layout.LAST_WORDS], check=True)
    try:
        assert read_last_words(attempt, 1) == []
    finally:
        subprocess.run(["umount", attempt / layout.LAST_WORDS], check=True)


def test_what_is_not_mounted_over_is_opened_as_ever(attempt: Path) -> None:
    with folder_of_user(attempt) as folder:
        pipe = open_in(folder, layout.TO_WORKER, os.O_RDWR)
    assert os.get_blocking(pipe) is False
    os.close(pipe)
    (attempt / "link").symlink_to(attempt / layout.LAST_WORDS)
    with pytest.raises(OSError, match="symbolic links"):
        open_in_folder_of_user(attempt, "link", os.O_RDONLY)

    remove_folder(attempt)

    assert os.listdir(attempt.parent) == []
    assert not (attempt.parent / REMOVED).exists()
