"""A program whose directory or command is on a disk that is away waits for it; a mistake fails at once."""

import errno
from dataclasses import replace

import pytest

from supervisor.core.failures.start_paths import UnreachablePath
from supervisor.core.job import Job
from supervisor.core.program.effects import LookAtStartPaths, RecordEnd, Spawn
from supervisor.core.program.events import (
    CheckpointSelected,
    SpawnFailed,
    SpawnSucceeded,
    StartPathsSeen,
    StartRequested,
    StepsDone,
    StopRequested,
    WorkerExited,
)
from supervisor.core.program.facts import Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist

PATHS = ("/data/run", "python")
JOB = Policy("digits", is_job=True, checkpoint_dir="/data/digits", start_paths=PATHS, startretries=1)
PLAIN = Policy("web", is_job=False, start_paths=PATHS)
GONE = UnreachablePath("/data/run", errno.ENOENT, "/")
MISSING = SpawnFailed(1, "cannot start digits: its directory /data/run does not exist", permanent=True, missing=GONE)


def failed(policy: Policy, event: SpawnFailed, worked: bool = False, mount: str | None = None) -> Job:
    """A job whose first start met this failure. `worked`: a daemon before started it from the same paths."""
    job = Job(policy)
    if worked:
        job.facts.worked_paths = policy.start_paths
    job.facts.mount = mount
    job.handle(StartRequested(), 0.0)
    job.handle(event, 1.0)
    return job


@pytest.mark.parametrize("policy", [JOB, PLAIN])
def test_a_directory_that_never_was_there_is_a_mistake(policy: Policy):
    job = failed(policy, MISSING)

    assert job.state is State.FAILED
    assert job.facts.reason == MISSING.error


@pytest.mark.parametrize("policy", [JOB, PLAIN])
def test_one_that_worked_before_is_waited_for_without_spending_a_budget(policy: Policy):
    job = failed(policy, MISSING, worked=True)
    looks = [job.expire(job.deadline() or 0.0)]
    for _ in range(20):
        assert job.handle(StartPathsSeen(1, "still away"), job.deadline() or 0.0) == []
        looks.append(job.expire(job.deadline() or 0.0))

    assert looks == [[LookAtStartPaths(1)]] * 21
    assert job.state is State.BACKOFF and job.facts.waits_for_storage
    assert job.facts.failures.by_cause == {}
    assert "it was started from there before: once the disk is back, it starts by itself" in (job.facts.reason or "")

    back = job.handle(StartPathsSeen(1), 2000.0)

    assert Spawn(2) in back
    assert not job.facts.waits_for_storage


@pytest.mark.parametrize(
    ("change", "mount", "why"),
    [
        ({"unmounted": "/data is in /etc/fstab and not mounted"}, None, "/data is in /etc/fstab and not mounted"),
        ({}, "xfs at /data", "/data is not mounted, where its last checkpoints were"),
        ({"mount_point": "/data"}, "xfs at /data", None),
        ({}, "ext4 at /", None),
        ({}, "xfs at /other", None),
        ({"errno": errno.EIO}, None, "its file system fails"),
        ({"errno": errno.ESTALE}, None, "its file system fails"),
        ({"errno": errno.ENOTCONN}, None, "its file system fails"),
        ({"errno": errno.EACCES}, None, None),
        ({"errno": errno.ENOEXEC, "unmounted": "/data"}, None, None),
    ],
)
def test_what_tells_a_disk_that_is_away_from_a_mistake(change: dict, mount: str | None, why: str | None):
    job = failed(JOB, replace(MISSING, missing=replace(GONE, **change)), mount=mount)

    assert job.state is (State.FAILED if why is None else State.BACKOFF)
    assert why is None or f"; {why}: once" in (job.facts.reason or "")


def test_other_paths_than_before_are_a_mistake_if_they_are_missing():
    job = Job(JOB)
    job.facts.worked_paths = ("/data/ran", "python")
    job.handle(StartRequested(), 0.0)

    job.handle(MISSING, 1.0)

    assert job.state is State.FAILED


@pytest.mark.parametrize("policy", [JOB, PLAIN])
def test_the_next_daemon_knows_what_worked(policy: Policy):
    job = Job(policy)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 1.0)
    later = Job(policy)
    later.recall_persisted(facts_to_persist(job.facts, 2.0), 0.0, 1.0)
    later.handle(StartRequested(), 3.0)

    effects = later.handle(replace(MISSING, attempt=later.facts.attempt), 4.0)

    assert later.state is State.BACKOFF
    assert [effect.cause for effect in effects if isinstance(effect, RecordEnd)] == ["storage"]


def test_a_stop_ends_the_waiting_and_a_late_answer_starts_nothing():
    job = failed(JOB, MISSING, worked=True)
    job.expire(job.deadline() or 0.0)
    job.handle(StopRequested(), 10.0)

    assert job.handle(StartPathsSeen(1), 11.0) == []
    assert job.state is State.STOPPED


def test_it_is_not_told_from_the_wait_for_checkpoints_by_a_late_selection():
    job = failed(JOB, MISSING, worked=True)

    job.handle(CheckpointSelected(1, None, None), 1.5)
    job.expire(job.deadline() or 0.0)
    job.handle(StartPathsSeen(1), 3.0)
    job.handle(SpawnSucceeded(2), 3.1)
    job.handle(CheckpointSelected(2, None, None), 3.2)
    job.handle(StepsDone(2, 1), 3.3)

    assert job.state is State.RUNNING and job.facts.storage is None
    job.handle(WorkerExited(2, 1), 4.0)
    assert job.facts.failures.by_cause == {"crash": 1}
