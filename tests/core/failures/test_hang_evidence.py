"""Which silence is a hang, by what the processes did meanwhile. Time is a number, and evidence is made up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.failures.gpu_activity import GpuActivity
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.hang_evidence import (
    LOOKS,
    MIN_STACKS,
    Hang,
    SignOfLife,
    SilenceContext,
    Unknown,
    judge_silence,
    wants_stack,
)
from supervisor.core.failures.looks import (
    Call,
    SilenceEvidence,
    ThreadEvidence,
    ThreadLook,
    TreeLook,
    compare_looks,
)
from supervisor.core.job import Job
from supervisor.core.program.effects import Abort, LookAtSilence
from supervisor.core.program.events import (
    CheckpointSelected,
    DoneReported,
    HostSuspended,
    SilenceObserved,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import Policy, State
from tests.fuzzing import cases

WORKER = 100
AUTO = Policy(name="digits", is_job=True, hang_timeout_min=600.0, hang_evidence=60.0)
STEP = SilenceContext(LoopSection.STEP, silent_s=60.0, longest_s=1.0, patience_s=540.0)
FRAMES = ("loop.py:9 wait_for_ever", "train.py:40 main", "train.py:50 <module>")


def thread(**differing: object) -> ThreadEvidence:
    asleep = ThreadEvidence(WORKER, True, "python", "S" * LOOKS, "futex", Call.OTHER, True, 0.0, 0.0)
    return replace(asleep, **differing)


IDLE = SilenceEvidence(30.0, 60.0, WORKER, (thread(),), processes=1, io_bytes=0)
LOOP = replace(
    IDLE,
    threads=(thread(states="R" * LOOKS, slept=False, ran_s=29.9, waits_in=""),),
    cpu_s=29.9,
    stacks=(FRAMES,) * LOOKS,
)


def with_main(evidence: SilenceEvidence, **differing: object) -> SilenceEvidence:
    return replace(evidence, threads=(replace(evidence.threads[0], **differing), *evidence.threads[1:]))


def test_a_process_that_nothing_can_wake_hangs_and_the_reason_says_where_it_waits():
    helper = thread(pid=WORKER, is_main=False, waits_in="epoll_wait")

    verdict = judge_silence(replace(IDLE, threads=(thread(), helper, helper)), STEP)

    why = "no CPU time, no I/O, the main thread waits in futex; 2 other threads: 2 in epoll_wait"
    assert verdict == Hang(why)


def test_the_reason_says_where_each_rank_waits():
    rank, stopped = thread(pid=101, waits_in="clock_nanosleep"), thread(pid=102, states="T" * LOOKS, waits_in="")
    in_disk_sleep = thread(pid=103, states="D" * LOOKS, waits_in="read")

    verdict = judge_silence(replace(IDLE, threads=(thread(), rank, stopped, in_disk_sleep)), STEP)

    assert verdict == Hang(
        "no CPU time, no I/O, the main thread waits in futex; that of process 101 waits in clock_nanosleep; "
        "that of process 102 is stopped by a signal; that of process 103 waits in disk sleep in read"
    )


def test_a_worker_that_a_signal_stopped_hangs_and_one_that_a_debugger_holds_does_not():
    stopped = with_main(IDLE, states="T" * LOOKS)

    assert isinstance(judge_silence(stopped, STEP), Hang)
    for evidence, why in (
        (replace(stopped, traced_by=7), "a debugger (pid 7) is attached"),
        (with_main(IDLE, states="t" * LOOKS), "a debugger is attached"),
        (replace(stopped, is_frozen=True), "its control group is frozen"),
    ):
        assert judge_silence(evidence, STEP) == SignOfLife(why, is_paused=True)


LIFE = {
    "a compiler in a child": replace(IDLE, cpu_s=30.0),
    "a compiler in another thread": replace(IDLE, cpu_s=20.0),
    "a compiler in the main thread": replace(LOOP, faults=50_000),
    "a compiler that is started again and again": replace(IDLE, processes_changed=True),
    "a loop over batches": replace(LOOP, stacks=(FRAMES, ("metrics.py:3 mean", *FRAMES[1:])) * 3),
    "a loop whose caller goes on": replace(LOOP, stacks=(FRAMES, (FRAMES[0], "train.py:41 main", FRAMES[2])) * 3),
    "a computation with helpers": replace(LOOP, cpu_s=60.0),
    "a computation of which too few stacks are known": replace(LOOP, stacks=(FRAMES,) * (MIN_STACKS - 1)),
    "a computation that waited for a CPU": with_main(replace(LOOP, cpu_s=3.0, stacks=()), ran_s=3.0, ready_s=27.0),
    "a compiler that gets no CPU": replace(IDLE, threads=(thread(), thread(is_main=False, slept=False, ready_s=29.0))),
    "a slow read": replace(IDLE, io_bytes=30 * 1024),
    "a download": replace(IDLE, io_bytes=64 << 20),
    "a read in which the kernel wakes the thread for each page": with_main(IDLE, slept=False, states="D" * LOOKS),
    "a poll": with_main(IDLE, slept=False),
    "a pause before a retry": with_main(IDLE, is_timed=True, wakes_in_s=300.0),
    "a pause of unknown length": with_main(IDLE, is_timed=True),
    "a pause in a data worker": replace(IDLE, threads=(thread(), thread(pid=101, is_timed=True, wakes_in_s=20.0))),
    "an fsync": with_main(IDLE, states="D" * LOOKS, call=Call.WRITE_BACK),
    "a lock on a file": with_main(IDLE, call=Call.LOCK),
    "an fsync in another thread": replace(IDLE, threads=(thread(), thread(is_main=False, call=Call.WRITE_BACK))),
    "a file server that fetches": replace(with_main(IDLE, call=Call.REMOTE), network_bytes_s=2e6),
    "a disk that is busy": replace(with_main(IDLE, states="D" * LOOKS), disk_bytes_s=2e6),
    "a GPU of which nothing is known": replace(IDLE, has_accelerator=True),
    "a GPU that computes": replace(IDLE, has_accelerator=True, gpu=GpuActivity.BUSY),
    "a wait for a GPU in a loop": replace(LOOP, has_accelerator=True, gpu=GpuActivity.BUSY),
    "a wait in a loop for a GPU of which nothing is known": replace(LOOP, has_accelerator=True),
    "counters that are not shown": replace(IDLE, io_bytes=None),
    "a worker that could not be looked at": replace(IDLE, threads=()),
    "looks that lasted no time": replace(IDLE, ended_at=30.0),
}


@pytest.mark.parametrize("life", LIFE)
def test_life_is_no_hang(life: str):
    assert isinstance(judge_silence(LIFE[life], STEP), SignOfLife | Unknown)


def test_heartbeats_on_a_busy_host_are_no_life():
    heartbeats = [thread(is_main=False, slept=False, ran_s=0.001, ready_s=1.0) for _ in range(30)]

    assert isinstance(judge_silence(replace(IDLE, threads=(thread(), *heartbeats), cpu_s=0.1), STEP), Hang)


def test_a_sleep_that_outlasts_the_limit_for_silence_hangs():
    assert isinstance(judge_silence(with_main(IDLE, is_timed=True, wakes_in_s=1e9), STEP), Hang)


def test_an_idle_gpu_and_one_that_spins_excuse_nothing():
    for gpu in (GpuActivity.IDLE, GpuActivity.SPINNING):
        assert isinstance(judge_silence(replace(IDLE, has_accelerator=True, gpu=gpu), STEP), Hang)


def test_a_rank_that_may_wait_for_another_host_is_not_judged_unless_it_is_stopped():
    elsewhere = replace(STEP, waits_elsewhere=True)

    assert judge_silence(IDLE, elsewhere) == Unknown("it may wait for another host")
    assert isinstance(judge_silence(with_main(IDLE, states="T" * LOOKS), elsewhere), Hang)


def test_an_endless_loop_hangs_where_no_silence_was_ever_as_long():
    assert isinstance(judge_silence(LOOP, STEP), Hang)
    assert isinstance(judge_silence(LOOP, replace(STEP, section=LoopSection.DATA)), Hang)
    assert isinstance(judge_silence(LOOP, replace(STEP, longest_s=70.0)), SignOfLife), "a step was that long before"
    for section in set(LoopSection) - {LoopSection.STEP, LoopSection.DATA}:
        assert isinstance(judge_silence(LOOP, replace(STEP, section=section)), SignOfLife)


def test_an_endless_loop_whose_line_in_the_innermost_function_differs_still_hangs():
    other = ("loop.py:10 wait_for_ever", *FRAMES[1:])

    verdict = judge_silence(replace(LOOP, stacks=(FRAMES, other, other, FRAMES)), STEP)

    assert isinstance(verdict, Hang) and "at one place (wait_for_ever in loop.py)" in verdict.why


def test_a_loop_on_a_host_without_a_free_cpu_is_still_seen():
    starved = with_main(replace(LOOP, cpu_s=0.3), ran_s=0.3, ready_s=29.6)

    assert isinstance(judge_silence(starved, STEP), Hang)


def test_only_a_thread_that_computes_at_every_look_is_asked_for_its_stack():
    assert wants_stack("RRR")
    assert not wants_stack("") and not wants_stack("RSR") and not wants_stack("DDD")


COUNTS = st.sampled_from([0, 1, 1000, 1 << 20, 1 << 30])
SHARES = st.sampled_from([0.0, 0.001, 0.3, 29.9, 30.0, 300.0])
EVIDENCE = st.builds(
    SilenceEvidence,
    st.just(30.0),
    st.sampled_from([30.0, 60.0]),
    st.just(WORKER),
    st.lists(
        st.builds(
            ThreadEvidence,
            st.sampled_from([WORKER, 101]),
            st.booleans(),
            st.just("python"),
            st.sampled_from(["R", "S", "D", "T", "t", "Z"]).map(lambda letter: letter * LOOKS),
            st.sampled_from(["", "futex"]),
            st.sampled_from(Call),
            st.booleans(),
            SHARES,
            SHARES,
            st.booleans(),
            st.none() | SHARES,
        ),
        max_size=3,
    ).map(tuple),
    st.integers(1, 3),
    st.booleans(),
    SHARES,
    st.none() | COUNTS,
    COUNTS,
    st.none() | st.just(9),
    st.booleans(),
    st.booleans(),
    COUNTS,
    COUNTS,
    st.none() | st.sampled_from(GpuActivity),
    st.lists(st.sampled_from([FRAMES, FRAMES[1:]]), max_size=LOOKS).map(tuple),
)
CONTEXTS = st.builds(
    SilenceContext, st.sampled_from(LoopSection), st.just(60.0), st.sampled_from([0.0, 90.0]), SHARES, st.booleans()
)


@cases(500)
@given(EVIDENCE, CONTEXTS)
def test_whatever_the_evidence_a_hang_is_stopped_asleep_or_in_a_loop(
    evidence: SilenceEvidence, context: SilenceContext
):
    if not isinstance(judge_silence(evidence, context), Hang):
        return

    main = next(thread for thread in evidence.threads if thread.pid == WORKER and thread.is_main)
    is_stopped = set(main.states) == {"T"}
    is_asleep = main.slept and evidence.cpu_s < 0.6 and (evidence.io_bytes or 0) < 30_720
    is_loop = main.ran_s + main.ready_s > 26 and len(set(evidence.stacks)) == 1 and evidence.faults <= 1500
    assert is_stopped or is_asleep or is_loop
    assert evidence.traced_by is None and not evidence.is_frozen
    assert is_stopped or not evidence.processes_changed


# --- looks ---


def look(at: float, *threads: ThreadLook, **differing: object) -> TreeLook:
    return replace(TreeLook(at, WORKER, threads, 0.0, 0, 0), **differing)


SLEEPS = ThreadLook(WORKER, WORKER, "python", "S", "futex", Call.OTHER, 1.0, 0.5, 7)


def test_a_thread_that_was_run_between_two_looks_did_not_sleep():
    assert compare_looks([look(1.0, SLEEPS), look(2.0, SLEEPS)], 1.0, 2.0).threads[0].slept
    for moved in (replace(SLEEPS, switches=8), replace(SLEEPS, ran_s=1.1), replace(SLEEPS, waits_in="read")):
        assert not compare_looks([look(1.0, SLEEPS), look(2.0, moved)], 1.0, 2.0).threads[0].slept


def test_counters_are_compared_and_a_process_that_came_is_seen():
    child = replace(SLEEPS, pid=101, tid=101)
    first = look(1.0, SLEEPS, cpu_s=5.0, io_bytes=10, faults=3)
    last = look(3.0, SLEEPS, child, cpu_s=6.0, io_bytes=30, faults=4)

    evidence = compare_looks([first, last], 0.0, 9.0)

    assert (evidence.over_s, evidence.cpu_s, evidence.io_bytes, evidence.faults) == (2.0, 1.0, 20, 1)
    assert evidence.processes_changed and len(evidence.threads) == 1


def test_what_the_host_moves_counts_only_if_it_goes_on_all_the_time():
    looks = [look(1.0, SLEEPS), look(2.0, SLEEPS, network_bytes=500), look(4.0, SLEEPS, network_bytes=10**9)]

    assert compare_looks(looks, 1.0, 4.0).network_bytes_s == 500.0


def test_one_look_shows_nothing():
    assert compare_looks([look(1.0, SLEEPS)], 1.0, 2.0).threads == ()


# --- the job ---


def running(policy: Policy = AUTO, step_s: float = 0.3) -> Job:
    job = Job(policy)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 0.0)
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(TrainingRestored(1, 0), 5.0)
    for step in range(1, 11):
        job.handle(StepsDone(1, step, step_s), 10.0)
    return job


def observed(evidence: SilenceEvidence, at: float, over_s: float = 30.0) -> SilenceObserved:
    return SilenceObserved(1, replace(evidence, began_at=at - over_s, ended_at=at))


def test_looks_end_when_the_silence_is_long_enough_and_a_hang_ends_the_worker():
    job = running()
    assert job.deadline() == 10.0 + 30.0
    assert job.expire(40.0) == [LookAtSilence(1, 30.0, LOOKS)]

    assert job.handle(observed(IDLE, 70.0), 70.0) == [Abort(1)]

    assert job.state is State.STOPPING
    assert job.facts.current.decided_end is not None
    assert job.facts.current.decided_end[1].startswith(
        "hung in a step for 60 s (its steps take 0.3 s) after step 10: no CPU time, no I/O, the main thread waits in "
    )


def test_a_job_with_slow_steps_is_looked_at_after_twenty_of_them():
    job = running(step_s=10.0)

    assert job.deadline() == 10.0 + 200.0 - 30.0
    assert job.expire(180.0) == [LookAtSilence(1, 30.0, LOOKS)]


def test_a_job_that_lives_is_looked_at_again_until_its_whole_limit():
    job, now, looks = running(), 0.0, 0
    while True:
        now = job.deadline() or 0.0
        effects = job.expire(now)
        if effects == [Abort(1)]:
            break
        looks += len(effects)
        if effects:
            job.handle(observed(LIFE["a poll"], now + 30.0), now + 30.0)

    assert (now, looks) == (10.0 + 600.0, 9)


def test_evidence_of_before_the_last_step_counts_for_nothing():
    job = running()
    job.expire(40.0)
    job.handle(StepsDone(1, 11, 0.3), 45.0)

    assert job.handle(observed(IDLE, 70.0), 70.0) == []
    assert job.deadline() == 45.0 + 30.0


def test_a_host_that_was_suspended_has_no_evidence():
    job = running()
    job.expire(40.0)
    job.handle(HostSuspended(20.0), 65.0)

    assert job.handle(observed(IDLE, 70.0), 70.0) == []
    assert job.state is State.RUNNING


def test_somebody_who_stopped_it_for_a_while_has_all_the_time():
    job = running()
    job.expire(40.0)

    job.handle(observed(replace(IDLE, is_frozen=True), 70.0), 70.0)

    assert job.deadline() == 70.0 + 30.0
    assert job.facts.current.progressed_at == 70.0


def test_a_fixed_limit_is_kept_also_for_a_debugger():
    job = running(replace(AUTO, hang_timeout_min=None, hang_timeout=100.0))
    job.expire(40.0)

    job.handle(observed(replace(IDLE, traced_by=7), 70.0), 70.0)

    assert job.deadline() == 110.0
    assert job.expire(110.0) == [Abort(1)]


def test_evidence_ends_an_attempt_at_one_place_once():
    job = running()
    job.expire(40.0)
    job.handle(observed(IDLE, 70.0), 70.0)
    job.handle(WorkerExited(1, None, 6), 71.0)
    job.handle(SpawnSucceeded(2), 71.0)
    job.handle(CheckpointSelected(2, None, None), 71.0)
    job.handle(TrainingRestored(2, 0), 71.0)
    job.handle(StepsDone(2, 10, 0.3), 72.0)

    assert job.deadline() == 72.0 + 2 * 600.0, "doubled, as after any hang, and nobody looks"
    job.handle(StepsDone(2, 11, 0.3), 73.0)
    assert job.deadline() == 73.0 + 30.0, "past the place"


@pytest.mark.parametrize(
    "policy",
    [
        replace(AUTO, hang_evidence=None),
        replace(AUTO, hang_timeout_min=None),
        replace(AUTO, hang_timeout_min=None, hang_timeout=50.0),
    ],
    ids=["evidence is off", "hang detection is off", "the fixed limit is shorter"],
)
def test_nobody_looks(policy: Policy):
    job = running(policy)
    end = job.deadline()

    assert end == (10.0 + 600.0 if policy.hang_timeout_min else None if policy.hang_timeout is None else 60.0)


def test_a_script_that_has_trained_to_its_end_has_the_whole_limit():
    job = running()
    job.handle(DoneReported(1), 10.0)
    job.expire(40.0)

    assert job.deadline() == 10.0 + 600.0


def test_an_unknown_step_time_leaves_the_whole_limit():
    job = Job(AUTO)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnSucceeded(1), 0.0)
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(TrainingRestored(1, 0), 5.0)
    job.handle(StepsDone(1, 1), 10.0)

    assert job.deadline() == 10.0 + 600.0
