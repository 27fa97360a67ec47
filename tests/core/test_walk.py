"""Random walks through the machine: what holds whatever happens, in whatever order."""

import dataclasses
import types
import typing
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.actions.transitions import TARGETS
from supervisor.core.failures.restart import (
    BACKOFF_LIMIT_S,
    JITTER,
    Cause,
    allowed_retries,
    backoff_s,
)
from supervisor.core.invariants import all_invariants
from supervisor.core.job import TABLE, Job
from supervisor.core.program import events
from supervisor.core.program.effects import Effect, RecordEnd, ReportBreach, Spawn
from supervisor.core.program.facts import ALIVE, AutoRestart, Policy, ProgramFacts, State
from tests.fuzzing import cases

ATTEMPTS = st.integers(-1, 0)  # the present attempt, or the one before
STEPS = st.integers(0, 50)
WORDS = st.sampled_from(["words", "other words"])
SECONDS = st.sampled_from([0.0, 0.5, 4.0, 9.0, 40.0, 400.0])

NARROWED: dict[str, st.SearchStrategy[Any]] = {
    "step": STEPS,
    "committed_step": st.none() | STEPS,
    "highest_step": st.none() | STEPS,
    "path": st.sampled_from([None, "/c/step-0000000001.a1", "/c/step-0000000002.a1"]),
    "code": st.sampled_from([None, 0, 1, 65, 73, 74, 75, 78, 80, 143]),
    "signal": st.sampled_from([None, 6, 9, 15]),
    "errno": st.sampled_from([None, None, 2, 5, 13, 20]),
    "cause": st.sampled_from([Cause.MEMORY_LIMIT, Cause.UNHEALTHY, Cause.GPU]),  # nobody requires a restart for another
    "suspended_for_s": st.sampled_from([6.0, 400.0]),  # what counts as none is not reported
    "mount": st.sampled_from([None, "ext4 at /", "xfs at /c"]),
    "mount_point": st.sampled_from([None, "/", "/c"]),
    "retry_in_s": st.sampled_from([None, None, 60.0]),
    "deadline_at": st.none() | st.floats(0, 4000),
    "id": st.sampled_from(["1", "2"]),
    "startup_timeout": st.sampled_from([1.0, 90.0, 600.0]),
    "startretries": st.integers(0, 3),
    "checkpoint_dir": st.sampled_from([None, "/c"]),
}
"""Fields whose type says too little: most of its values would never get anywhere. All others follow from their type."""


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a type; one that is not known here has to be added, so that no field goes undrawn."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([of_type(argument) for argument in arguments])
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(of_type(arguments[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(of_type(arguments[0]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint):
        return st.fixed_dictionaries(fields_of(hint)).map(lambda values: hint(**values))
    known = {bool: st.booleans(), int: st.integers(0, 5), float: SECONDS, str: WORDS, type(None): st.none()}
    if hint not in known:
        raise TypeError(f"test_walk.py draws no {hint}; add it to of_type")
    return known[hint]


def fields_of(kind: type[Any]) -> dict[str, st.SearchStrategy[Any]]:
    hints = typing.get_type_hints(kind)
    return {field.name: NARROWED.get(field.name, of_type(hints[field.name])) for field in dataclasses.fields(kind)}


KINDS = sorted({kind for _, kind in TABLE}, key=lambda kind: kind.__name__)
DRAWN = {kind: st.fixed_dictionaries(fields_of(kind)) for kind in KINDS}
POLICIES = st.fixed_dictionaries(fields_of(Policy)).map(lambda values: Policy(**values))


@st.composite
def happenings(draw: st.DrawFn) -> tuple[type[events.Event], dict[str, object], int]:
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(DRAWN[kind]), draw(ATTEMPTS)


WAYS = st.sampled_from(["handled", "handled", "handled", "expires", "late", "our error"])
"""What is done: the event is handled; the deadline is met, or much too late; the event meets an error of our own."""
RECOVERED = {State.STOPPED, State.BACKOFF, State.STOPPING}


def decided(job: Job, event: events.Event, way: str, now: float) -> tuple[type[events.Event], float, list[Effect]]:
    """What the job does, at which time, and the event that counts as having happened."""
    deadline = job.deadline()
    if way in ("expires", "late") and deadline is not None:
        now = max(now, deadline)
        return events.DeadlinePassed, now, job.expire(now, due_at=now - 500.0 if way == "late" else None)
    is_unsupervised = isinstance(event, events.AttemptFound)  # it has no supervisor then, which is not the job's fault
    stale = getattr(event, "attempt", job.facts.attempt) != job.facts.attempt
    if way == "our error" and not is_unsupervised and not stale and (job.state, type(event)) in TABLE:
        return type(event), now, job.recover(event, "ValueError()", now)
    return type(event), now, job.handle(event, now)


def assert_charged(job: Job, before: dict[Cause, int], had_no_copies: bool, effects: list[Effect]) -> None:
    """An end that is a failure is charged if the job goes on, and the one that spends its budget ends the job.

    But the one for which copies in memory are blamed, which they are once: from then on there are none.
    """
    charged = {cause: count for cause, count in job.facts.failures.by_cause.items() if count > before.get(cause, 0)}
    records = [effect for effect in effects if isinstance(effect, RecordEnd)]
    facts, policy = job.facts, job.facts.policy
    goes_on = facts.wanted and not facts.closing and policy.is_job and policy.autorestart is not AutoRestart.NEVER
    if records and Cause(records[0].cause).traits.is_charged and goes_on:
        assert charged or job.state is State.FAILED or (facts.no_copies and not had_no_copies)
    for cause, count in charged.items():
        spent = count > allowed_retries(cause, policy.startretries)
        assert (job.state is State.FAILED) == spent


def assert_holds(before: ProgramFacts, event: events.Event, effects: list[Effect], after: ProgramFacts) -> None:
    """Every invariant, also where production does not look at it since nothing happened that could break it."""
    assert not [effect for effect in effects if isinstance(effect, ReportBreach)]
    for holds in all_invariants():
        assert holds(before, event, effects, after), holds.__name__


@pytest.mark.slow
@cases(400, deadline=None)
@given(POLICIES, st.lists(st.tuples(happenings(), st.floats(0, 200), WAYS), max_size=60))
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
        before, facts = job.state, job.facts.snapshot()
        failures, had_no_copies = dict(job.facts.failures.by_cause), job.facts.no_copies

        happened, now, effects = decided(job, event, way, now)

        if happened is not events.DeadlinePassed and stale:
            assert effects == [] and job.state is before
            continue
        if happened is not events.DeadlinePassed:  # that may be two events: each was checked by `handle` itself
            assert_holds(facts, event, effects, job.facts)
        assert not [effect for effect in effects if isinstance(effect, ReportBreach)]
        if happened is events.AttemptFound and before is State.STOPPED:
            alive = True  # what is found lives
        if happened in (events.WorkerExited, events.SpawnFailed):
            alive = False
        assert_charged(job, failures, had_no_copies, effects)
        if any(isinstance(effect, Spawn) for effect in effects):
            assert not alive, "two workers for one job"
            alive = True
        recovers = way == "our error" and job.state in RECOVERED
        assert job.state is before or job.state in TARGETS.get(TABLE.get((before, happened)), ()) or recovers
        assert (job.state in ALIVE) == alive


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
            number, "words", own + 1, out_of_memory=end == "lacked", go_back=end == "diverged"
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

        assert [effect.cause for effect in effects if isinstance(effect, RecordEnd)] == [ENDS[end]]
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
