"""When a standby is prepared, promoted and dropped; and that it never makes a second worker."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.job import Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import events
from supervisor.core.program.effects import Effect, Spawn
from supervisor.core.program.facts import (
    ALIVE,
    AttemptFacts,
    AutoRestart,
    Policy,
    ProgramFacts,
    State,
)
from supervisor.core.standby.events import (
    AttemptStarting,
    DropStandby,
    JobChanged,
    MemoryMeasured,
    PrepareStandby,
    PromoteStandby,
    StandbyEffect,
    StandbyExited,
    StandbyLoaded,
    StandbyUseless,
    StartExpected,
)
from supervisor.core.standby.facts import (
    LAST_USE_S,
    MIB,
    MemoryHeadroom,
    StandbyKind,
    StandbyNeed,
    StandbyStage,
    need_of,
)
from supervisor.core.standby.machine import (
    AGAIN_S,
    AUTO_SETTLE_S,
    BACKOFF_FIRST_S,
    BACKOFF_LIMIT_S,
    MEASURE_S,
    SCARCE_S,
    SETTLE_S,
    Standby,
)
from supervisor.protocol.wire.messages import Then
from tests.core.test_walk import POLICIES, happenings
from tests.fuzzing import cases

PLENTY = MemoryHeadroom(16 * 1024 * MIB, 32 * 1024 * MIB)
WARM, HOT, AUTO = StandbyKind.WARM, StandbyKind.HOT, StandbyKind.AUTO


def looked(memory: MemoryHeadroom = PLENTY, expected: int = 600 * MIB, turn: bool = True) -> MemoryMeasured:
    return MemoryMeasured(memory, expected, turn)


def loading(now: float = 0.0, kind: StandbyKind = WARM) -> Standby:
    machine = Standby(kind)
    machine.handle(JobChanged(StandbyNeed.CALM), now - AUTO_SETTLE_S)
    assert machine.handle(looked(), now) == [PrepareStandby(WARM if kind is AUTO else kind, 1)]
    return machine


def ready(now: float = 0.0, kind: StandbyKind = WARM) -> Standby:
    machine = loading(now, kind)
    machine.handle(StandbyLoaded(kind), now)
    return machine


def test_standby_is_prepared_once_training_has_settled():
    machine = Standby(WARM)
    machine.handle(JobChanged(StandbyNeed.CALM), 10.0)

    assert machine.deadline() == 10.0 + SETTLE_S
    assert machine.handle(looked(), 10.0 + SETTLE_S / 2) == []
    assert machine.handle(looked(), 10.0 + SETTLE_S) == [PrepareStandby(WARM, 1)]
    assert machine.handle(looked(), 100.0) == [], "one is enough"


def test_one_for_a_start_that_never_comes_goes_with_the_program():
    """As on a spare node, whose program was never taken up when the gang ends."""
    machine = Standby(AUTO)
    machine.handle(StartExpected(), 0.0)
    assert machine.handle(looked(), 0.0) == [PrepareStandby(WARM, 1, is_urgent=True)]
    machine.handle(StandbyLoaded(WARM), 1.0)
    assert machine.handle(JobChanged(StandbyNeed.NONE), 2.0) == []

    (drop,) = machine.handle(JobChanged(StandbyNeed.NONE, is_closed=True), 3.0)

    assert isinstance(drop, DropStandby)
    machine.handle(StandbyExited("killed"), 3.1)
    assert machine.deadline() is None, "and no other one is loaded"


def test_off_is_never_prepared():
    machine = Standby(StandbyKind.OFF)
    machine.handle(JobChanged(StandbyNeed.CALM), 0.0)

    assert machine.handle(looked(), 100.0) == [] and machine.deadline() is None


@pytest.mark.parametrize("machine", [loading(), ready()], ids=["while it loads", "once it waits"])
def test_the_next_attempt_takes_it(machine: Standby):
    machine.handle(JobChanged(StandbyNeed.KEPT), 1.0)

    assert machine.handle(AttemptStarting(), 1.0) == [PromoteStandby()]
    assert machine.handle(AttemptStarting(), 2.0) == [], "once"
    assert machine.handle(StandbyExited("as an attempt"), 3.0) == [] and machine.status.deaths == 0


def test_unusable_standby_is_dropped_and_the_attempt_is_a_new_process():
    machine = ready()

    assert machine.handle(AttemptStarting("it had ended"), 1.0) == [DropStandby("it had ended")]
    assert machine.handle(AttemptStarting(), 2.0) == [], "it is not gone yet"


@pytest.mark.parametrize(("kind", "promoted"), [(WARM, True), (HOT, False)])
def test_only_a_traced_one_minds_that_batches_are_divided_anew(kind: StandbyKind, promoted: bool):
    machine = ready(kind=kind)

    assert (machine.handle(AttemptStarting(microbatches=2), 1.0) == [PromoteStandby()]) is promoted


def test_the_next_one_is_prepared_with_the_new_split():
    machine = ready(kind=HOT)
    machine.handle(AttemptStarting(microbatches=2), 1.0)
    machine.handle(StandbyExited("killed"), 1.0)
    machine.handle(JobChanged(StandbyNeed.KEPT), 1.0)
    machine.handle(JobChanged(StandbyNeed.CALM), 2.0)

    assert machine.handle(looked(), 2.0 + AGAIN_S) == [PrepareStandby(HOT, 2)]


@pytest.mark.parametrize("kind", [WARM, HOT, AUTO])
def test_next_one_comes_soon_as_the_job_has_trained_before(kind: StandbyKind):
    machine = ready(kind=kind)
    machine.handle(JobChanged(StandbyNeed.KEPT), 1.0)
    machine.handle(AttemptStarting(), 1.0)
    machine.handle(JobChanged(StandbyNeed.CALM), 3.0)

    assert machine.deadline() == 3.0 + AGAIN_S < 3.0 + min(SETTLE_S, AUTO_SETTLE_S)


def test_standby_ends_when_no_attempt_will_follow():
    machine = ready()

    (drop,) = machine.handle(JobChanged(StandbyNeed.NONE), 1.0)

    assert isinstance(drop, DropStandby)
    assert machine.deadline() is None


def test_a_flush_ends_one_that_loads_and_leaves_one_that_waits():
    assert [type(effect) for effect in loading().handle(JobChanged(StandbyNeed.BUSY), 1.0)] == [DropStandby]
    assert ready().handle(JobChanged(StandbyNeed.BUSY), 1.0) == []


def test_none_is_prepared_while_one_is_ending():
    machine = loading()
    machine.handle(JobChanged(StandbyNeed.BUSY), 1.0)
    machine.handle(JobChanged(StandbyNeed.CALM), 2.0)

    assert machine.handle(looked(), 100.0) == []
    machine.handle(StandbyExited("killed"), 101.0)
    assert machine.handle(looked(), 101.0) == [PrepareStandby(WARM, 1)]


def test_dying_standby_is_retried_with_growing_pauses():
    machine, pauses = loading(), []
    now = 0.0
    for _ in range(8):
        machine.handle(StandbyExited("exit status 1"), now)
        measure_at = machine.deadline()
        assert measure_at is not None
        pauses.append(measure_at - now)
        now = measure_at
        assert machine.handle(looked(), now) == [PrepareStandby(WARM, 1)]

    assert pauses[:3] == [BACKOFF_FIRST_S, 2 * BACKOFF_FIRST_S, 4 * BACKOFF_FIRST_S]
    assert pauses[-1] == BACKOFF_LIMIT_S
    assert machine.handle(AttemptStarting(), now) == [PromoteStandby()]
    assert machine.status.deaths == 0


def test_memory_decides_whether_there_is_one():
    machine = Standby(WARM)
    machine.handle(JobChanged(StandbyNeed.CALM), 0.0)

    assert machine.handle(looked(MemoryHeadroom(1500 * MIB, 8192 * MIB)), SETTLE_S) == []
    assert "memory" in str(machine.status.reason)
    assert machine.deadline() == SETTLE_S + MEASURE_S
    assert machine.handle(looked(MemoryHeadroom(1700 * MIB, 8192 * MIB)), SETTLE_S + MEASURE_S) == [
        PrepareStandby(WARM, 1)
    ]


def test_one_that_nobody_asked_for_leaves_the_worker_room_to_grow():
    machine, memory = Standby(AUTO), MemoryHeadroom(4096 * MIB, 8192 * MIB)
    machine.handle(JobChanged(StandbyNeed.CALM), 0.0)
    worker = 7200 * MIB  # half of it is more than would be left

    assert machine.deadline() == AUTO_SETTLE_S
    assert machine.handle(MemoryMeasured(memory, 600 * MIB, True, worker), AUTO_SETTLE_S) == []
    assert "3.5 GB of that must stay free" in str(machine.status.reason)
    assert machine.handle(MemoryMeasured(memory, 600 * MIB, True, 4000 * MIB), 30.0) == [PrepareStandby(WARM, 1)]
    machine.handle(StandbyLoaded(WARM), 31.0)
    assert machine.handle(AttemptStarting(microbatches=2), 40.0) == [PromoteStandby()], "it has traced nothing"


def test_job_that_can_have_none_says_why_and_measures_nothing():
    machine = Standby(AUTO, impossible="it is written in Fortran")
    machine.handle(JobChanged(StandbyNeed.CALM), 0.0)

    assert machine.handle(looked(), 100.0) == [] and machine.deadline() is None
    assert machine.status.reason == "it is written in Fortran"


def test_useless_standby_is_ended_and_not_tried_again_before_the_next_attempt():
    machine = loading(kind=AUTO)

    assert machine.handle(StandbyUseless("nothing to import"), 1.0) == [DropStandby("nothing to import")]
    machine.handle(StandbyExited("SIGKILL"), 1.0)
    assert machine.deadline() is None and machine.status.reason == "nothing to import"
    assert machine.handle(looked(), 1e6) == []
    machine.handle(JobChanged(StandbyNeed.KEPT), 1e6)
    assert machine.handle(AttemptStarting(), 1e6) == []
    machine.handle(JobChanged(StandbyNeed.CALM), 1e6)
    assert machine.handle(looked(), 1e6 + AUTO_SETTLE_S) == [PrepareStandby(WARM, 1)]


def test_exit_that_would_repeat_is_no_reason_to_try_again():
    machine = loading()

    machine.handle(StandbyExited("finds no stepkeeper", permanent=True), 1.0)

    assert machine.deadline() is None and machine.status.reason == "finds no stepkeeper"


def test_standby_is_dropped_when_memory_is_scarce():
    machine = ready()

    (drop,) = machine.handle(looked(MemoryHeadroom(400 * MIB, 4096 * MIB)), 10.0)

    assert isinstance(drop, DropStandby)
    machine.handle(StandbyExited("killed"), 10.0)
    assert machine.deadline() == 10.0 + SCARCE_S and machine.status.deaths == 0


def test_loads_of_several_jobs_take_turns():
    machine = Standby(WARM)
    machine.handle(JobChanged(StandbyNeed.CALM), 0.0)

    assert machine.handle(looked(turn=False), SETTLE_S) == []
    assert machine.handle(looked(), SETTLE_S + 1.0) == [PrepareStandby(WARM, 1)]


def test_standby_that_never_gets_ready_is_ended():
    machine = loading()

    (drop,) = machine.handle(looked(), 600.0)

    assert isinstance(drop, DropStandby) and machine.status.deaths == 1


# --- what the job's facts mean ----------------------------------------------------------------------------------------

NOTICE = Notice("file", "1", NoticeKind.PREEMPTION, Certainty.POSSIBLE, None, is_cancellable=True, text="")


def facts_of(state: State, **values: object) -> ProgramFacts:
    facts = ProgramFacts(Policy("p", is_job=True), state=state, wanted=True)
    for name, value in values.items():
        setattr(facts, name, value)
    return facts


@pytest.mark.parametrize(
    ("facts", "need"),
    [
        (facts_of(State.RUNNING), StandbyNeed.CALM),
        (facts_of(State.FLUSHING), StandbyNeed.BUSY),
        (facts_of(State.STARTING), StandbyNeed.KEPT),
        (facts_of(State.BACKOFF), StandbyNeed.KEPT),
        (facts_of(State.KILLING), StandbyNeed.KEPT),
        (facts_of(State.RUNNING, wanted=False), StandbyNeed.NONE),
        (facts_of(State.RUNNING, closing=True), StandbyNeed.NONE),
        (facts_of(State.RUNNING, current=AttemptFacts(done_reported=True)), StandbyNeed.NONE),
        (facts_of(State.RUNNING, notice=NOTICE), StandbyNeed.NONE),
        (facts_of(State.RUNNING, notice=replace(NOTICE, deadline_at=14 * 86400.0)), StandbyNeed.CALM),
        (facts_of(State.RUNNING, notice=replace(NOTICE, deadline_at=LAST_USE_S + 1.0)), StandbyNeed.NONE),
        (facts_of(State.FAILED), StandbyNeed.NONE),
        (ProgramFacts(Policy("p", is_job=False), state=State.RUNNING, wanted=True), StandbyNeed.NONE),
        (ProgramFacts(Policy("p", True, AutoRestart.NEVER), state=State.RUNNING, wanted=True), StandbyNeed.NONE),
    ],
)
def test_memory_headroom_of_a_job(facts: ProgramFacts, need: StandbyNeed):
    assert need_of(facts, 1.0) is need


# --- whatever happens -------------------------------------------------------------------------------------------------

HOST = st.builds(
    MemoryMeasured,
    memory=st.sampled_from([PLENTY, MemoryHeadroom(1500 * MIB, 8192 * MIB), MemoryHeadroom(100 * MIB, 8192 * MIB)]),
    expected=st.just(600 * MIB),
    may_load=st.booleans(),
)
ITS_OWN = HOST | st.builds(StandbyLoaded, st.sampled_from([WARM, HOT])) | st.builds(StandbyExited, st.just("words"))


class Together:
    """A job and its standby as the runner drives them, and the processes that there would be."""

    def __init__(self, policy: Policy, kind: StandbyKind) -> None:
        self.job, self.standby = Job(policy), Standby(kind)
        self.workers = self.spares = 0
        self.promotions = 0
        self.now = 0.0

    def job_effects(self, effects: list[Effect], usable: bool, now: float) -> None:
        self.now = now
        self.do(self.standby.handle(JobChanged(need_of(self.job.facts, now), self.job.facts.closing), now))
        if need_of(self.job.facts, now) is StandbyNeed.NONE:
            assert self.standby.status.stage in (StandbyStage.NONE, StandbyStage.ENDING), (
                "it ends before anything else is done"
            )
        for effect in effects:
            if isinstance(effect, Spawn):
                unfit = None if usable and self.spares > 0 else "it had ended"
                asked = self.standby.handle(AttemptStarting(unfit, effect.microbatches), now)
                if PromoteStandby() in asked:
                    assert self.spares == 1 and usable, "only what lives is promoted"
                    self.spares -= 1
                    self.promotions += 1
                else:
                    self.do(asked)
                self.workers += 1

    def do(self, effects: list[StandbyEffect]) -> None:
        for effect in effects:
            if isinstance(effect, PrepareStandby):
                assert need_of(self.job.facts, self.now) is StandbyNeed.CALM, "never beside a flush or a notice"
                assert self.job.state is State.RUNNING
                self.spares += 1
            elif isinstance(effect, DropStandby):
                assert self.spares == 1, "there is something to drop"


@cases(400, deadline=None)
@given(
    POLICIES,
    st.sampled_from(StandbyKind),
    st.lists(st.tuples(happenings() | ITS_OWN, st.floats(0, 60), st.booleans()), max_size=80),
)
def test_never_two_workers_nor_two_standbys(
    policy: Policy, kind: StandbyKind, story: list[tuple[object, float, bool]]
) -> None:
    both, now = Together(policy, kind), 0.0
    for what, pause, usable in story:
        now += pause
        if isinstance(what, StandbyExited):
            if both.spares == 0:
                continue  # a process that does not exist does not end
            both.spares -= 1
            both.do(both.standby.handle(what, now))
        elif isinstance(what, StandbyLoaded):
            if both.spares == 1:
                both.do(both.standby.handle(what, now))
        elif isinstance(what, MemoryMeasured):
            both.do(both.standby.handle(what, now))
        else:
            event = _possible(both, *what)  # type: ignore[misc]
            if event is None:
                continue
            if isinstance(event, events.WorkerExited | events.SpawnFailed):
                both.workers -= 1
            if isinstance(event, events.AttemptFound):
                both.workers += 1
            both.job_effects(both.job.handle(event, now), usable, now)

        assert both.workers in (0, 1) and both.spares in (0, 1)
        assert (both.workers == 1) == (both.job.state in ALIVE)
        assert (both.spares == 1) == (both.standby.status.stage is not StandbyStage.NONE)
        if kind is StandbyKind.OFF or not policy.is_job:
            assert both.spares == 0 and both.promotions == 0
        if both.spares and both.standby.status.stage is not StandbyStage.ENDING:
            assert both.standby.deadline() is not None, "memory is looked at"


def _possible(both: Together, kind: type[events.Event], values: dict[str, object], shift: int) -> events.Event | None:
    """What may happen next; None for what can't."""
    if shift and "attempt" in values:
        return None  # the words of another attempt are dropped at the door; test_walk has them
    event = kind(**values | ({"attempt": both.job.facts.attempt} if "attempt" in values else {}))
    if isinstance(event, events.WorkerExited) and both.workers == 0:
        return None
    if isinstance(event, events.SpawnFailed) and (both.workers == 0 or both.job.state not in _SPAWNING):
        return None
    if isinstance(event, events.AttemptFound) and both.job.state is not State.STOPPED:
        return None
    return event


_SPAWNING = {State.STARTING, State.STOPPING, State.KILLING}


def test_the_walk_reaches_promotions():
    """Else the walk above would prove nothing about them."""
    both = Together(Policy("p", is_job=True), WARM)
    both.job_effects(both.job.handle(events.StartRequested(), 0.0), True, 0.0)
    both.job_effects(both.job.handle(events.StepsDone(1, 1), 1.0), True, 1.0)
    both.do(both.standby.handle(looked(), 1.0 + SETTLE_S))
    both.workers -= 1
    both.job_effects(both.job.handle(events.WorkerExited(1, signal=9), 5.0), True, 5.0)

    assert both.promotions == 1 and both.workers == 1 and both.spares == 0
    assert both.job.facts.attempt == 2


def test_a_stop_with_a_flush_ends_the_standby_at_once():
    both = Together(Policy("p", is_job=True), WARM)
    both.job_effects(both.job.handle(events.StartRequested(), 0.0), True, 0.0)
    both.job_effects(both.job.handle(events.StepsDone(1, 1), 1.0), True, 1.0)
    both.do(both.standby.handle(looked(), 1.0 + SETTLE_S))

    (flush,) = [effect for effect in both.job.handle(events.StopRequested(), 5.0) if hasattr(effect, "then")]
    both.job_effects([flush], True, 5.0)

    assert flush.then is Then.STOP
    assert both.standby.status.stage is StandbyStage.ENDING
