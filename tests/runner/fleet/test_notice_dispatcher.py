"""From a source to the programs: which program gets what, and when a provider is told to go ahead."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load_config
from supervisor.core.notices.active import ActiveNotices, RememberedNotice
from supervisor.core.notices.notice import Certainty, ClockReading, NoticeKind, NoticeReport, RawNotice
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.notices.source import NoticeSink, read_clocks
from supervisor.host.notices.store import NoticeStore
from supervisor.host.service.loop_share import LoopShare
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.expected_times import ExpectedTimes
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.program.runner import Runner
from tests.system.harness import job
from tests.waiting import stays_async

PATIENCE_S = 60.0  # for what takes about a second; the machine may be busy
HOUR_S = 3600.0
MANY = 20


async def turns_until(is_over: Callable[[], bool]) -> list[float]:
    """How long each turn of the event loop took, in seconds."""
    turns, loop = [0.0], asyncio.get_running_loop()
    while not is_over():
        began_at = loop.time()
        await asyncio.sleep(0)
        turns.append(loop.time() - began_at)
    return turns


class Provider:
    """The edge of the world: a source whose notices the test gives."""

    name = "provider"
    shortest_s = 30.0

    def __init__(self) -> None:
        self.sink: asyncio.Future[NoticeSink] = asyncio.get_running_loop().create_future()
        self.acknowledged = asyncio.Event()
        self.acknowledged_ids: list[str] = []
        self.breaks = False

    async def watch(self, sink: NoticeSink) -> None:
        if self.breaks:
            raise RuntimeError("a mistake")
        self.sink.set_result(sink)
        await asyncio.Event().wait()

    async def acknowledge(self, id: str) -> None:
        self.acknowledged_ids.append(id)
        self.acknowledged.set()


def raw_notice(in_s: float = HOUR_S, certainty: Certainty = Certainty.CERTAIN, id: str = "1") -> RawNotice:
    return RawNotice(id, id, NoticeKind.PREEMPTION, certainty, None, in_s, is_cancellable=True, text="")


def report(sink: NoticeSink, *notices: RawNotice, now: ClockReading | None = None) -> None:
    """Reports that these notices hold, and no others."""
    sink.on_report("provider", "events", NoticeReport(notices), now or read_clocks())


@pytest.fixture
async def programs(tmp_path: Path, services: Services) -> AsyncIterator[Callable[..., Programs]]:
    """Makes programs of a configuration; all end with the test."""
    made = list[Programs]()

    def make(text: str, services: Services = services, **how: Any) -> Programs:
        path = tmp_path / "test.conf"
        path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{text}")
        config = load_config(path, os.environ)
        config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
        made.append(Programs(config, lambda: load_config(path, os.environ), services, **how))
        return made[-1]

    yield make
    for each in made:
        await asyncio.wait_for(each.stop_all(), PATIENCE_S)


def dispatcher(
    runners: Mapping[str, Runner], store: NoticeStore | None = None, share: LoopShare | None = None, **how: Any
) -> NoticeDispatcher:
    active = ActiveNotices(60.0)
    return NoticeDispatcher(active, ExpectedTimes(active, runners), runners, share or LoopShare(), store, **how)


async def listen(
    runners: Mapping[str, Runner], provider: Provider, share: LoopShare | None = None
) -> tuple[NoticeDispatcher, NoticeSink]:
    notices = dispatcher(runners, share=share)
    notices.watch_sources([provider])
    return notices, await asyncio.wait_for(provider.sink, PATIENCE_S)


async def training(programs: Programs, name: str) -> None:
    runner = programs.runners[name]
    await asyncio.wait_for(runner.wait_until(lambda: (runner.records.training.step or 0) > 2 or None), PATIENCE_S)


@pytest.mark.integration
async def test_provider_is_acknowledged_once_the_last_checkpoint_is_there_and_the_worker_has_left(
    tmp_path: Path, programs: Callable[..., Programs]
):
    made = programs(job("count", tmp_path, f"notice_margin = {2 * HOUR_S:g}", STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made.runners, provider := Provider())
    await made.start_all()
    await training(made, "count")

    report(sink, raw_notice())

    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    runner = made.runners["count"]
    assert (runner.state, runner.facts.waits_for_host, runner.pid) == (State.BACKOFF, True, None)
    assert runner.records.training.checkpoint is not None
    await notices.stop_watching()


@pytest.mark.integration
async def test_provider_is_not_acknowledged_while_a_job_trains_on_with_time_left(
    tmp_path: Path, programs: Callable[..., Programs]
):
    made = programs(job("count", tmp_path, STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made.runners, provider := Provider())
    await made.start_all()
    await training(made, "count")

    report(sink, raw_notice())
    runner = made.runners["count"]
    await asyncio.wait_for(runner.wait_until(lambda: runner.records.training.checkpoint), PATIENCE_S)

    assert not provider.acknowledged.is_set()
    assert runner.state is not State.BACKOFF
    report(sink)
    assert runner.facts.notice is None
    await notices.stop_watching()


@pytest.mark.integration
async def test_provider_is_not_acknowledged_while_a_job_trains_that_began_to_after_the_notice(
    tmp_path: Path, programs: Callable[..., Programs]
):
    text = job("first", tmp_path, "autostart = false", STEPS=1_000_000, EVERY=1_000_000)
    made = programs(text + job("second", tmp_path, STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made.runners, provider := Provider())
    await made.start_all()
    await training(made, "second")
    report(sink, raw_notice())

    made.runners["first"].post(events.StartRequested())
    await training(made, "first")
    second = made.runners["second"]
    second.post(events.StopRequested())
    await asyncio.wait_for(second.until_gone(), PATIENCE_S)

    await stays_async(lambda: not provider.acknowledged.is_set(), "the host may not go while it trains", 0.5)
    made.runners["first"].post(events.StopRequested())
    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    await notices.stop_watching()


async def test_possible_notice_is_not_acknowledged_until_it_is_certain(
    tmp_path: Path, programs: Callable[..., Programs]
):
    made = programs(job("count", tmp_path, "autostart = false"))
    notices, sink = await listen(made.runners, provider := Provider())
    await made.start_all()

    report(sink, raw_notice(certainty=Certainty.POSSIBLE, id="hint"), raw_notice(id="sure"))
    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    assert provider.acknowledged_ids == ["sure"]

    provider.acknowledged.clear()
    report(sink, raw_notice(id="hint"), raw_notice(id="sure"))
    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    assert provider.acknowledged_ids == ["sure", "hint"]
    await notices.stop_watching()


async def test_program_added_by_an_update_gets_the_notice_that_holds(tmp_path: Path, programs: Callable[..., Programs]):
    runners = dict[str, Runner]()
    notices, sink = await listen(runners, Provider())
    text, on_added = job("count", tmp_path, "autostart = false"), notices.post_current_notice
    made = programs(text, runners=runners, on_added=on_added)
    await made.start_all()
    now = read_clocks()
    report(sink, raw := raw_notice(10.0), now=now)
    conf = tmp_path / "test.conf"
    conf.write_text(conf.read_text() + job("late", tmp_path))
    await made.configuration.reread()

    await made.updating.update()

    late = made.runners["late"]
    assert late.facts.notice == raw.to_notice("provider", now)
    assert (late.state, late.pid) == (State.BACKOFF, None)
    await notices.stop_watching()


@pytest.mark.integration
async def test_repeated_notice_flushes_once_and_a_moved_deadline_moves(
    tmp_path: Path, programs: Callable[..., Programs]
):
    made = programs(job("count", tmp_path, STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made.runners, Provider())
    await made.start_all()
    await training(made, "count")
    runner, raw, now = made.runners["count"], raw_notice(), read_clocks()

    report(sink, raw, now=now)
    asked = runner.facts.flushes_requested
    report(sink, raw)
    report(sink, replace(raw, warning_s=HOUR_S + 100.0), now=now)

    assert runner.facts.flushes_requested == asked == 1
    assert runner.facts.notice is not None
    assert runner.facts.notice.deadline_at == now.monotonic_at + HOUR_S + 100.0
    await notices.stop_watching()


async def test_host_that_was_suspended_plans_for_an_earlier_deadline(tmp_path: Path, programs: Callable[..., Programs]):
    """The monotonic clock stood still, and the provider's did not."""
    made = programs(job("count", tmp_path, "autostart = false"))
    notices, sink = await listen(made.runners, Provider())
    runner, raw, now = made.runners["count"], raw_notice(), read_clocks()
    report(sink, raw, now=now)

    report(sink, raw, now=replace(now, asleep_s=now.asleep_s + 600.0))

    assert runner.facts.notice is not None
    assert runner.facts.notice.deadline_at == pytest.approx(now.monotonic_at + HOUR_S - 600.0, abs=0.1)
    report(sink, raw, now=replace(now, asleep_s=now.asleep_s + 600.0))
    assert runner.facts.notice.deadline_at == pytest.approx(now.monotonic_at + HOUR_S - 600.0, abs=0.1), "once"
    await notices.stop_watching()


async def test_restored_notice_holds_until_all_endpoints_of_its_source_have_answered(
    tmp_path: Path, programs: Callable[..., Programs]
):
    made = programs(job("count", tmp_path, "autostart = false"))
    runner, store = made.runners["count"], NoticeStore(tmp_path)
    told = raw_notice().to_notice("provider", read_clocks())
    store.save([RememberedNotice(told, 0.0, is_expired=False)])
    notices = dispatcher(made.runners, store, settle_s=0.05)
    provider = Provider()
    notices.watch_sources([provider])
    sink = await asyncio.wait_for(provider.sink, PATIENCE_S)
    assert runner.facts.notice == told, "before anybody was asked"

    sink.on_source_health("provider", None)
    sink.on_source_health("provider", "one of its questions times out")
    await stays_async(lambda: runner.facts.notice == told, "the notice holds", 0.2)  # taking it back takes 0.05 s

    sink.on_source_health("provider", None)
    await asyncio.wait_for(runner.wait_until(lambda: runner.facts.notice is None or None), PATIENCE_S)
    await notices.stop_watching()
    assert store.load() == []


class StuckStore(NoticeStore):
    """Its disk does not answer before `goes_on`."""

    goes_on = threading.Event()

    def save(self, notices: Iterable[RememberedNotice]) -> None:
        self.goes_on.wait(PATIENCE_S)
        super().save(notices)


async def test_a_disk_that_does_not_answer_keeps_no_notice_waiting(tmp_path: Path, programs: Callable[..., Programs]):
    made = programs(job("count", tmp_path, "autostart = false"))
    runner, store = made.runners["count"], StuckStore(tmp_path)
    notices = dispatcher(made.runners, store)
    provider = Provider()
    notices.watch_sources([provider])
    sink = await asyncio.wait_for(provider.sink, PATIENCE_S)

    started = time.monotonic()
    report(sink, raw_notice())
    report(sink)
    report(sink, raw_notice())
    assert time.monotonic() - started < PATIENCE_S / 2
    assert runner.facts.notice is not None

    store.goes_on.set()
    await notices.stop_watching()
    assert [remembered.notice for remembered in store.load()] == [runner.facts.notice], "the newest counts"


async def test_provider_is_acknowledged_by_the_next_daemon_once_it_reports_again(
    tmp_path: Path, programs: Callable[..., Programs]
):
    made = programs(job("count", tmp_path, "autostart = false"))
    raw = raw_notice()
    told = raw.to_notice("provider", read_clocks())
    NoticeStore(tmp_path).save([RememberedNotice(told, 0.0, is_expired=False)])
    notices = dispatcher(made.runners, NoticeStore(tmp_path))
    provider = Provider()
    notices.watch_sources([provider])
    sink = await asyncio.wait_for(provider.sink, PATIENCE_S)
    await made.start_all()

    report(sink, raw)

    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    assert provider.acknowledged_ids == [told.id]
    await notices.stop_watching()


async def test_source_that_fails_is_in_error_and_the_others_go_on(tmp_path: Path, programs: Callable[..., Programs]):
    made = programs(job("count", tmp_path, "autostart = false"))
    broken, works = Provider(), Provider()
    broken.breaks, broken.name = True, "broken"
    notices = dispatcher(made.runners)

    notices.watch_sources([broken, works])

    sink = await asyncio.wait_for(works.sink, PATIENCE_S)
    assert {each.name: each.error is None for each in notices.source_health} == {"broken": False, "provider": True}
    sink.on_source_health("provider", "cannot ask it: timed out")
    assert notices.source_health[1].error == "cannot ask it: timed out"
    sink.on_source_health("provider", None)
    assert notices.source_health[1].error is None
    assert notices.shortest_s == 30.0
    await notices.stop_watching()


@pytest.mark.integration
async def test_the_end_of_a_notice_that_many_jobs_waited_for_leaves_the_event_loop_its_turns(
    tmp_path: Path, programs: Callable[..., Programs], services: Services
) -> None:
    sections = [
        f"[program:{number}]\ncommand=/bin/sleep 60\nnotice_margin={2 * HOUR_S:g}\ncheckpoint_dir={tmp_path}/{number}\n"
        for number in range(MANY)
    ]
    made = programs("".join(sections))
    notices, sink = await listen(made.runners, Provider(), services.loop_share)
    report(sink, raw_notice())
    await made.start_all()
    assert all(runner.facts.waits_for_host for runner in made.runners.values())

    turns = asyncio.ensure_future(turns_until(lambda: all(runner.pid for runner in made.runners.values())))
    await asyncio.sleep(0)
    report(sink)

    assert max(await turns) < sum(await turns) / 4
    await notices.stop_watching()
