"""The checkpoint that an attempt begins from."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from supervisor.config import load_config
from supervisor.core.job import Job
from supervisor.core.program.effects import SelectCheckpoint, SendGo
from supervisor.core.program.events import (
    CheckpointMirrored,
    CheckpointSelected,
    CheckpointsSetAside,
    Event,
    SelectionFailed,
    StartRequested,
)
from supervisor.core.program.facts import Policy
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.protocol import layout
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.checkpoints.account import ReportedCheckpoint, StatedReason
from supervisor.protocol.checkpoints.manifest import Manifest, record_files
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.gang import Restore, SeenDivergence, UploadPart
from supervisor.protocol.mirror.keys import RemoteCheckpoint
from supervisor.protocol.wire.messages import PartsWritten, Progress
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.services import ProgramServices, Services
from supervisor.runner.checkpoints.selector import CheckpointSelector
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.mirror.node_mirror import NodeMirror
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from tests.host.mirror.test_parts import committed, digest, write_parts
from tests.host.mirror.test_run import made
from tests.waiting import wait_until_async

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy


def selector_of(
    path: Path, services: Services, post: Callable[[Event], None], observer: ProgramObserver | None = None
) -> CheckpointSelector:
    config, log = load_config(path, os.environ).programs["digits"], structlog.get_logger()
    assert config.job is not None
    records = ProgramRecords(config, services.ledger, services.save_durations, log)
    program = ProgramServices(config, services, records, observer or ProgramObserver(), post, BackgroundTasks(log), log)
    return CheckpointSelector(program, config.job, MemoryHolder(program, config.job, lambda: None))


async def test_a_host_without_a_free_thread_is_a_selection_failure_that_may_pass(
    tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch
):
    path, told = tmp_path / "test.conf", asyncio.Queue[Event]()
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/digits\n")
    selector = selector_of(path, services, told.put_nowait)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        await asyncio.wait_for(selector.execute(SelectCheckpoint(1)), PATIENCE_S)
        failed = told.get_nowait()

    assert isinstance(failed, SelectionFailed)
    assert (failed.attempt, failed.permanent) == (1, False)
    assert "can't start new thread" in failed.error


class RefusalObserver(ProgramObserver):
    """Holds the names of the checkpoints that were refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def on_checkpoint_refused(self, name: str, reason: str) -> None:
        self.refused.append(name)


async def test_a_checkpoint_in_quarantine_is_counted_as_refused_only_once(tmp_path: Path, services: Services):
    path, posted, observer = tmp_path / "test.conf", list[Event](), RefusalObserver()
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/digits\n")
    (tmp_path / "digits" / "step-0000000100.a1").mkdir(parents=True)  # damaged: it has no manifest
    selector = selector_of(path, services, posted.append, observer)

    for attempt in (1, 2):
        await selector.select(SelectCheckpoint(attempt))

    assert observer.refused == ["step-0000000100.a1"]
    assert [isinstance(each, SelectionFailed) and "step-0000000100.a1" in each.error for each in posted] == [True, True]


def job_with_checkpoint(tmp_path: Path, attempt: int) -> tuple[Path, Path]:
    """A configuration, and the whole checkpoint of step 100 that its job has."""
    path, folder = tmp_path / "test.conf", tmp_path / "digits" / f"step-0000000100.a{attempt}"
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={folder.parent}\n")
    folder.mkdir(parents=True)
    (folder / "x").write_text("whole")
    made = Manifest("digits", attempt, 100, 0.0, record_files(folder, ("x",)))
    (folder / layout.MANIFEST).write_bytes(made.to_bytes())
    return path, folder


@pytest.mark.parametrize(("attempt", "is_taken"), [(6, True), (7, False), (8, False)])
async def test_an_attempt_that_could_save_nothing_gets_a_higher_number_before_it_trains(
    tmp_path: Path, services: Services, attempt: int, is_taken: bool
):
    """Another host, which shares the folder, has trained meanwhile: the first save would find this one superseded."""
    path, _ = job_with_checkpoint(tmp_path, attempt=7)
    posted = list[Event]()

    await selector_of(path, services, posted.append).select(SelectCheckpoint(attempt))

    (selected,) = posted
    assert (isinstance(selected, SelectionFailed) and selected.attempts_used == 7) == is_taken
    assert isinstance(selected, CheckpointSelected) != is_taken


@pytest.mark.parametrize(("begin_since", "is_moved"), [(8, True), (7, False), (6, False), (None, True)])
async def test_what_was_saved_since_an_operator_chose_the_step_is_not_set_aside(
    tmp_path: Path, services: Services, begin_since: int | None, is_moved: bool
):
    """Attempt 7 has begun where it was told to, and no daemon heard of it; attempt 8 is told the same."""
    path, folder = job_with_checkpoint(tmp_path, attempt=7)
    posted = list[Event]()

    await selector_of(path, services, posted.append).select(SelectCheckpoint(8, begin_at=0, begin_since=begin_since))

    *set_aside, selected = posted
    assert isinstance(selected, CheckpointSelected)
    assert set_aside == ([CheckpointsSetAside(8, 0)] if is_moved else [])
    assert folder.exists() != is_moved
    assert (selected.path is None) == is_moved


@pytest.mark.parametrize(
    ("rank", "nodes", "save_shards", "is_left"),
    [
        (0, 2, "always", False),
        (1, 2, "always", True),
        (1, 8, "never", False),
        (1, 8, "auto", True),
        (1, 7, "auto", False),
    ],
)
async def test_nodes_whose_workers_read_together_leave_the_proof_to_them(
    tmp_path: Path, services: Services, rank: int, nodes: int, save_shards: str, is_left: bool
):
    path, posted, folder = tmp_path / "test.conf", list[Event](), tmp_path / "digits" / "step-0000000100.a1"
    path.write_text(
        f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={folder.parent}\n"
        f"save_shards={save_shards}\n"
    )
    folder.mkdir(parents=True)
    (folder / "x").write_text("whole")
    made = Manifest("digits", 1, 100, 0.0, record_files(folder, ("x",)))
    (folder / layout.MANIFEST).write_bytes(made.to_bytes())
    (folder / "x").write_text("whale")
    place = Allocation(1, rank, tuple(f"node{number}" for number in range(nodes)), 0, 1)
    selector = selector_of(path, replace(services, gang=GangPlace(place)), posted.append)

    await selector.select(SelectCheckpoint(1))

    (selected,) = posted
    assert isinstance(selected, CheckpointSelected) == is_left
    assert folder.exists() == is_left


class OwnFolders:
    """A job whose nodes have folders of their own. `chief`, `other`: the selectors of two of them."""

    def __init__(self, tmp_path: Path, services: Services, keys: str = "") -> None:
        self.posted: list[Event] = []
        self.keys = keys
        self.store, self.services = tmp_path / "store", services
        (self.store / "digits").mkdir(parents=True)
        self.places = [GangPlace(Allocation(1, rank, ("a", "b"), 0, 1)) for rank in (0, 1)]
        self.folders = [tmp_path / name for name in ("chief", "other")]
        self.mirrors: list[JobMirror | NodeMirror] = []
        self.chief, self.other = self._selector(tmp_path, 0), self._selector(tmp_path, 1)

    def _selector(self, tmp_path: Path, rank: int) -> CheckpointSelector:
        path = tmp_path / f"{rank}.conf"
        path.write_text(
            f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={self.folders[rank]}\n"
            f"strategy=multiworker\ncheckpoint_dir_shared=false\nmirror=file://{self.store}\nrestore_from_jobs=*\n{self.keys}"
        )
        services, log = replace(self.services, gang=self.places[rank]), structlog.get_logger()
        config = load_config(path, os.environ).programs["digits"]
        assert config.job is not None
        records = ProgramRecords(config, services.ledger, services.save_durations, log)
        tasks = BackgroundTasks(log)
        program = ProgramServices(config, services, records, ProgramObserver(), self.posted.append, tasks, log)
        memory = MemoryHolder(program, config.job, lambda: None)
        if rank == 0:
            mirror = JobMirror(config, services, self.posted.append, lambda: None, log)
            self.mirrors.append(mirror)
            return CheckpointSelector(program, config.job, memory, mirror)
        node_mirror = NodeMirror(config, services.environment, self.places[rank], self.posted.append)
        self.mirrors.append(node_mirror)
        return CheckpointSelector(program, config.job, memory, None, node_mirror)

    def commit(self, *steps: int) -> list[RemoteCheckpoint]:
        return [committed(f"file://{self.store}/digits", *self.folders, step) for step in steps]

    def close(self) -> None:
        for mirror in self.mirrors:
            mirror.close()


@pytest.fixture
def own_folders(tmp_path: Path, services: Services) -> Iterator[OwnFolders]:
    made = OwnFolders(tmp_path, services)
    yield made
    made.close()


@pytest.mark.integration
async def test_node_with_a_folder_of_its_own_begins_from_what_the_chief_announces(own_folders: OwnFolders):
    old, new = own_folders.commit(100, 200)
    chief, other = own_folders.folders
    select = asyncio.create_task(own_folders.other.select(SelectCheckpoint(3)))
    choice = Restore(1, str(old.name), old.epoch, digest(chief, old), "suspect", "keeps dying", 200)
    await asyncio.sleep(0)
    own_folders.places[1].parts.on_message(0, choice)
    await asyncio.wait_for(select, PATIENCE_S)

    stated = StatedReason(OlderBecause.SUSPECT, "keeps dying", 200)
    mirrored, selected = own_folders.posted
    assert mirrored == CheckpointMirrored(str(old.name), f"file://{own_folders.store}/digits", old.epoch)
    assert selected == CheckpointSelected(3, str(other / str(old.name)), 100, None, 100, stated=stated)
    assert not (other / str(new.name)).exists()


@pytest.mark.integration
async def test_node_that_can_not_get_the_announced_one_does_not_begin(own_folders: OwnFolders):
    (remote,) = own_folders.commit(100)
    own_folders.places[1].parts.on_message(0, Restore(1, str(remote.name), remote.epoch, "of another manifest"))
    await asyncio.wait_for(own_folders.other.select(SelectCheckpoint(3)), PATIENCE_S)

    (failed,) = own_folders.posted
    assert isinstance(failed, SelectionFailed)
    assert (failed.permanent, failed.errno) == (False, errno.EHOSTUNREACH)
    assert "is not the one that the chief's node restores" in failed.error


@pytest.mark.integration
async def test_chief_selects_only_what_the_other_nodes_can_get(own_folders: OwnFolders):
    (remote,) = own_folders.commit(100)
    await asyncio.wait_for(own_folders.chief.select(SelectCheckpoint(5)), PATIENCE_S)
    made(own_folders.folders[0], 300)  # of a time when it trained alone
    await asyncio.wait_for(own_folders.chief.select(SelectCheckpoint(6)), PATIENCE_S)

    selected, failed = (event for event in own_folders.posted if not isinstance(event, CheckpointMirrored))
    assert isinstance(selected, CheckpointSelected)
    assert selected.path == str(own_folders.folders[0] / str(remote.name))
    assert isinstance(failed, SelectionFailed)
    assert failed.permanent
    assert "step-0000000300.a1 is on this node's disk alone" in failed.error


@pytest.mark.integration
@pytest.mark.parametrize("passes_over", ["suspect", "rollback"])
async def test_chief_whose_only_copy_is_to_be_passed_over_gets_an_older_one(own_folders: OwnFolders, passes_over: str):
    older, newer = own_folders.commit(100, 200)
    await asyncio.wait_for(own_folders.chief.select(SelectCheckpoint(5)), PATIENCE_S)
    again = SelectCheckpoint(6, avoid=frozenset({str(newer.name)}))
    if passes_over == "rollback":
        again = SelectCheckpoint(6, restore_below_step=200)
    await asyncio.wait_for(own_folders.chief.select(again), PATIENCE_S)

    first, second = (event for event in own_folders.posted if isinstance(event, CheckpointSelected))
    assert (first.step, second.step) == (200, 100)
    assert second.path == str(own_folders.folders[0] / str(older.name))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("diverged", "newest_attempt", "step"),
    [
        ((SeenDivergence(200, 1),), 1, 100),
        ((SeenDivergence(250, 1), SeenDivergence(150, 1)), 1, 100),
        ((SeenDivergence(200, 1),), 2, 200),  # of a node that was away while a later attempt has saved
        ((SeenDivergence(250, 1),), 1, 200),
    ],
)
async def test_divergence_that_any_node_has_seen_takes_the_chief_back(
    own_folders: OwnFolders, diverged: tuple[SeenDivergence, ...], newest_attempt: int, step: int
):
    own_folders.commit(100, 200)
    own_folders.places[0].diverged = diverged
    newest = ReportedCheckpoint(200, f"step-0000000200.a{newest_attempt}", "/x", attempt=newest_attempt)
    await asyncio.wait_for(own_folders.chief.select(SelectCheckpoint(5, newest=newest)), PATIENCE_S)

    (selected,) = (event for event in own_folders.posted if isinstance(event, CheckpointSelected))
    assert selected.step == step
    below = min(seen.below_step for seen in diverged) if newest_attempt == 1 else None
    assert selected.below_step == below


@pytest.mark.integration
async def test_step_that_an_operator_chose_is_not_passed_over_for_a_divergence(own_folders: OwnFolders):
    own_folders.commit(100, 200)
    own_folders.places[0].diverged = (SeenDivergence(150, 1),)
    await asyncio.wait_for(own_folders.chief.select(SelectCheckpoint(5, begin_at=200)), PATIENCE_S)

    (selected,) = (event for event in own_folders.posted if isinstance(event, CheckpointSelected))
    assert (selected.step, selected.below_step) == (200, None)


@pytest.mark.parametrize("is_chief", [True, False])
async def test_of_a_shared_folder_the_chief_alone_gives_up_what_diverged(
    tmp_path: Path, services: Services, is_chief: bool
):
    """Another node, which may have been away since, would take it away from under the chief's worker."""
    path, posted, folder = tmp_path / "test.conf", list[Event](), tmp_path / "digits"
    path.write_text(
        f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={folder}\nrestore_from_jobs=*\n"
    )
    for step in (100, 200):
        made(folder, step)
    place = GangPlace(Allocation(1, 0 if is_chief else 1, ("a", "b"), 0, 1))
    place.diverged = (SeenDivergence(200, 1),) if is_chief else ()
    selector = selector_of(path, replace(services, gang=place, is_chief=is_chief), posted.append)

    await selector.select(SelectCheckpoint(3, restore_below_step=None if is_chief else 200))

    (selected,) = posted
    assert isinstance(selected, CheckpointSelected)
    assert selected.step == (100 if is_chief else 200)
    assert (folder / "step-0000000200.a1").exists() is not is_chief


@pytest.mark.integration
async def test_newest_of_the_mirror_that_is_damaged_is_the_reason_for_an_older_one(own_folders: OwnFolders):
    older, newer = own_folders.commit(100, 200)
    (own_folders.store / "digits" / newer.key("state.json")).write_text("damaged")
    for folder in own_folders.folders:
        shutil.rmtree(folder)
    await asyncio.wait_for(own_folders.chief.select(SelectCheckpoint(5)), PATIENCE_S)
    job = Job(Policy("digits", is_job=True, is_gang=True, checkpoint_dir=str(own_folders.folders[0])))
    job.skip_attempts(4)
    job.handle(StartRequested(), 0.0)
    decided = [effect for event in own_folders.posted for effect in job.handle(event, 1.0)]

    (go,) = decided
    assert isinstance(go, SendGo)
    assert go.restore == str(own_folders.folders[0] / str(older.name))
    assert go.stated is not None
    assert (go.stated.because, go.stated.newest_step) == (OlderBecause.DAMAGED, 200)
    assert "state.json" in go.stated.text


@pytest.mark.integration
@pytest.mark.parametrize("passes_over", ["suspect", "rollback"])
async def test_where_the_mirror_has_no_older_one_the_only_one_is_better_than_nothing(
    own_folders: OwnFolders, passes_over: str
):
    (only,) = own_folders.commit(100)
    effect = SelectCheckpoint(6, avoid=frozenset({str(only.name)}))
    if passes_over == "rollback":
        effect = SelectCheckpoint(6, restore_below_step=100)
    await asyncio.wait_for(own_folders.chief.select(effect), PATIENCE_S)

    (selected,) = (event for event in own_folders.posted if isinstance(event, CheckpointSelected))
    assert selected.step == 100


@pytest.mark.integration
async def test_start_does_not_wait_for_the_upload_of_a_part_that_nobody_commits(tmp_path: Path, services: Services):
    gang = OwnFolders(tmp_path, services, "mirror_rate_limit=1\n")
    try:
        (remote,) = gang.commit(100)
        chief = gang.mirrors[0]
        assert isinstance(chief, JobMirror)
        began = SelectCheckpoint(5)
        chief.on_effect(began, 0.0)
        await asyncio.wait_for(gang.chief.select(began), PATIENCE_S)
        chief.on_selected(SendGo(5, str(gang.folders[0] / str(remote.name))))
        chief.on_message(Progress(5, 101), 0.0)
        name = write_parts(*gang.folders, 110, 5)
        gang.places[0].parts.begin_turn(1, [])
        chief.on_message(PartsWritten(5, 110, str(name), True), 0.0)
        gang.places[1].parts.on_message(0, UploadPart(1, str(name), 2))
        await wait_until_async(
            lambda: (asked := chief.status.request) is not None and asked.checkpoint == str(name),
            "it uploads",
            PATIENCE_S,
        )
        gang.posted.clear()
        again = SelectCheckpoint(6)
        chief.on_effect(again, 0.0)
        await asyncio.wait_for(gang.chief.select(again), PATIENCE_S)
        gang.places[1].parts.on_message(0, Restore(1, str(remote.name), remote.epoch, digest(gang.folders[0], remote)))
        await asyncio.wait_for(gang.other.select(SelectCheckpoint(6)), PATIENCE_S)

        assert [event.step for event in gang.posted if isinstance(event, CheckpointSelected)] == [100, 100], gang.posted
    finally:
        gang.close()
