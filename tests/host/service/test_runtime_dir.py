"""Two daemons with one runtime_dir."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.processes import marks
from supervisor.host.service.folder_claims import OWNER, claim_runtime_dir, keep_folders
from supervisor.host.service.single_instance import AlreadyRunning, StateFolder
from tests.waiting import wait_until_async


def locked(folder: Path) -> StateFolder:
    state = StateFolder(folder)
    state.lock()
    return state


def test_a_second_daemon_with_the_same_runtime_dir_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """It would take the control pipes of the first one's workers for left over, and delete them."""
    run, first, second = tmp_path / "run", locked(tmp_path / "first"), locked(tmp_path / "second")
    claim_runtime_dir(run, first.path)
    claim_runtime_dir(run, first.path)  # after a reload

    with pytest.raises(AlreadyRunning, match=f"with the state folder {first.path}, uses runtime_dir {run}; give"):
        claim_runtime_dir(run, second.path)

    os.close(first._descriptor)
    claim_runtime_dir(run, second.path)


async def test_one_that_was_emptied_or_deleted_is_claimed_again(tmp_path: Path) -> None:
    """As by systemd-tmpfiles."""
    run, first, second = tmp_path / "run", locked(tmp_path / "first"), locked(tmp_path / "second")
    claim_runtime_dir(run, first.path)
    keeping = asyncio.create_task(keep_folders(first, run, BlockingCalls(), every_s=0.01))
    for emptied in ((run / OWNER).unlink, lambda: shutil.rmtree(run)):
        emptied()
        await wait_until_async((run / OWNER).exists)

        with pytest.raises(AlreadyRunning):
            claim_runtime_dir(run, second.path)
    keeping.cancel()


async def test_a_state_folder_that_is_replaced_under_its_daemon_is_locked_again_and_has_its_key(tmp_path: Path) -> None:
    state = locked(tmp_path / "state")
    mark = marks.mark_of_attempt(state.path, "p", 1)
    keeping = asyncio.create_task(keep_folders(state, tmp_path / "run", BlockingCalls(), every_s=0.01))
    shutil.rmtree(state.path)
    state.path.mkdir()
    await wait_until_async((state.path / marks.KEY_FILE).exists)

    with pytest.raises(AlreadyRunning):
        locked(state.path)

    assert marks.is_signed_here(mark, state.path)
    keeping.cancel()


def test_a_state_folder_with_another_path_than_before_is_no_other_daemons(tmp_path: Path) -> None:
    run, state = tmp_path / "run", locked(tmp_path / "state")
    (tmp_path / "link").symlink_to(state.path)
    claim_runtime_dir(run, state.path)
    noted = (run / OWNER).read_text()
    (run / OWNER).write_text(noted.replace(str(state.path), str(tmp_path / "link")))  # as if it were mounted there too

    claim_runtime_dir(run, state.path)


def test_a_runtime_dir_that_came_with_a_copy_is_nobodys(tmp_path: Path) -> None:
    first, second = locked(tmp_path / "first"), tmp_path / "second"
    claim_runtime_dir(first.path / "run", first.path)
    shutil.copytree(first.path, second)

    claim_runtime_dir(second / "run", second)
