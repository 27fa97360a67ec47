"""Between a source and the programs: who hears what, and when a provider gets its answer."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.core.notices.active import RememberedNotice
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program.facts import State
from supervisor.host.notices.source import NoticeSink
from supervisor.host.notices.store import NoticeStore
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.records.saves import SaveDurations
from tests.system.harness import job

PATIENCE_S = 60.0  # for what takes about a second; the machine may be busy
HOUR_S = 3600.0


class Provider:
    """The edge of the world: a source whose notices the test gives."""

    name = "provider"
    shortest_s = 30.0

    def __init__(self) -> None:
        self.sink: asyncio.Future[NoticeSink] = asyncio.get_running_loop().create_future()
        self.acknowledged = asyncio.Event()
        self.answered: list[str] = []
        self.breaks = False

    async def watch(self, sink: NoticeSink) -> None:
        if self.breaks:
            raise RuntimeError("a mistake")
        self.sink.set_result(sink)
        await asyncio.Event().wait()

    async def acknowledge(self, id: str) -> None:
        self.answered.append(id)
        self.acknowledged.set()


def notice(in_s: float = HOUR_S, certainty: Certainty = Certainty.CERTAIN, id: str = "1") -> Notice:
    deadline_at = asyncio.get_running_loop().time() + in_s
    return Notice("provider", id, NoticeKind.PREEMPTION, certainty, deadline_at, is_cancellable=True, text="")


@pytest.fixture
async def programs(tmp_path: Path, services: Services) -> AsyncIterator[Callable[[str], Programs]]:
    """Makes programs of a configuration; all end with the test."""
    made = list[Programs]()

    def make(text: str) -> Programs:
        path = tmp_path / "test.conf"
        path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{text}")
        config = load_config(path, os.environ)
        config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
        made.append(Programs(config, lambda: load_config(path, os.environ), services))
        return made[-1]

    yield make
    for each in made:
        await asyncio.wait_for(each.stop_all(), PATIENCE_S)


async def listen(programs: Programs, provider: Provider) -> tuple[NoticeDispatcher, NoticeSink]:
    notices = NoticeDispatcher(SaveDurations(), 60.0, lambda: programs.runners)
    notices.watch_sources([provider])
    return notices, await asyncio.wait_for(provider.sink, PATIENCE_S)


async def training(programs: Programs, name: str) -> None:
    runner = programs.runners[name]
    await asyncio.wait_for(runner.wait_until(lambda: (runner.executor.training.step or 0) > 2 or None), PATIENCE_S)


async def test_the_provider_gets_its_answer_once_the_last_checkpoint_is_there_and_the_worker_has_left(
    tmp_path: Path, programs: Callable[[str], Programs]
):
    made = programs(job("count", tmp_path, f"notice_margin = {2 * HOUR_S:g}", STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made, provider := Provider())
    await made.start_all()
    await training(made, "count")

    sink.received(notice())

    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    runner = made.runners["count"]
    assert (runner.state, runner.facts.waits_for_host, runner.executor.pid) == (State.BACKOFF, True, None)
    assert runner.executor.training.checkpoint is not None
    await notices.stop_watching()


async def test_a_provider_waits_in_vain_while_a_job_trains_on_with_time_left(
    tmp_path: Path, programs: Callable[[str], Programs]
):
    made = programs(job("count", tmp_path, STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made, provider := Provider())
    await made.start_all()
    await training(made, "count")

    sink.received(notice())
    runner = made.runners["count"]
    await asyncio.wait_for(runner.wait_until(lambda: runner.executor.training.checkpoint), PATIENCE_S)

    assert not provider.acknowledged.is_set()
    assert runner.state is not State.BACKOFF
    sink.withdrawn("provider", "1")
    assert runner.facts.notice is None
    await notices.stop_watching()


async def test_a_possible_notice_is_not_answered_until_it_is_certain(
    tmp_path: Path, programs: Callable[[str], Programs]
):
    made = programs(job("count", tmp_path, "autostart = false"))
    notices, sink = await listen(made, provider := Provider())

    sink.received(notice(certainty=Certainty.POSSIBLE, id="hint"))
    sink.received(notice(id="sure"))
    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    assert provider.answered == ["sure"]

    provider.acknowledged.clear()
    sink.received(notice(id="hint"))
    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    assert provider.answered == ["sure", "hint"]
    await notices.stop_watching()


async def test_a_program_that_an_update_adds_hears_what_holds(tmp_path: Path, programs: Callable[[str], Programs]):
    made = programs(job("count", tmp_path, "autostart = false"))
    notices, sink = await listen(made, Provider())
    made.on_program_added = notices.post_current_notice
    sink.received(told := notice(10.0))
    conf = tmp_path / "test.conf"
    conf.write_text(conf.read_text() + job("late", tmp_path))
    await made.reread()

    await made.update()

    late = made.runners["late"]
    assert late.facts.notice == told
    assert (late.state, late.executor.pid) == (State.BACKOFF, None)
    await notices.stop_watching()


async def test_the_same_notice_twice_acts_once_and_a_moved_one_moves(
    tmp_path: Path, programs: Callable[[str], Programs]
):
    made = programs(job("count", tmp_path, STEPS=1_000_000, EVERY=1_000_000))
    notices, sink = await listen(made, Provider())
    await made.start_all()
    await training(made, "count")
    runner, told = made.runners["count"], notice()

    sink.received(told)
    asked = runner.facts.flushes_requested
    sink.received(told)
    sink.received(replace(told, deadline_at=told.deadline_at + 100.0))

    assert runner.facts.flushes_requested == asked == 1
    assert runner.facts.notice is not None
    assert runner.facts.notice.deadline_at == told.deadline_at + 100.0
    await notices.stop_watching()


async def test_what_an_earlier_daemon_heard_holds_until_its_source_has_said_all_it_has_to_say(
    tmp_path: Path, programs: Callable[[str], Programs]
):
    made = programs(job("count", tmp_path, "autostart = false"))
    runner, memory = made.runners["count"], NoticeStore(tmp_path)
    told = notice()
    memory.save([RememberedNotice(told, 0.0, is_expired=False)])
    notices = NoticeDispatcher(SaveDurations(), 60.0, lambda: made.runners, memory, tells_all_s=0.05)
    provider = Provider()
    notices.watch_sources([provider])
    sink = await asyncio.wait_for(provider.sink, PATIENCE_S)
    assert runner.facts.notice == told, "before anybody was asked"

    sink.troubled("provider", None)
    sink.troubled("provider", "one of its questions times out")
    await asyncio.sleep(0.2)  # longer than it would take to take it back
    assert runner.facts.notice == told

    sink.troubled("provider", None)
    await asyncio.wait_for(runner.wait_until(lambda: runner.facts.notice is None or None), PATIENCE_S)
    assert memory.load() == []
    await notices.stop_watching()


async def test_a_provider_is_answered_by_the_daemon_it_tells_again(tmp_path: Path, programs: Callable[[str], Programs]):
    made = programs(job("count", tmp_path, "autostart = false"))
    told = notice()
    NoticeStore(tmp_path).save([RememberedNotice(told, 0.0, is_expired=False)])
    notices = NoticeDispatcher(SaveDurations(), 60.0, lambda: made.runners, NoticeStore(tmp_path))
    provider = Provider()
    notices.watch_sources([provider])
    sink = await asyncio.wait_for(provider.sink, PATIENCE_S)

    sink.received(told)

    await asyncio.wait_for(provider.acknowledged.wait(), PATIENCE_S)
    assert provider.answered == [told.id]
    await notices.stop_watching()


async def test_a_source_that_breaks_is_told_of_and_the_others_go_on(
    tmp_path: Path, programs: Callable[[str], Programs]
):
    made = programs(job("count", tmp_path, "autostart = false"))
    broken, works = Provider(), Provider()
    broken.breaks, broken.name = True, "broken"
    notices = NoticeDispatcher(SaveDurations(), 60.0, lambda: made.runners)

    notices.watch_sources([broken, works])

    sink = await asyncio.wait_for(works.sink, PATIENCE_S)
    assert {each.name: each.error is None for each in notices.source_health} == {"broken": False, "provider": True}
    sink.troubled("provider", "cannot ask it: timed out")
    assert notices.source_health[1].error == "cannot ask it: timed out"
    sink.troubled("provider", None)
    assert notices.source_health[1].error is None
    assert notices.shortest_s == 30.0
    await notices.stop_watching()
