"""Every second of a job is booked once, and as what it was."""

import pytest

from supervisor.core.failures.restart import Cause
from supervisor.core.goodput import (
    GoodputMeter,
    MeterReading,
    TimeSpent,
    goodput,
)
from supervisor.core.program.facts import AttemptFacts, Policy, ProgramFacts, State


def facts(state: State, wanted: bool = True, end: Cause | None = None) -> ProgramFacts:
    return ProgramFacts(
        Policy("digits", is_job=True),
        state=state,
        wanted=wanted,
        current=AttemptFacts(decided_end=(end, "why") if end is not None else None),
    )


def started(now: float = 0.0, last: MeterReading | None = None) -> GoodputMeter:
    meter = GoodputMeter(now, last)
    meter.begin_attempt(meter.attempt + 1, now)
    return meter


def training(furthest: int = 0) -> GoodputMeter:
    """Began at 0, restored at 4 (1 s of it restoring), did its first step at 10."""
    meter = started(last=MeterReading(0, furthest=furthest))
    meter.state_restored(0, 1.0, 4.0)
    meter.steps_done(1, 10.0)
    return meter


def booked(meter: GoodputMeter) -> dict[str, float]:
    return {str(spent): span_s for spent, span_s in meter.total_s.items() if span_s}


def test_a_start_is_divided_into_starting_restoring_and_tracing():
    assert booked(training()) == {"starting": 3.0, "restoring": 1.0, "tracing": 6.0}


def test_steps_that_are_done_a_second_time_are_replays_by_their_share():
    meter = training(furthest=6)

    meter.steps_done(11, 20.0)

    assert booked(meter)["replaying"] == 5.0
    assert booked(meter)["training"] == 5.0


def test_cost_of_a_save_is_subtracted_from_training():
    meter = training()
    meter.steps_done(2, 12.0)
    meter.checkpoint_committed(3.0)
    meter.steps_done(3, 14.0)
    meter.steps_done(4, 16.0)

    assert booked(meter)["saving"] == 3.0
    assert booked(meter)["training"] == 3.0


def test_waiting_for_data_is_told_from_the_steps():
    meter = training()

    meter.steps_done(2, 20.0, data_s=4.0)

    assert booked(meter)["data"] == 4.0
    assert booked(meter)["training"] == 6.0


def test_silence_that_ends_in_a_hang_was_hung_from_its_beginning():
    meter = training()
    meter.steps_done(2, 12.0)

    meter.state_changed(facts(State.STOPPING, end=Cause.HANG), 72.0)
    meter.state_changed(facts(State.KILLING, end=Cause.HANG), 80.0)
    meter.begin_attempt(2, 81.0)

    assert booked(meter)["hung"] == 69.0
    assert booked(meter)["training"] == 2.0


def test_a_start_that_never_trains_was_hung_too():
    meter = started()

    meter.state_changed(facts(State.STOPPING, end=Cause.STARTUP_TIMEOUT), 600.0)
    meter.begin_attempt(2, 610.0)

    assert booked(meter) == {"hung": 610.0}


@pytest.mark.parametrize("state", [State.BACKOFF, State.FAILED, State.STOPPED])
def test_without_a_process_a_wanted_program_is_down(state: State):
    meter = training()
    meter.state_changed(facts(state), 20.0)

    meter.begin_attempt(2, 50.0)

    assert booked(meter)["down"] == 30.0
    assert booked(meter)["training"] == 10.0


@pytest.mark.parametrize(
    ("state", "wanted"), [(State.SUCCEEDED, False), (State.STOPPED, False), (State.STOPPING, False)]
)
def test_unwanted_time_is_not_counted(state: State, wanted: bool):
    meter = training()
    meter.state_changed(facts(state, wanted), 20.0)
    meter.settle_known_time(120.0)

    assert booked(meter)["stopped"] == 100.0
    assert goodput(meter.total_s) == 10.0 / 20.0


def test_each_attempt_has_its_own_sums_and_the_total_has_all():
    meter = training()
    meter.begin_attempt(2, 15.0)
    meter.steps_done(1, 18.0)

    assert meter.reading.attempt == 2
    assert dict(meter.reading.spent_s) == {TimeSpent.STARTING: 3.0}
    assert sum(meter.total_s.values()) == 18.0


def test_a_worker_that_trained_without_a_daemon_gets_its_time_by_its_steps():
    kept = MeterReading(3, {TimeSpent.TRAINING: 7.0}, TimeSpent.REPLAYING, step=10, furthest=20)
    meter = GoodputMeter(100.0, kept)  # the earlier daemon's last word
    meter.state_changed(facts(State.ADOPTING), 160.0)
    meter.state_restored(0, 1.0, 160.0, again=True)
    meter.steps_done(50, 160.0, step_s=1.5)

    assert booked(meter) == {"replaying": 15.0, "training": 45.0}
    assert meter.reading.spent_s[TimeSpent.TRAINING] == 52.0


def test_a_worker_that_began_to_train_without_a_daemon_gets_its_steps_by_their_length():
    meter = GoodputMeter(100.0, MeterReading(3, {}, TimeSpent.STARTING))
    meter.state_changed(facts(State.ADOPTING), 160.0)
    meter.state_restored(0, 1.0, 160.0, again=True)
    meter.steps_done(21, 160.0, step_s=2.0)

    assert booked(meter) == {"tracing": 20.0, "training": 40.0}


def test_a_worker_that_died_without_a_daemon_trained_until_its_last_checkpoint():
    meter = GoodputMeter(100.0, MeterReading(3, {}, TimeSpent.TRAINING, step=10, furthest=10))
    meter.found_no_worker(wanted=True, step=30, lived_until=140.0)
    meter.begin_attempt(4, 200.0)

    assert booked(meter) == {"training": 40.0, "down": 60.0}
    assert meter.furthest == 30


def test_a_reboot_is_down_from_the_last_thing_known():
    meter = GoodputMeter(100.0, MeterReading(3, {}, TimeSpent.TRAINING, step=10, furthest=10))
    meter.found_no_worker(wanted=True, step=None, lived_until=None)
    meter.begin_attempt(4, 400.0)

    assert booked(meter) == {"down": 300.0}


def test_a_clock_that_goes_back_books_nothing():
    meter = training()

    meter.steps_done(2, 5.0)

    assert sum(meter.total_s.values()) == 10.0


def test_nothing_wanted_is_no_goodput():
    assert goodput({TimeSpent.STOPPED: 5.0}) is None


def test_time_in_replays_is_booked_as_replaying() -> None:
    meter = training()
    meter.steps_replayed(0.5)
    meter.steps_done(11, 20.0)

    assert booked(meter)["replaying"] == pytest.approx(0.5)
    assert booked(meter)["training"] == pytest.approx(9.5)
