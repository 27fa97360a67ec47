"""What a worker of a gang tells its own daemon of the saves, which the chief makes."""

from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, FromWorker
from worker.data.collectives import Gang
from worker.process.attempt import Attempt
from worker.process.requests import PendingRequests
from worker.run.rank_reports import NO_CHECKPOINT, NewestCheckpoint, RankReports

pytestmark = pytest.mark.tensorflow

RESTORED = NewestCheckpoint(100, 3, 4096, save_ms=0, age_s=60)
SAVED = NewestCheckpoint(110, 4, 4096, save_ms=20_500)


class Told:
    """The daemon of rank 1."""

    def __init__(self) -> None:
        self.messages: list[FromWorker] = []

    def send_message(self, message: FromWorker) -> None:
        self.messages.append(message)

    def commits(self) -> list[Any]:
        told, self.messages = self.messages, []
        commits = [each for each in told if isinstance(each, Committed)]
        return [(each.step, each.checkpoint, each.save_s, each.flushes) for each in commits if each.ago_s is None]

    def repeated(self) -> list[Any]:
        told, self.messages = self.messages, []
        commits = [each for each in told if isinstance(each, Committed)]
        return [(each.step, each.checkpoint, each.ago_s, each.flushes) for each in commits if each.ago_s is not None]


@pytest.fixture
def daemon() -> Told:
    return Told()


@pytest.fixture
def reports(daemon: Told) -> RankReports:
    attempt = Attempt(Launch(checkpoint_dir=Path("/ckpt")), PendingRequests(), daemon, number=4)  # type: ignore[arg-type]
    return RankReports(Gang(1, 2, None), attempt)


def test_it_says_how_long_a_save_took(reports: RankReports, daemon: Told) -> None:
    """Its daemon plans the last flush with that."""
    reports.report_commit(SAVED)
    reports.report_commit(SAVED)

    assert daemon.commits() == [(110, "step-0000000110.a4", 20.5, ())]


def test_what_was_restored_is_no_commit(reports: RankReports, daemon: Told) -> None:
    reports.report_commit(RESTORED)

    assert daemon.commits() == []


def test_a_flush_at_the_restored_step_is_answered(reports: RankReports, daemon: Told) -> None:
    reports.report_commit(RESTORED)
    reports.add_flushes(100, (7,))
    reports.report_commit(RESTORED)
    reports.report_commit(RESTORED)

    assert daemon.repeated() == [(100, "step-0000000100.a3", 60.0, (7,))]


def test_a_later_flush_waits_for_a_later_commit(reports: RankReports, daemon: Told) -> None:
    reports.add_flushes(105, (8,))
    reports.report_commit(NO_CHECKPOINT)
    reports.report_commit(RESTORED)
    reports.report_commit(SAVED)

    assert daemon.commits() == [(110, "step-0000000110.a4", 20.5, (8,))]
