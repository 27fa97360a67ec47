"""A mirrored job that goes back to an older checkpoint, with its mirror process and a store in a folder."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
import structlog

from supervisor.config import load_config
from supervisor.core.program.effects import SelectCheckpoint, SendGo
from supervisor.core.program.events import CheckpointMirrored, CheckpointOutdated, CheckpointSelected, Event
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.remote_run import RemoteRun
from supervisor.protocol.mirror.store import Store
from supervisor.protocol.wire.messages import Committed, Progress
from supervisor.runner.attempt.services import ProgramServices, Services
from supervisor.runner.checkpoints.selector import CheckpointSelector
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from tests.host.mirror.test_run import host, made
from tests.waiting import wait_until_async

pytestmark = pytest.mark.integration
PATIENCE_S = 60.0  # for what takes a second; the machine may be busy


class MirroredJob:
    """A job of which every attempt trains on at once. `with` closes its mirror."""

    def __init__(self, folder: Path, services: Services, keys: str = "") -> None:
        self.folder, self.store = folder / "digits", folder / "store"
        (self.store / "digits").mkdir(parents=True, exist_ok=True)
        path = folder / "test.conf"
        path.write_text(
            f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={self.folder}\n"
            f"mirror=file://{self.store}\nrestore_from_jobs=*\n{keys}"
        )
        config, log = load_config(path, os.environ).programs["digits"], structlog.get_logger()
        assert config.job is not None
        self.posted: list[Event] = []
        records = ProgramRecords(config, services.ledger, services.save_durations, log)
        program = ProgramServices(
            config, services, records, ProgramObserver(), self.posted.append, BackgroundTasks(log), log
        )
        self.mirror = JobMirror(config, services, self.posted.append, lambda: None, log)
        memory = MemoryHolder(program, config.job, lambda: None)
        self.selector = CheckpointSelector(program, config.job, memory, self.mirror)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.mirror.close()

    async def begin(self, effect: SelectCheckpoint) -> int | None:
        """An attempt begins, and does a step; the step that it begins from."""
        self.mirror.on_effect(effect, 0.0)
        selected = await self.select(effect)
        self.mirror.on_selected(SendGo(effect.attempt, selected.path))
        self.mirror.on_message(Progress(effect.attempt, (selected.step or 0) + 1), 0.0)
        return selected.step

    async def select(self, effect: SelectCheckpoint) -> CheckpointSelected:
        await asyncio.wait_for(self.selector.select(effect), PATIENCE_S)
        selected = self.posted[-1]
        assert isinstance(selected, CheckpointSelected), selected
        return selected

    async def train_and_save(self, *steps: int) -> None:
        """In the first attempt; each is in the store before the next."""
        assert await self.begin(SelectCheckpoint(1)) is None
        for step in steps:
            name = str(self.commit(step, 1))
            await self.until(lambda: self.mirror.has(name), "it is there")  # noqa: B023 - ends before the next

    def commit(self, step: int, attempt: int, damaged: str | None = None) -> CheckpointName:
        """`damaged`: one of its files, which the disk changes."""
        name = made(self.folder, step, attempt)
        if damaged is not None:
            path = self.folder / str(name) / damaged
            path.write_bytes(path.read_bytes()[::-1])
        self.mirror.on_message(Committed(attempt, step, str(name), 1, 0.1, 0.0), 0.0)
        return name

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await wait_until_async(condition, what, PATIENCE_S)

    def fetched_elsewhere(self) -> CheckpointName | None:
        """What an empty host gets."""
        return host(f"file://{self.store}/digits", self.store.with_name("new")).fetch(None, None).fetched


CHOICES = {
    "rollback": SelectCheckpoint(2, restore_below_step=200),
    "from a step": SelectCheckpoint(2, begin_at=100, begin_since=2),
}


@pytest.mark.parametrize("passes_over", ["suspect", "unfit", "rollback"])
async def test_older_checkpoint_that_only_the_mirror_has_is_gone_back_to(
    tmp_path: Path, services: Services, passes_over: str
):
    """This disk has lost it to `checkpoint_make_room`, or the host was replaced and has fetched the newest alone."""
    newest = "step-0000000200.a1"
    effect = {
        "suspect": SelectCheckpoint(2, avoid=frozenset({newest})),
        "unfit": SelectCheckpoint(2, unfit=((newest, "another model"),)),
        "rollback": SelectCheckpoint(2, restore_below_step=200, diverged_attempt=1),
    }[passes_over]
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100, 200)
        shutil.rmtree(job.folder / "step-0000000100.a1")

        assert await job.begin(effect) == 100
        assert (job.folder / newest).exists() is (passes_over != "rollback")
        kept = job.commit(110, 2)
        await job.until(lambda: job.mirror.has(str(kept)), "the next one is there")
        assert job.fetched_elsewhere() == CheckpointName(110, 2)


async def test_checkpoint_that_was_given_up_comes_back_on_no_host(tmp_path: Path, services: Services):
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100, 200)
        assert await job.begin(SelectCheckpoint(2, restore_below_step=200)) == 100
        job.posted.clear()
        await job.until(lambda: job.mirror.status.epoch == 2, "the epoch without it has begun")
        assert job.fetched_elsewhere() == CheckpointName(100, 1)
        kept = job.commit(110, 2)
        await job.until(lambda: job.mirror.has(str(kept)), "the next one is there")

        mirrored = [event.name for event in job.posted if isinstance(event, CheckpointMirrored)]
        assert mirrored == [str(kept)]
        assert await job.begin(SelectCheckpoint(3)) == 110


@pytest.mark.parametrize("choice", CHOICES)
async def test_daemon_that_dies_before_the_store_knows_of_it_leaves_the_choice_to_the_next(
    tmp_path: Path, services: Services, choice: str
):
    """Killed once the checkpoint is selected, and the worker with it. The store has one that this disk lacks, too."""
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100, 200, 210)
        shutil.rmtree(job.folder / "step-0000000200.a1")  # as `checkpoint_keep` does
        assert (await job.select(CHOICES[choice])).step == 100

    with MirroredJob(tmp_path, services) as later:
        assert await later.begin(SelectCheckpoint(3)) == 100
        mirrored = [event.name for event in later.posted if isinstance(event, CheckpointMirrored)]
        assert set(mirrored) == {"step-0000000100.a1"}, "the account rises to nothing that was given up"
        await later.until(lambda: later.mirror.status.epoch == 2, "the epoch without them has begun")
        assert later.fetched_elsewhere() == CheckpointName(100, 1)


async def test_rollback_to_what_only_the_store_has_stays_one_if_the_daemon_dies(tmp_path: Path, services: Services):
    """Of a gang whose nodes have folders of their own, no whole checkpoint is on the chief's disk."""
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100, 200)
        for name in ("step-0000000100.a1", "step-0000000200.a1"):
            shutil.rmtree(job.folder / name)
        assert (await job.select(CHOICES["rollback"])).step == 100

    with MirroredJob(tmp_path, services) as later:
        assert await later.begin(SelectCheckpoint(3)) == 100


async def test_operators_step_on_a_host_that_has_nothing_of_later_attempts_stays_if_the_daemon_dies(
    tmp_path: Path, services: Services
):
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100)
        assert await job.begin(SelectCheckpoint(3)) == 100
        name = str(job.commit(200, 3))
        await job.until(lambda: job.mirror.has(name), "it is there")
        shutil.rmtree(job.folder)  # another host takes its place

    with MirroredJob(tmp_path, services) as job:
        assert (await job.select(SelectCheckpoint(4, begin_at=100, begin_since=4))).step == 100

    with MirroredJob(tmp_path, services) as later:
        assert await later.begin(SelectCheckpoint(5)) == 100


async def test_operator_who_begins_anew_before_the_store_knows_of_it_is_heard(tmp_path: Path, services: Services):
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100, 200)
        assert (await job.select(SelectCheckpoint(2, begin_at=0, begin_since=2))).step is None

    made(job.folder, 10, 2)  # its worker was adopted, and has saved since
    with MirroredJob(tmp_path, services) as later:
        later.mirror.on_message(Committed(2, 10, "step-0000000010.a2", 1, 0.1, 0.0), 0.0)
        await later.until(lambda: later.mirror.has("step-0000000010.a2"), "what it saved is there")

        assert not [event for event in later.posted if isinstance(event, CheckpointOutdated)]
        assert later.fetched_elsewhere() == CheckpointName(10, 2)


async def test_worker_that_is_adopted_after_a_rollback_does_not_begin_again_from_what_diverged(
    tmp_path: Path, services: Services
):
    with MirroredJob(tmp_path, services) as job:
        await job.train_and_save(100, 200)
        assert (await job.select(CHOICES["rollback"])).step == 100

    made(job.folder, 110, 2)
    with MirroredJob(tmp_path, services) as later:
        later.mirror.on_message(Committed(2, 110, "step-0000000110.a2", 1, 0.1, 0.0), 0.0)
        await later.until(lambda: later.mirror.has("step-0000000110.a2"), "what it saved is there")

        assert not [event for event in later.posted if isinstance(event, CheckpointOutdated)]
        assert later.fetched_elsewhere() == CheckpointName(110, 2)


async def test_what_an_operator_began_anew_without_is_not_forgotten_for_a_store_that_was_away(
    tmp_path: Path, services: Services
):
    """Until it answers, the new training has saved: that is no reason to take what was before for its past."""
    with MirroredJob(tmp_path, services) as job:
        away = job.store.with_name("away")
        await job.train_and_save(5, 100)
        job.store.rename(away)
        assert await job.begin(SelectCheckpoint(2, begin_at=0, begin_since=2)) is None
        job.commit(10, 2)
        away.rename(job.store)
        job.mirror.retry_now()
        await job.until(lambda: job.mirror.status.epoch == 2, "the epoch has begun")

        epoch = RemoteRun(Store(f"file://{job.store}/digits")).epochs()[2]
        assert (epoch.parent, epoch.start) == (None, None), "which would be deleted as a past that was given up"


async def test_error_that_nobody_thought_of_is_shown_and_tried_again(tmp_path: Path, services: Services):
    services.environment["BROKEN"] = object()  # type: ignore[assignment] - no process can be given it
    with MirroredJob(tmp_path, services) as job:
        job.mirror.on_selected(SendGo(1, None))
        job.mirror.on_message(Progress(1, 1), 0.0)
        name = str(job.commit(100, 1))
        await job.until(lambda: job.mirror.error, "the error is shown")
        assert "internal error" in (job.mirror.error or "")

        del services.environment["BROKEN"]
        job.mirror.retry_now()
        await job.until(lambda: job.mirror.has(name), "it is there")
        assert job.mirror.error is None
