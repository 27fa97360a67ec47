"""What `status` says of a job: the stage of its start, its place in a gang."""

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load_config
from supervisor.control.commands.descriptions import full_description
from supervisor.control.commands.job_status import GangAnswer, JobStatus, job_status
from supervisor.core.program.events import CheckpointSelected
from supervisor.core.program.facts import State
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.checkpoints.account import Older, ProgressAccount, ReportedCheckpoint
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from supervisor.runner.records.training import TrainingStatus


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Callable[..., Runner]]:
    """Makes runners of a job; keywords are of Services."""
    path = tmp_path / "supervisord.conf"
    path.write_text(f"[supervisord]\n[program:train]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/ckpt\n")
    config = load_config(path, {}).programs["train"]
    ledger, logs = Ledger(tmp_path / "ledger.sqlite3"), LogCapture(tmp_path / "state")
    services = Services(ledger, logs, CheckpointStore(), tmp_path / "state", tmp_path / "run", {}, server_url=None)

    def make(**changes: Any) -> Runner:
        made = Runner(config, replace(services, **changes))
        made.takeover.advance(TakeoverStage.STARTABLE)
        return made

    yield make
    ledger.close()


async def test_an_earlier_daemon_is_mentioned_only_where_it_has_left_something(runner: Callable[..., Runner]):
    """At the first start in a new folder there was none."""
    first = runner()
    first.takeover.stage = TakeoverStage.LOOKING
    idle = full_description(first)
    first.facts.wanted = True
    due = full_description(first)
    first.takeover.has_leftovers = True

    assert idle == "Not started"
    assert due == "waiting for its turn to start"
    assert full_description(first) == "waiting for processes of an earlier daemon to exit"


async def test_where_an_attempt_began_is_said_only_while_it_runs(
    runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
):
    """Once it has stopped, "begins at step 0" would be understood of the next start."""
    job = runner()
    job.records.training.on_message(messages.Restored(1, 0, None, 0.1), 0.0)
    job.facts.current.older = Older(OlderBecause.OPERATOR, "begins at step 0, behind step 400")

    for state, is_said in ((State.RUNNING, True), (State.STOPPED, False)):
        monkeypatch.setattr(Runner, "state", state)
        assert ("begins at step 0" in full_description(job)) is is_said


async def test_start_of_a_job_says_how_far_it_is(runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Runner, "state", State.STARTING)
    job = runner()
    training = job.records.training

    def stage() -> str:
        return full_description(job).partition(", ")[2]

    assert stage() == "importing"
    training.on_message(messages.Hello(1, messages.PROTOCOL, 7, "1"), 0.0)
    assert stage() == "preparing"
    job.facts.current.checkpoint = CheckpointSelected(1, "/srv/digits/step-0000000400.a1", 400)
    assert stage() == "restoring step-0000000400.a1"
    training.on_message(messages.Restored(1, 400, "step-0000000400.a1", 0.1), 0.0)
    assert stage() == "restored step-0000000400.a1, tracing"
    training.reset_for_attempt()
    assert stage() == "importing"


async def test_a_job_says_what_is_newest_in_memory_and_on_the_disk_and_what_copies_cost(
    runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Runner, "state", State.RUNNING)
    job = runner()
    training = job.records.training
    training.on_message(messages.Restored(1, 0, None, 0.1), 0.0)

    training.on_message(messages.MemoryCopies(1, 7, 5, 805 << 20), 0.0)
    copied = {"memory_step": 1204, "memory_interval_s": 4.1, "memory_cost_s": 0.041}
    training.on_message(messages.Progress(1, 1250, **copied), 0.0)
    assert ", newest: step 1,204 in memory, none on disk, copied every 4 s (41 ms each, 805.0 MB)" in full_description(
        job
    )

    training.on_message(messages.Progress(1, 1250, **{**copied, "memory_interval_s": 0.25, "memory_cost_s": 4e-4}), 0.0)
    assert "copied every 0.25 s (0.4 ms each, 805.0 MB)" in full_description(job)
    training.on_message(messages.Progress(1, 1250, **copied), 0.0)

    # an earlier daemon was told of it
    reported = ReportedCheckpoint(900, "step-0000000900.a1", "/srv/digits", wall_at=time.time() - 61.5)
    job.facts.account = ProgressAccount(reported)
    assert "memory, 900 on disk (0:01:01 ago), copied" in full_description(job)

    job.records.committed_at = time.monotonic() - 20.5
    training.on_message(messages.Committed(1, 1100, "step-0000001100.a1", 400_000_000, 2.0, 0.1), 0.0)
    assert ", newest: step 1,204 in memory, 1,100 on disk (0:00:20 ago), copied every 4 s" in full_description(job)

    training.on_message(messages.MemoryCopies(1, 7, None, 0, "memory is short"), 0.0)
    training.on_message(messages.Progress(1, 1260), 0.0)
    assert ", checkpoint 1100 (0:00:20 ago), no copies in memory: memory is short" in full_description(job)


async def test_a_rank_says_which_of_how_many_nodes_it_is(
    runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
):
    rank = runner(gang=GangPlace(Allocation(7, 1, ("n1", "n2", "n3"), 2, 2005)))
    alone = runner()
    monkeypatch.setattr(Runner, "state", State.RUNNING)

    assert "rank 1 (n2) of 3 nodes, generation 2005" in full_description(rank)
    proofs = Proofs({}, rank._persisted_state._services)
    assert (status := job_status(rank, proofs)) is not None
    assert status.gang == GangAnswer(1, ("n1", "n2", "n3"), 2005)
    assert "rank" not in full_description(alone)
    assert (other := job_status(alone, proofs)) is not None
    assert other.gang is None


async def test_a_spare_node_says_that_it_waits_and_for_whom(runner: Callable[..., Runner]):
    place = GangPlace(Allocation(7, 2, ("n1", "n2", "n3"), 2, 2005), spare_of=("n1", "n2"))
    spare = runner(gang=place)

    assert full_description(spare) == (
        "spare node, waits until one of those that train is lost or leaves (n1, n2), generation 2005"
    )
    assert (status := job_status(spare, Proofs({}, spare._persisted_state._services))) is not None
    assert status.gang == GangAnswer(None, ("n1", "n2"), 2005)


async def test_the_first_node_names_those_that_have_left(
    runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Runner, "state", State.STARTING)
    chief = runner(gang=GangPlace(Allocation(7, 0, ("n1", "n3"), 2, 2006), left=("n2",)))

    assert "rank 0 (n1) of 2 nodes, generation 2006, left because of a notice: n2" in full_description(chief)
    assert (status := job_status(chief, Proofs({}, chief._persisted_state._services))) is not None
    assert status.gang == GangAnswer(0, ("n1", "n3"), 2006, ("n2",))


def test_a_job_is_shown_with_all_that_is_known_of_its_training():
    shown = {field.name: field.type for field in fields(JobStatus)}

    assert {field.name: shown.get(field.name) for field in fields(TrainingStatus)} == {
        field.name: field.type for field in fields(TrainingStatus)
    }
