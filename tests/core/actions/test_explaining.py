"""What a diagnosis changes in decisions, which is little, and what it says of what follows."""

import pytest

from supervisor.core.diagnosis.evidence import DeathKind, Diagnosis, Evidence, KernelLine, Source
from supervisor.core.job import Job
from supervisor.core.program.effects import Effect, RecordEnd, Spawn
from supervisor.core.program.events import FailureReported, SpawnFailed, StartRequested, StopRequested, WorkerExited
from supervisor.core.program.facts import AutoRestart, Policy, State
from supervisor.protocol.wire.exits import WorkerExit
from tests.core.actions.test_remedies import JOB, MICROBATCH, running

TRACE = "Traceback (most recent call last):\n  File 't.py', line 1\n"
NO_GPU_MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n"
PLAIN = Policy("web", is_job=False, startretries=1)


def died(job: Job, now: float, code: int | None = 1, signal: int | None = None, **evidence: object) -> list[Effect]:
    """The present attempt ends, and this was found."""
    return job.handle(WorkerExited(job.facts.attempt, code, signal, evidence=Evidence(**evidence)), now)


def record_in(effects: list[Effect]) -> RecordEnd:
    [record] = [effect for effect in effects if isinstance(effect, RecordEnd)]
    return record


def diagnosis_in(effects: list[Effect]) -> Diagnosis:
    diagnosis = record_in(effects).diagnosis
    assert diagnosis is not None
    return diagnosis


def test_lack_of_gpu_memory_that_only_the_output_shows_divides_the_batch():
    effects = died(running(MICROBATCH), 2.0, stderr=TRACE + NO_GPU_MEMORY)

    assert record_in(effects).cause == "out-of-memory"
    assert Spawn(2, microbatches=2) in effects


@pytest.mark.parametrize(
    "evidence",
    [
        {"stderr": NO_GPU_MEMORY + TRACE + "ValueError: bad shape\n"},
        {"stderr": TRACE + NO_GPU_MEMORY + TRACE + "ValueError: bad shape\n"},
        {"stderr": TRACE + "RuntimeError: CUDA error: unspecified launch failure\n"},
    ],
    ids=["printed before", "raised before", "another error of the GPU"],
)
def test_lack_of_memory_that_was_survived_divides_nothing(evidence: dict[str, str]):
    effects = died(running(MICROBATCH), 2.0, **evidence)

    assert record_in(effects).cause == "crash"
    assert Spawn(2) in effects


def test_the_kernels_word_is_enough_for_a_child_killed_for_memory():
    line = KernelLine(0.1, "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/own,task=python,pid=99,uid=0")
    stderr = TRACE + "BrokenProcessPool: A process in the process pool was terminated abruptly\n"

    effects = died(running(MICROBATCH), 2.0, stderr=stderr, kernel=(line,), cgroup="/own")

    assert record_in(effects).cause == "out-of-memory"


@pytest.mark.parametrize(
    "line", ["No space left on device", "cannot open shared object file", "NVIDIA driver on your system is too old"]
)
def test_what_the_operator_has_to_mend_is_retried_as_before(line: str):
    effects = died(running(JOB), 2.0, stderr=f"{TRACE}OSError: {line}\n")

    assert (record_in(effects).cause, diagnosis_in(effects).who) == ("crash", "the host's operator")
    assert Spawn(2) in effects


def test_the_reason_begins_with_what_happened():
    job = Job(PLAIN)
    job.handle(StartRequested(), 0.0)

    died(job, 0.1, stderr=f"{TRACE}OSError: [Errno 28] No space left on device\n")

    assert job.facts.reason == (
        "exited too quickly: a disk is full: OSError: [Errno 28] No space left on device (exit status 1)"
    )


def test_it_says_what_follows():
    job = Job(PLAIN)
    job.handle(StartRequested(), 0.0)

    first = diagnosis_in(died(job, 0.1))
    assert job.state is State.BACKOFF
    job.expire(10.0)
    second = diagnosis_in(died(job, 10.1))

    assert (first.follows, second.follows) == (
        "it is started again in 1 s",
        "it is not started again until somebody starts it",
    )


def test_a_start_that_failed_has_a_diagnosis():
    job = Job(PLAIN)
    job.handle(StartRequested(), 0.0)

    effects = job.handle(SpawnFailed(1, "cannot start web: Too many open files", permanent=False), 0.1)

    assert diagnosis_in(effects).kind is DeathKind.OPEN_FILES


def test_an_end_that_was_meant_has_none():
    stopped, done = Job(PLAIN), Job(Policy("once", is_job=False, startsecs=0, autorestart=AutoRestart.UNEXPECTED))
    for job in (stopped, done):
        job.handle(StartRequested(), 0.0)
    stopped.handle(StopRequested(), 5.0)

    ends = [stopped.handle(WorkerExited(1, signal=15), 6.0), done.handle(WorkerExited(1, code=0), 6.0)]

    assert [record_in(end).diagnosis for end in ends] == [None, None]


def test_a_status_with_a_meaning_of_its_own_keeps_its_words():
    job = running()
    job.handle(FailureReported(1, "loss of step 5 is nan", 5), 2.0)

    diagnosis = diagnosis_in(job.handle(WorkerExited(1, code=WorkerExit.DIVERGED), 2.1))

    assert (diagnosis.kind, diagnosis.source) == (DeathKind.REPORTED, Source.REPORT)
    assert diagnosis.line.startswith("loss of step 5 is nan (exit status 80")


def test_what_the_daemon_decided_is_the_diagnosis_of_a_hang():
    job = running(Policy("digits", is_job=True, hang_timeout=5.0))
    job.expire(100.0)

    effects = died(job, 101.0, None, 6, stderr="Fatal Python error: Aborted\n")

    diagnosis = diagnosis_in(effects)
    assert (diagnosis.kind, diagnosis.who) == (DeathKind.BY_DAEMON, "nobody")
    assert diagnosis.line == record_in(effects).text
