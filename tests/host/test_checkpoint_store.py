"""Checkpoint directories answer the event loop, and a dead one holds nobody but itself."""

import asyncio
import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.host.checkpoint_calls import Attempts, CheckpointRequest, Moved, Question, answer
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.listing import ListedCheckpoint
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.checkpoints.replayed import to_bytes
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.mirror.folder_epochs import encode_fetched
from tests.host.conftest import PATIENCE_S


def commit(directory: Path, step: int, attempt: int = 1) -> Path:
    name = layout.CheckpointName(step, attempt)
    partial = directory / name.partial
    partial.mkdir(parents=True)
    (partial / "ckpt.index").write_bytes(b"index" * 20)
    whole = Manifest("digits", attempt, step, 1000.0 + step, manifest.record_files(partial, ("ckpt.index",)))
    durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
    durable.commit_folder(partial, directory / str(name), ["ckpt.index"])
    return directory / str(name)


async def test_the_newest_whole_checkpoint_is_selected(tmp_path: Path) -> None:
    whole, damaged = commit(tmp_path, 100), commit(tmp_path, 200)
    (damaged / "ckpt.index").write_bytes(b"garbage")

    chosen = await CheckpointStore().select(tmp_path)

    assert chosen.path == whole
    assert [each.name for each in chosen.rejected] == [damaged.name]


async def test_errors_reach_who_asked(tmp_path: Path) -> None:
    store = CheckpointStore()
    (commit(tmp_path, 100) / "ckpt.index").unlink()

    with pytest.raises(NoValidCheckpoint):
        await store.select(tmp_path)
    with pytest.raises(NotADirectoryError):
        await store.select(tmp_path / layout.QUARANTINE / "step-0000000100.a1" / layout.MANIFEST)
    assert await store.attempts_in(tmp_path) == Attempts(1, 1)


async def test_a_list_shows_the_committed_and_then_those_set_aside(tmp_path: Path) -> None:
    commit(tmp_path, 100)
    (commit(tmp_path, 200, attempt=2) / "ckpt.index").write_bytes(b"garbage")
    commit(tmp_path, 300, attempt=3)
    move_to_quarantine(tmp_path, layout.CheckpointName(300, 3), "a person said so")
    (tmp_path / layout.QUARANTINE / "not ours").mkdir()
    reason = "ckpt.index is 7 bytes, its manifest says 100"

    proven = await CheckpointStore().list_checkpoints(tmp_path, verify=True)
    looked = await CheckpointStore().list_checkpoints(tmp_path, verify=False)

    assert proven == [
        ListedCheckpoint("step-0000000200.a2", 200, 2, 1200.0, 100, False, reason, False),
        ListedCheckpoint("step-0000000100.a1", 100, 1, 1100.0, 100, True, None, False),
        ListedCheckpoint("step-0000000300.a3", 300, 3, 1300.0, 100, False, "a person said so", True),
    ]
    assert [each.valid for each in looked] == [None, None, False]


async def test_a_list_that_reads_every_byte_delays_neither_a_start_nor_a_short_list(tmp_path: Path) -> None:
    newest, large = commit(tmp_path, 200), commit(tmp_path, 100) / "ckpt.index"
    record = large.with_name(layout.MANIFEST)
    content = manifest.parse_manifest(record.read_bytes())
    os.truncate(large, 1 << 40)
    record.write_bytes(replace(content, files=(replace(content.files[0], size=1 << 40),)).to_bytes())
    store = CheckpointStore()
    verified = asyncio.create_task(store.list_checkpoints(tmp_path, verify=True))
    await asyncio.sleep(0.1)

    try:
        async with asyncio.timeout(PATIENCE_S / 2):
            assert (await store.select(tmp_path)).path == newest
            listed = await store.list_checkpoints(tmp_path, verify=False)
        assert [each.step for each in listed] == [200, 100]
        assert not verified.done()
    finally:
        os.truncate(large, 0)  # it is read to its end now
        await verified


async def test_a_list_marks_what_two_trainings_agree_on(tmp_path: Path) -> None:
    commit(tmp_path, 100)
    commit(tmp_path, 200)
    (tmp_path / layout.REPLAYED).write_bytes(to_bytes(["step-0000000100.a1", "step-0000000050.a1"]))

    listed = await CheckpointStore().list_checkpoints(tmp_path, verify=False)
    (tmp_path / layout.REPLAYED).write_bytes(b'{"format": 1, "checkpoints": 7}')
    unread = await CheckpointStore().list_checkpoints(tmp_path, verify=False)

    assert [(each.step, each.replayed) for each in listed] == [(200, False), (100, True)]
    assert not any(each.replayed for each in unread)


async def test_a_list_says_why_a_manifest_can_not_be_read(tmp_path: Path) -> None:
    (commit(tmp_path, 100) / layout.MANIFEST).write_bytes(b"garbage")

    (listed,) = await CheckpointStore().list_checkpoints(tmp_path, verify=False)

    assert (listed.valid, listed.size_bytes, listed.created_wall_at) == (False, None, None)
    assert listed.reason is not None and "is not JSON" in listed.reason


async def test_a_directory_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    store = CheckpointStore()

    assert await store.list_checkpoints(tmp_path / "missing", verify=True) == []
    assert (await store.select(tmp_path / "missing")).path is None
    assert await store.attempts_in(tmp_path / "missing") == Attempts(0, 0)


async def test_the_disk_a_directory_is_on_is_told(tmp_path: Path) -> None:
    here = os.lstat(tmp_path).st_dev

    assert await CheckpointStore().device_number(tmp_path) == here
    assert await CheckpointStore().device_number(Path("/proc")) != here
    with pytest.raises(FileNotFoundError):
        await CheckpointStore().device_number(tmp_path / "missing")


async def test_a_directory_that_never_answers_holds_only_itself(tmp_path: Path) -> None:
    store, release = CheckpointStore(), asyncio.Event()
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    whole = commit(alive, 100)
    read, write = os.pipe()

    def never_answers() -> bytes:
        return os.read(read, 1)  # what a read from a lost file server does

    held = asyncio.create_task(store._run(dead, never_answers))
    waiting = asyncio.create_task(store.attempts_in(dead))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.05)

    assert (await asyncio.wait_for(store.select(alive), PATIENCE_S)).path == whole
    assert not waiting.done()
    os.write(write, b"!")
    assert await held == b"!"
    assert await asyncio.wait_for(waiting, PATIENCE_S) == Attempts(0, 0)
    release.set()
    os.close(read)
    os.close(write)


async def test_a_lack_of_threads_passes(tmp_path: Path, no_threads: pytest.MonkeyPatch) -> None:
    store = CheckpointStore()
    with pytest.raises(RuntimeError):
        await store.attempts_in(tmp_path)

    no_threads.undo()

    assert await asyncio.wait_for(store.attempts_in(tmp_path), PATIENCE_S) == Attempts(0, 0)


async def test_calls_for_one_directory_run_one_at_a_time(tmp_path: Path) -> None:
    store, order = CheckpointStore(), list[int]()

    await asyncio.gather(*(store._run(tmp_path, lambda number=number: order.append(number)) for number in range(20)))

    assert order == list(range(20))


async def test_cancelled_call_blocks_nobody(tmp_path: Path) -> None:
    store, done = CheckpointStore(), list[int]()
    read, write = os.pipe()
    held = asyncio.create_task(store._run(tmp_path, lambda: os.read(read, 1)))
    impatient = asyncio.create_task(store._run(tmp_path, lambda: done.append(1)))
    await asyncio.sleep(0)
    impatient.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await impatient  # it is gone before the disk answers
    os.write(write, b"!")
    await held

    assert await store.attempts_in(tmp_path) == Attempts(0, 0)
    assert done == []
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("is_fetched", [True, False])
def test_what_was_fetched_is_no_save_of_an_attempt_that_carries_out_an_order(tmp_path: Path, is_fetched: bool) -> None:
    """Another host's attempt had the same number, and the daemon was killed between fetching and setting aside."""
    commit(tmp_path, 300, 5)
    saved = commit(tmp_path, 200, 6)
    if is_fetched:
        (saved / layout.FETCHED).write_bytes(encode_fetched(2))

    moved = answer(CheckpointRequest(Question.BEGIN_AT, tmp_path, step=200, since=6))

    assert moved == Moved(("step-0000000300.a5",) if is_fetched else ())
