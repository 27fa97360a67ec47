"""Shutdowns that logind announces, on a real bus with a logind of these tests' own."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from supervisor.core.notices.notice import Certainty, NoticeKind
from supervisor.host.notices.logind.source import NOTICE_ID, LogindSource
from tests.host.notices.recorder import Recorder

pytest.importorskip("dbus_fast", reason="the optional dbus-fast is not installed")
if shutil.which("dbus-daemon") is None:
    pytest.skip("there is no dbus-daemon to make a bus with; apt-get install dbus", allow_module_level=True)

from tests.host.notices.fake_logind import FakeLogind

STOP_S = 90.0


@pytest.fixture
async def logind(tmp_path: Path) -> AsyncIterator[FakeLogind]:
    """A logind on a bus of its own."""
    logind = FakeLogind(tmp_path)
    await logind.start()
    yield logind
    await logind.stop()


def source(logind: FakeLogind) -> LogindSource:
    return LogindSource(address=logind.address, retry_cap_s=0.1)


@pytest.mark.integration
async def test_lock_is_taken_before_anything_is_announced(logind: FakeLogind, heard: Recorder) -> None:
    heard.watch(source(logind))
    await heard.more_answers(1)

    assert [(what, mode) for what, _, _, mode in logind.asked] == [("shutdown", "delay")]
    assert heard.received_all == []


@pytest.mark.integration
async def test_deadline_of_a_shutdown_is_the_delay_plus_the_stop_timeout(logind: FakeLogind, heard: Recorder) -> None:
    logind.delay_s = 7.0
    heard.watch(source(logind))
    await heard.more_answers(1)

    before_at = time.monotonic()
    await logind.prepare(True)
    notice = await heard.the_notice()
    after_at = time.monotonic()

    assert (notice.kind, notice.certainty, notice.is_cancellable) == (NoticeKind.SHUTDOWN, Certainty.CERTAIN, True)
    assert notice.deadline_at is not None
    assert before_at + 7 + STOP_S <= notice.deadline_at <= after_at + 7 + STOP_S


@pytest.mark.integration
async def test_cancelled_shutdown_is_withdrawn(logind: FakeLogind, heard: Recorder) -> None:
    heard.watch(source(logind))
    await heard.more_answers(1)
    await logind.prepare(True)
    notice = await heard.the_notice()

    await logind.prepare(False)
    await heard.until(lambda: heard.withdrawn_ids)

    assert heard.withdrawn_ids == [notice.id]


@pytest.mark.integration
async def test_signal_of_another_sender_is_not_believed(logind: FakeLogind, heard: Recorder) -> None:
    watching = source(logind)
    heard.watch(watching)
    await heard.more_answers(1)
    await watching.acknowledge(NOTICE_ID)
    await logind.until_unlocked()

    await logind.forge(True)
    await logind.prepare(False)
    await logind.until_asked(2)  # a new lock, after both were heard

    assert heard.received_all == []


@pytest.mark.integration
async def test_shutdown_that_began_before_the_start_is_reported(logind: FakeLogind, heard: Recorder) -> None:
    logind.is_preparing = True

    heard.watch(source(logind))

    assert (await heard.the_notice()).kind is NoticeKind.SHUTDOWN


@pytest.mark.integration
async def test_acknowledge_releases_the_lock_and_it_is_taken_again_for_the_next_shutdown(
    logind: FakeLogind, heard: Recorder
) -> None:
    watching = source(logind)
    heard.watch(watching)
    await heard.more_answers(1)
    await logind.prepare(True)
    notice = await heard.the_notice()
    assert logind.is_locked()

    await watching.acknowledge(notice.id)
    await logind.until_unlocked()

    await logind.prepare(False)
    await heard.until(lambda: heard.withdrawn_ids)
    await logind.prepare(True)
    await heard.until(lambda: len(heard.received_all) == 2)
    assert len(logind.asked) == 2


@pytest.mark.integration
async def test_refused_lock_shortens_the_warning_but_is_no_error(logind: FakeLogind, heard: Recorder) -> None:
    logind.refuses = True
    heard.watch(source(logind))
    await heard.more_answers(1)

    await logind.prepare(True)
    notice = await heard.the_notice()

    assert heard.errors == []
    assert notice.deadline_at is not None
    assert notice.deadline_at <= time.monotonic() + STOP_S


@pytest.mark.integration
async def test_lost_bus_is_an_error_until_it_is_back(logind: FakeLogind, heard: Recorder) -> None:
    watched = source(logind)
    heard.watch(watched)
    await heard.more_answers(1)

    await logind.stop()
    await heard.until(lambda: heard.error is not None)
    await logind.start()
    await heard.until(lambda: heard.error is None)
    await logind.prepare(True)

    assert (await heard.the_notice()).kind is NoticeKind.SHUTDOWN
    assert "cannot listen to logind" in heard.errors[0]
    assert watched._failures == 0, "the next time that the bus is lost, it is tried again at once, too"


async def test_missing_bus_is_an_error(tmp_path: Path, heard: Recorder) -> None:
    heard.watch(LogindSource(address=f"unix:path={tmp_path}/nobody", retry_cap_s=0.1))
    await heard.until(lambda: len(heard.errors) >= 2)

    assert "remove logind from notices" in heard.errors[0]


async def test_missing_package_is_reported_once_and_ends_nothing(
    heard: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [module for module in sys.modules if module.startswith("dbus_fast")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dbus_fast", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "supervisor.host.notices.logind.bus", raising=False)

    heard.watch(LogindSource())
    await heard.until(lambda: heard.error is not None)

    assert "pip install 'dbus-fast" in heard.errors[0]


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("systemd-inhibit") is None, reason="systemd-inhibit, the foreign judge, is not here")
async def test_fake_logind_satisfies_systemd_inhibit(logind: FakeLogind) -> None:
    argv = ["systemd-inhibit", "--what=shutdown", "--mode=delay", "--who=judge", "--why=test", "true"]
    environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": logind.address}

    judge = await asyncio.create_subprocess_exec(*argv, env=environment)

    assert await asyncio.wait_for(judge.wait(), 30) == 0
    assert logind.asked == [["shutdown", "judge", "test", "delay"]]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("usec", "main_pid", "shortest_s"),
    [(60_000_000, os.getpid(), 65.0), ((1 << 64) - 1, os.getpid(), 1805.0), (None, 0, None), (60_000_000, 1, None)],
    ids=["ours", "ours, without an end", "not asked", "another's"],
)
async def test_stop_timeout_of_the_service_is_added_to_the_delay(
    logind: FakeLogind, heard: Recorder, usec: int | None, main_pid: int, shortest_s: float | None
) -> None:
    logind.stop_usec, logind.main_pid = usec, main_pid
    watched = source(logind)
    heard.watch(watched)
    await heard.more_answers(1)

    assert watched.shortest_s == shortest_s
