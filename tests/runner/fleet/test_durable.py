"""`durable = remote`: what waits for the mirror before a host goes away, or the daemon leaves."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.control.commands.descriptions import full_description
from supervisor.control.commands.notices import notice_description
from supervisor.core.notices.active import ActiveNotices
from supervisor.core.program import effects, notice_plan
from supervisor.core.program.events import FlushRequested
from supervisor.core.program.facts import State
from supervisor.host.mirror.run import MirroredRun
from supervisor.host.service.loop_share import LoopShare
from supervisor.protocol.mirror.store import Store
from supervisor.protocol.wire.messages import Committed, Progress
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.expected_times import ExpectedTimes
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.mirror import job_mirror as mirror_module
from supervisor.runner.program.runner import Runner
from tests.host.mirror.test_run import host
from tests.host.mirror.test_run import made as made_checkpoint
from tests.mirror.faulty_proxy import Fault, FaultyProxy, Moment
from tests.mirror.stores import ObjectStore
from tests.runner.fleet.test_notice_dispatcher import (
    HOUR_S,
    PATIENCE_S,
    Provider,
    programs,
    raw_notice,
    report,
    training,
)
from tests.system.harness import job
from tests.waiting import stays_async

pytestmark = pytest.mark.integration

Make = Callable[..., Programs]
__all__ = ["programs"]


def durable_job(folder: Path, url: str, keys: str = "", **environment: object) -> str:
    if not (folder / "store").exists():
        (folder / "store" / "count").mkdir(parents=True)
    text = f"mirror = {url}\ndurable = remote\n{keys}"
    return job("count", folder, text, STEPS=1_000_000, EVERY=1_000_000, **environment)


async def watched(
    programs: Make, services: Services, text: str, provider: Provider
) -> tuple[Programs, NoticeDispatcher, ExpectedTimes]:
    """Programs whose saves and uploads are planned with, and the notices that the provider gives them."""
    runners, active = dict[str, Runner](), ActiveNotices(60.0)
    times = ExpectedTimes(active, runners)
    measured = replace(services, save_durations=times.saves, upload_durations=times.uploads)
    made = programs(text, measured, runners=runners)
    notices = NoticeDispatcher(active, times, runners, LoopShare())
    notices.watch_sources([provider])
    await asyncio.wait_for(provider.sink, PATIENCE_S)
    return made, notices, times


async def test_provider_is_acknowledged_once_the_last_checkpoint_is_in_the_mirror(
    tmp_path: Path, programs: Make, services: Services, s3_store: ObjectStore
):
    asked, answered = threading.Event(), threading.Event()

    def hold() -> None:
        asked.set()
        answered.wait(PATIENCE_S)

    with FaultyProxy(s3_store.endpoint) as proxy:
        proxy.fault = Fault(1, Moment.BEFORE, matching="^PUT .*MANIFEST", action=hold, goes_on=True)
        environment = s3_store.behind(proxy.endpoint).environment
        margin = f"notice_margin = {2 * HOUR_S:g}"  # so the first flush is the last one
        made, notices, _ = await watched(
            programs, services, durable_job(tmp_path, s3_store.url, margin, **environment), provider := Provider()
        )
        await made.start_all()
        await training(made, "count")
        runner = made.runners["count"]

        report(provider.sink.result(), raw_notice())
        await asyncio.wait_for(asyncio.to_thread(asked.wait), PATIENCE_S)
        await asyncio.wait_for(runner.wait_until(lambda: runner.state is State.BACKOFF or None), PATIENCE_S)
        acknowledged_before = provider.acknowledged.is_set()
        answered.set()
        await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)

        assert not acknowledged_before
        assert runner.mirror is not None
        assert runner.mirror.newest is not None
        await notices.stop_watching()
        await made.stop_all()


async def test_the_first_flush_measures_the_upload_and_the_last_one_leaves_time_for_it(
    tmp_path: Path, programs: Make, services: Services
):
    made, notices, times = await watched(
        programs, services, durable_job(tmp_path, f"file://{tmp_path}/store"), provider := Provider()
    )
    await made.start_all()
    await training(made, "count")
    facts = made.runners["count"].facts

    report(provider.sink.result(), raw_notice())
    await asyncio.wait_for(made.runners["count"].wait_until(lambda: facts.upload_s), PATIENCE_S)

    assert facts.upload_fits
    last_at, end = notice_plan.last_flush_at(facts), notice_plan.host_gone_at(facts)
    assert last_at is not None
    assert end is not None
    planned_s = notice_plan.wait_for_step_s(facts) + (facts.save_s or 0.0) + facts.policy.notice_margin
    assert end - last_at == pytest.approx(planned_s + (facts.upload_s or 0.0))
    assert times.flush_times_s()["count"] >= facts.upload_s
    await notices.stop_watching()


async def test_a_last_checkpoint_that_would_not_reach_the_mirror_in_time_is_said_to_be_for_this_disk(
    tmp_path: Path, programs: Make, services: Services
):
    made, notices, times = await watched(
        programs, services, durable_job(tmp_path, f"file://{tmp_path}/store"), provider := Provider()
    )
    await made.start_all()
    await training(made, "count")
    times.uploads.record_upload("count", HOUR_S, 0.0, is_limited=False)
    runner = made.runners["count"]

    report(provider.sink.result(), raw_notice())
    await asyncio.wait_for(runner.wait_until(lambda: notice_plan.last_flush_at(runner.facts)), PATIENCE_S)

    assert "for this disk only: there is no time for its upload" in notice_description(runner, time.monotonic())[0]
    await notices.stop_watching()


async def test_daemon_leaves_once_the_last_checkpoint_is_in_the_mirror(tmp_path: Path, programs: Make):
    made = programs(durable_job(tmp_path, f"file://{tmp_path}/store"))
    await made.start_all()
    await training(made, "count")

    await asyncio.wait_for(made.stop_all(), PATIENCE_S)

    (newest,) = (tmp_path / "count").glob("step-*")
    assert list((tmp_path / "store").rglob(f"{newest.name}/MANIFEST.json"))


async def test_it_is_known_for_how_long_the_mirror_has_lacked_a_checkpoint(tmp_path: Path, programs: Make):
    made = programs(durable_job(tmp_path, f"file://{tmp_path}/store"))
    await made.start_all()
    await training(made, "count")
    runner = made.runners["count"]
    assert runner.mirror is not None
    mirror = runner.mirror
    await asyncio.wait_for(runner.wait_until(lambda: mirror.status.epoch), PATIENCE_S)
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("a file where the folder should be")
    never = mirror.status.behind_s
    runner.post(FlushRequested("test"))
    await asyncio.wait_for(runner.wait_until(lambda: mirror.error), PATIENCE_S)
    first, second = mirror.status.behind_s, mirror.status.behind_s
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    mirror.retry_now()
    await asyncio.wait_for(runner.wait_until(lambda: mirror.newest), PATIENCE_S)

    assert never == 0
    assert second > first > 0
    assert mirror.status.behind_s == 0


async def test_store_that_was_emptied_is_filled_again(tmp_path: Path, programs: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mirror_module, "RETRY_S", 0.1)
    made = programs(durable_job(tmp_path, f"file://{tmp_path}/store"))
    await made.start_all()
    await training(made, "count")
    runner = made.runners["count"]
    mirror = runner.mirror
    assert mirror is not None
    runner.post(FlushRequested("test"))
    first = await asyncio.wait_for(runner.wait_until(lambda: mirror.newest), PATIENCE_S)
    shutil.rmtree(tmp_path / "store" / "count")
    (tmp_path / "store" / "another run").mkdir()
    runner.post(FlushRequested("test"))
    await asyncio.wait_for(
        runner.wait_until(lambda: ((mirror.newest or first) > first and not mirror.waits) or None), PATIENCE_S
    )
    elsewhere = MirroredRun(Store(f"file://{tmp_path}/store/count"), tmp_path / "other", 5)
    (tmp_path / "other").mkdir()

    assert elsewhere.fetch(None, None, frozenset()).fetched == mirror.newest


async def test_training_goes_on_while_credentials_are_expired_and_uploads_once_they_are_not(
    tmp_path: Path, programs: Make, s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mirror_module, "RETRY_S", 0.1)
    expired = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    with FaultyProxy(s3_store.endpoint) as proxy:
        made = programs(durable_job(tmp_path, s3_store.url, **s3_store.behind(proxy.endpoint).environment))
        await made.start_all()
        await training(made, "count")
        runner = made.runners["count"]
        mirror = runner.mirror
        assert mirror is not None
        await asyncio.wait_for(runner.wait_until(lambda: mirror.status.epoch), PATIENCE_S)
        proxy.fault = Fault(1, Moment.BEFORE, is_lasting=True, status=400, content=expired)
        runner.post(FlushRequested("test"))
        await asyncio.wait_for(runner.wait_until(lambda: mirror.error), PATIENCE_S)
        described, step = full_description(runner), runner.records.training.step or 0
        await asyncio.wait_for(
            runner.wait_until(lambda: (runner.records.training.step or 0) > step or None), PATIENCE_S
        )
        proxy.fault = None
        await asyncio.wait_for(runner.wait_until(lambda: mirror.newest), PATIENCE_S)

        assert "(ExpiredToken: The provided token has expired.); renew the credentials" in described
        assert mirror.error is None
        await made.stop_all()


async def test_upload_that_an_earlier_daemon_left_is_finished_before_the_provider_goes_ahead(
    tmp_path: Path, programs: Make, services: Services, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mirror_module, "RETRY_S", 0.1)
    name = made_checkpoint(tmp_path / "count", 100)
    (tmp_path / "store").write_text("a file where the folder should be")
    text = durable_job(tmp_path, f"file://{tmp_path}/store", "autostart = false")
    made, notices, _ = await watched(programs, services, text, provider := Provider())
    mirror = made.runners["count"].mirror
    assert mirror is not None
    report(provider.sink.result(), raw_notice())
    # the daemon looks for what an earlier one left only now
    await stays_async(lambda: not provider.acknowledged.is_set(), "the provider waits", 0.1)
    await made.start_all()
    await asyncio.wait_for(made.runners["count"].wait_until(lambda: mirror.error), PATIENCE_S)
    acknowledged_before, described = provider.acknowledged.is_set(), full_description(made.runners["count"])
    (tmp_path / "store").unlink()
    (tmp_path / "store" / "count").mkdir(parents=True)
    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)

    assert not acknowledged_before
    assert "not in the mirror: cannot" in described
    assert list((tmp_path / "store").rglob(f"{name}/MANIFEST.json"))
    await notices.stop_watching()


async def test_what_the_store_has_already_keeps_no_provider_waiting_and_takes_no_run_over(
    tmp_path: Path, programs: Make, services: Services
):
    name = made_checkpoint(tmp_path / "count", 100)
    earlier = host(f"file://{tmp_path}/store/count", tmp_path / "count")
    earlier.upload(name, earlier.begin_epoch(name, 0))
    made, notices, _ = await watched(
        programs,
        services,
        durable_job(tmp_path, f"file://{tmp_path}/store", "autostart = false"),
        provider := Provider(),
    )
    report(provider.sink.result(), raw_notice())
    await made.start_all()
    mirror = made.runners["count"].mirror
    assert mirror is not None
    repeated = Committed(1, 100, str(name), 1, 1.0, 0.0)  # as by a worker that is adopted
    mirror.on_message(repeated, time.monotonic())

    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    mirror.on_message(repeated, time.monotonic())

    assert not mirror.waits
    assert earlier.epochs().keys() == {1}
    await notices.stop_watching()


async def test_checkpoints_of_a_run_that_another_host_has_are_not_finished(
    tmp_path: Path, programs: Make, services: Services
):
    store = f"file://{tmp_path}/store/count"
    earlier = host(store, tmp_path / "count")
    shared = made_checkpoint(tmp_path / "count", 100)
    earlier.upload(shared, earlier.begin_epoch(shared, 0))
    MirroredRun(Store(store), tmp_path / "other", 5).begin_epoch(shared, 1)
    made_checkpoint(tmp_path / "count", 200)
    made, notices, _ = await watched(
        programs,
        services,
        durable_job(tmp_path, f"file://{tmp_path}/store", "autostart = false"),
        provider := Provider(),
    )
    report(provider.sink.result(), raw_notice())
    await made.start_all()

    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)

    assert earlier.epochs().keys() == {1, 2}
    assert not list((tmp_path / "store").rglob("step-0000000200*"))
    assert made.runners["count"].state is State.STOPPED
    await notices.stop_watching()


async def test_daemon_leaves_although_the_store_fails(tmp_path: Path, programs: Make):
    (tmp_path / "store").write_text("a file where the folder should be")
    made = programs(durable_job(tmp_path, f"file://{tmp_path}/store", "autostart = false"))
    await made.start_all()
    runner = made.runners["count"]
    mirror = runner.mirror
    assert mirror is not None
    mirror.on_selected(effects.SendGo(1, str(tmp_path / "count" / "step-0000000100.a1")))
    mirror.on_message(Progress(1, 101), time.monotonic())

    await asyncio.wait_for(made.stop_all(), PATIENCE_S)

    assert mirror.waits
    assert mirror.error is not None
    await asyncio.sleep(0.1)  # what was tried last is given up
    await asyncio.wait_for(made.stop_all(), PATIENCE_S)  # asked twice, it has nothing more to wait for
