"""Random walks through the machine: what holds whatever happens, in whatever order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.core import events
from supervisor.core.actions.base import TARGETS
from supervisor.core.effects import Abort, Kill, RecordEnd, RememberWanted, Spawn, Terminate
from supervisor.core.facts import ALIVE, AutoRestart, OnNotice, OnOom, Policy, State
from supervisor.core.job import TABLE, Job
from supervisor.core.notices import Certainty, Kind, Notice
from supervisor.core.patience import Section
from supervisor.core.restart import BACKOFF_LIMIT_S, JITTER, Cause, delay
from supervisor.protocol.messages import Phase, Then

NOTICED = (events.NoticeReceived, events.NoticeChanged, events.NoticeEnded, events.SavesMeasured)
ATTEMPTS = st.integers(-1, 0)  # the present attempt, or the one before
STEPS = st.integers(0, 50)


NOTICES = st.builds(
    Notice,
    source=st.just("aws-spot"),
    id=st.sampled_from(["1", "2"]),
    kind=st.sampled_from([Kind.PREEMPTION, Kind.FREEZE]),
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
                "host_left": st.booleans(),
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
                "section": st.sampled_from(Section),
                "saving_s": st.sampled_from([None, 0.0, 7.0]),
                "oom": st.sampled_from([None, "words"]),
                "out_of_memory": st.booleans(),
                "go_back": st.booleans(),
                "again": st.booleans(),
                "host_leaves": st.booleans(),
                "limit_s": st.sampled_from([0.0, 40.0]),
                "still_s": st.sampled_from([6.0, 400.0]),
                "waits_s": st.sampled_from([None, None, 60.0]),
                "goes_on": st.booleans(),
                "save_s": st.sampled_from([0.0, 2.0, 30.0]),
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
        hang_floor=draw(st.sampled_from([None, 3.0])),
        on_notice=draw(st.sampled_from(OnNotice)),
        on_oom=draw(st.sampled_from(OnOom)),
        notice_grace=draw(st.sampled_from([0.0, 60.0])),
    )


@settings(max_examples=400, deadline=None)
@given(policies(), st.lists(st.tuples(happenings(), st.floats(0, 200)), max_size=60))
def test_invariants_hold_in_every_order_of_events(policy: Policy, story: list) -> None:
    job, now, alive = Job(policy), 0.0, False
    for (kind, drawn, shift), pause in story:
        now += pause
        values = drawn | ({"attempt": job.facts.attempt + shift} if "attempt" in drawn else {})
        event = kind(**values)
        stale = shift != 0 and "attempt" in values
        if isinstance(event, events.WorkerExited | events.SpawnFailed) and not stale and not alive:
            continue  # a process that does not exist does not exit
        spawning = job.state in {State.STARTING, State.STOPPING, State.KILLING}
        if isinstance(event, events.SpawnFailed) and not stale and not spawning:
            continue  # spawning is over before anything else is heard of the process
        if isinstance(event, events.AttemptFound) and not stale and job.state is State.STOPPED:
            alive = True  # what is found lives
        before, attempt = job.state, job.facts.attempt
        wanted, failures = job.facts.wanted, dict(job.facts.failures.by_cause)

        effects = job.handle(event, now)

        if stale:
            assert effects == [] and job.state is before
            continue
        if isinstance(event, events.WorkerExited | events.SpawnFailed):
            alive = False
        spawns = [effect for effect in effects if isinstance(effect, Spawn)]
        assert len(spawns) <= 1
        if spawns:
            assert not alive, "two workers for one job"
            assert spawns[0].attempt == attempt + 1 == job.facts.attempt
            assert not job.facts.closing and job.facts.wanted
            alive = True
        assert job.state is before or job.state in TARGETS.get(TABLE[before, kind], ())
        assert (job.state in ALIVE) == alive
        waits = {State.STARTING, State.FLUSHING, State.STOPPING, State.KILLING, State.BACKOFF, State.ADOPTING}
        assert (job.deadline() is not None) >= (job.state in waits)
        if job.state not in ALIVE and job.state is not State.BACKOFF:
            assert job.deadline() is None
        if any(isinstance(effect, Kill) for effect in effects):
            assert job.state is State.KILLING
        if kind in NOTICED:
            assert job.facts.wanted is wanted, "a notice never decides what is wanted"
            assert not any(isinstance(effect, Kill | Terminate | Abort | RememberWanted) for effect in effects)
        if any(isinstance(effect, RecordEnd) and effect.cause is Cause.PREEMPTION for effect in effects):
            assert job.facts.failures.by_cause == failures, "a preemption counts against no budget"
        if job.facts.notice is None:
            assert not (job.state is State.BACKOFF and job.facts.held), "nothing waits for a host that stays"


@given(st.integers(1, 10_000), st.text(max_size=20))
def test_pause_is_never_longer_than_the_limit_and_its_jitter(deaths: int, key: str) -> None:
    assert 0 < delay(deaths, key) <= BACKOFF_LIMIT_S * (1 + JITTER / 2)
    assert delay(deaths, key) == delay(deaths, key)
