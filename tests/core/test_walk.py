"""Random walks through the machine: what holds whatever happens, in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.actions.base import TARGETS
from supervisor.core.failures.hang_detection import LoopSection
from supervisor.core.failures.restart import (
    BACKOFF_LIMIT_S,
    JITTER,
    Cause,
    allowed_retries,
    backoff_s,
)
from supervisor.core.job import TABLE, Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import events
from supervisor.core.program.effects import (
    Abort,
    Effect,
    Kill,
    RecordEnd,
    RecordWanted,
    Spawn,
    Terminate,
)
from supervisor.core.program.facts import (
    ALIVE,
    AutoRestart,
    Durable,
    OnNotice,
    OnOom,
    Policy,
    State,
)
from supervisor.protocol.wire.messages import Phase, Then
from tests.fuzzing import cases

NOTICED = (events.NoticeReceived, events.NoticeChanged, events.NoticeEnded, events.SavesMeasured, events.UploadsChanged)
ATTEMPTS = st.integers(-1, 0)  # the present attempt, or the one before
STEPS = st.integers(0, 50)


NOTICES = st.builds(
    Notice,
    source=st.just("aws-spot"),
    id=st.sampled_from(["1", "2"]),
    kind=st.sampled_from([NoticeKind.PREEMPTION, NoticeKind.FREEZE]),
    certainty=st.sampled_from(Certainty),
    deadline_at=st.none() | st.floats(0, 4000),
    is_cancellable=st.booleans(),
    text=st.just("words"),
)


@st.composite
def happenings(draw: st.DrawFn) -> tuple[type[events.Event], dict[str, object], int]:
    kind = draw(st.sampled_from(events.Event.__args__))
    values: dict[str, object] = {}
    for name in kind.__dataclass_fields__:
        values[name] = draw(
            {
                "attempt": st.just(0),
                "step": STEPS,
                "flushes": st.lists(st.integers(1, 4), max_size=2).map(tuple),
                "permanent": st.booleans(),
                "path": st.sampled_from([None, "/c/step-0000000001.a1", "/c/step-0000000002.a1"]),
                "code": st.sampled_from([None, 0, 1, 65, 73, 74, 75, 78, 80, 143]),
                "signal": st.sampled_from([None, 6, 9, 15]),
                "age_s": st.floats(0, 100),
                "outdated": st.booleans(),
                "host_rebooted": st.booleans(),
                "held_back": st.booleans(),
                "phase": st.sampled_from(Phase),
                "restored": st.booleans(),
                "flush": st.sampled_from([None, 1, 4]),
                "last_flush": st.integers(0, 4),
                "then": st.sampled_from(Then),
                "done": st.booleans(),
                "cause": st.sampled_from([Cause.MEMORY_LIMIT, Cause.UNHEALTHY]),
                "error": st.sampled_from([None, "words"]),
                "committed_step": st.sampled_from([None, 3]),
                "notice": NOTICES,
                "step_s": st.sampled_from([None, 0.5, 4.0]),
                "section": st.sampled_from(LoopSection),
                "saving_s": st.sampled_from([None, 0.0, 7.0]),
                "attempts_used": st.integers(0, 5),
                "oom": st.sampled_from([None, "words"]),
                "out_of_memory": st.booleans(),
                "rolls_back": st.booleans(),
                "recalled": st.booleans(),
                "host_leaves": st.booleans(),
                "limit_s": st.sampled_from([0.0, 40.0]),
                "suspended_for_s": st.sampled_from([6.0, 400.0]),
                "retry_in_s": st.sampled_from([None, None, 60.0]),
                "resumes": st.booleans(),
                "errno": st.sampled_from([None, None, 5, 13, 20]),
                "older_readable": st.booleans(),
                "highest_step": st.sampled_from([None, 1, 60]),
                "mount": st.sampled_from([None, "ext4 at /", "xfs at /c"]),
                "save_s": st.sampled_from([0.0, 2.0, 30.0]),
                "waits": st.booleans(),
                "upload_s": st.sampled_from([None, 0.0, 9.0]),
            }.get(name, st.just("words"))
        )
    return kind, values, draw(ATTEMPTS)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return Policy(
        name="p",
        is_job=draw(st.booleans()),
        autorestart=draw(st.sampled_from(AutoRestart)),
        startsecs=draw(st.sampled_from([0.0, 1.0])),
        startretries=draw(st.integers(0, 3)),
        hang_timeout=draw(st.sampled_from([None, 5.0])),
        hang_timeout_min=draw(st.sampled_from([None, 3.0])),
        on_notice=draw(st.sampled_from(OnNotice)),
        on_oom=draw(st.sampled_from(OnOom)),
        durable=draw(st.sampled_from(Durable)),
        notice_grace=draw(st.sampled_from([0.0, 60.0])),
        notify_timeout=draw(st.sampled_from([None, 7.0])),
        startup_timeout=draw(st.sampled_from([1.0, 90.0, 600.0])),
        flush_timeout=draw(st.sampled_from([1.0, 120.0])),
        checkpoint_dir=draw(st.sampled_from([None, "/c"])),
        stopwaitsecs=draw(st.sampled_from([0.0, 10.0])),
    )


WAYS = st.sampled_from(["handled", "handled", "handled", "expires", "late", "our error"])
"""What is done: the event is handled; the deadline is met, or much too late; the event meets an error of our own."""
RECOVERED = {State.STOPPED, State.BACKOFF, State.STOPPING}


def decided(job: Job, event: events.Event, way: str, now: float) -> tuple[type[events.Event], float, list[Effect]]:
    """What the job does, at which time, and the event that counts as having happened."""
    deadline = job.deadline()
    if way in ("expires", "late") and deadline is not None:
        now = max(now, deadline)
        return events.DeadlinePassed, now, job.expire(now, due_at=now - 500.0 if way == "late" else None)
    found = isinstance(event, events.AttemptFound)  # nobody supervises it then, which is no matter of the job's
    stale = getattr(event, "attempt", job.facts.attempt) != job.facts.attempt
    if way == "our error" and not found and not stale and (job.state, type(event)) in TABLE:
        return type(event), now, job.recover(event, "ValueError()", now)
    return type(event), now, job.handle(event, now)


def assert_charged_once(job: Job, before: dict[Cause, int], effects: list[Effect]) -> None:
    """An end is charged to its own budget, once; nothing else is charged to any."""
    charged = {
        each: n - before.get(each, 0) for each, n in job.facts.failures.by_cause.items() if n > before.get(each, 0)
    }
    records = [each for each in effects if isinstance(each, RecordEnd)]
    assert len(records) <= 1
    assert charged in ({}, {each.cause: 1 for each in records})
    facts, policy = job.facts, job.facts.policy
    goes_on = facts.wanted and not facts.closing and policy.is_job and policy.autorestart is not AutoRestart.NEVER
    if records and Cause(records[0].cause).traits.is_charged and goes_on:
        assert charged or job.state is State.FAILED
    for cause, count in charged.items():
        spent = facts.failures.by_cause[cause] > allowed_retries(cause, policy.startretries)
        assert count == 1 and (job.state is State.FAILED) == spent


@pytest.mark.slow
@cases(400, deadline=None)
@given(policies(), st.lists(st.tuples(happenings(), st.floats(0, 200), WAYS), max_size=60))
def test_invariants_hold_in_every_order_of_events(policy: Policy, story: list) -> None:
    job, now, alive = Job(policy), 0.0, False
    for (kind, drawn, shift), pause, way in story:
        now += pause
        values = drawn | ({"attempt": job.facts.attempt + shift} if "attempt" in drawn else {})
        event = kind(**values)
        stale = shift != 0 and "attempt" in values
        if isinstance(event, events.WorkerExited | events.SpawnFailed) and not stale and not alive:
            continue  # a process that does not exist does not exit
        spawning = job.state in {State.STARTING, State.STOPPING, State.KILLING}
        if isinstance(event, events.SpawnFailed) and not stale and not spawning:
            continue  # spawning is over before anything else is heard of the process
        before, attempt = job.state, job.facts.attempt
        wanted, failures = job.facts.wanted, dict(job.facts.failures.by_cause)

        happened, now, effects = decided(job, event, way, now)

        if happened is not events.DeadlinePassed and stale:
            assert effects == [] and job.state is before
            continue
        if happened is events.AttemptFound and before is State.STOPPED:
            alive = True  # what is found lives
        if happened in (events.WorkerExited, events.SpawnFailed):
            alive = False
        assert_charged_once(job, failures, effects)
        spawns = [effect for effect in effects if isinstance(effect, Spawn)]
        assert len(spawns) <= 1
        if spawns:
            assert not alive, "two workers for one job"
            assert spawns[0].attempt == attempt + 1 == job.facts.attempt
            assert not job.facts.closing and job.facts.wanted
            alive = True
        recovers = way == "our error" and job.state in RECOVERED
        assert job.state is before or job.state in TARGETS.get(TABLE.get((before, happened)), ()) or recovers
        assert (job.state in ALIVE) == alive
        waits = {State.STARTING, State.FLUSHING, State.STOPPING, State.KILLING, State.BACKOFF, State.ADOPTING}
        assert (job.deadline() is not None) >= (job.state in waits)
        if job.state not in ALIVE and job.state is not State.BACKOFF:
            assert job.deadline() is None
        if any(isinstance(effect, Kill) for effect in effects):
            assert job.state is State.KILLING
        if happened in NOTICED:
            assert job.facts.wanted is wanted, "a notice never decides what is wanted"
            assert not any(isinstance(effect, Kill | Terminate | Abort | RecordWanted) for effect in effects)
        if any(isinstance(effect, RecordEnd) and effect.cause is Cause.PREEMPTION for effect in effects):
            assert job.facts.failures.by_cause == failures, "a preemption counts against no budget"
        if job.facts.notice is None:
            assert not (job.state is State.BACKOFF and job.facts.waits_for_host), "nothing waits for a host that stays"


ENDS = {
    "crash": Cause.CRASH, "hang": Cause.HANG, "tracing": Cause.STARTUP_TIMEOUT, "lacked": Cause.OUT_OF_MEMORY,
    "diverged": Cause.DIVERGENCE, "unfit": Cause.BAD_CHECKPOINT,
}  # fmt: skip


def attempt_ends(job: Job, end: str, now: float) -> tuple[float, list[Effect]]:
    """The present attempt fails so, after some steps where that can be; without a new checkpoint."""
    number = job.facts.attempt
    own = 1000 - number  # each begins from an older one
    job.handle(events.SpawnSucceeded(number), now)
    job.handle(events.CheckpointSelected(number, f"/c/step-{own:010d}.a1", own), now)
    job.handle(events.RestoreBegun(number), now)
    code = {"lacked": 1, "diverged": 80, "unfit": 65}.get(end)
    if end == "unfit":
        return now, job.handle(events.WorkerExited(number, code), now)
    job.handle(events.TrainingRestored(number, own), now)
    if end != "tracing":
        job.handle(events.StepsDone(number, own + 1), now)
    if end in ("hang", "tracing"):
        now = job.deadline() or now
        job.expire(now)
        return now, job.handle(events.WorkerExited(number, signal=6), now)
    if code is not None:
        words = events.FailureReported(
            number, "words", own + 1, out_of_memory=end == "lacked", rolls_back=end == "diverged"
        )
        job.handle(words, now)
    return now, job.handle(events.WorkerExited(number, code, None if code else 9), now)


@cases(200, deadline=None)
@given(st.integers(0, 4), st.sampled_from([None, 3.0]), st.lists(st.sampled_from(list(ENDS)), min_size=30, max_size=30))
def test_each_failure_is_charged_to_its_own_budget_and_the_first_that_is_spent_ends_the_job(
    startretries: int, hang_timeout_min: float | None, ends: list[str]
) -> None:
    fixed = 5.0 if hang_timeout_min is None else None
    job = Job(
        Policy("p", is_job=True, startretries=startretries, hang_timeout_min=hang_timeout_min, hang_timeout=fixed)
    )
    job.handle(events.StartRequested(), 0.0)
    now, booked = 0.0, dict.fromkeys(ENDS.values(), 0)
    for end in ends:
        booked[ENDS[end]] += 1
        now, effects = attempt_ends(job, end, now)

        assert [each.cause for each in effects if isinstance(each, RecordEnd)] == [ENDS[end]]
        assert job.facts.failures.by_cause == {cause: count for cause, count in booked.items() if count}
        spent = any(count > allowed_retries(cause, startretries) for cause, count in booked.items())
        assert (job.state is State.FAILED) == spent
        if spent:
            return
        if job.state is State.BACKOFF:
            now = job.deadline() or now
            job.expire(now)
        assert job.state is State.STARTING
    raise AssertionError("thirty failures, and six budgets of at most five")


@given(st.integers(1, 10_000), st.text(max_size=20))
def test_pause_is_never_longer_than_the_limit_and_its_jitter(deaths: int, key: str) -> None:
    assert 0 < backoff_s(deaths, key) <= BACKOFF_LIMIT_S * (1 + JITTER / 2)
    assert backoff_s(deaths, key) == backoff_s(deaths, key)
