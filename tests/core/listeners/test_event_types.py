"""Event types and their kinds; ticks."""

from supervisor.core.listeners import event_types
from supervisor.core.listeners.event_types import OURS, TYPES, is_kind_of


def test_a_type_is_one_of_itself_and_of_all_above_it_and_of_no_other():
    of = {name for name in TYPES if is_kind_of("PROCESS_STATE_EXITED", [name])}

    assert of == {"PROCESS_STATE_EXITED", "PROCESS_STATE", "EVENT"}
    assert is_kind_of("TICK_60", ["TICK"])
    assert not is_kind_of("TICK_60", ["TICK_5", "PROCESS_STATE"])
    assert is_kind_of("CHECKPOINT_COMMITTED", ["CHECKPOINT"])


def test_event_stands_for_every_type():
    assert all(is_kind_of(name, ["EVENT"]) for name in {*TYPES, *OURS})
    assert not any(is_kind_of(name, []) for name in TYPES)


def test_ticks_come_when_their_period_is_over():
    assert [event.name for event in event_types.tick_events(3600)] == ["TICK_5", "TICK_60", "TICK_3600"]
    assert [event.payload for event in event_types.tick_events(65)] == ["when:65"]
    assert event_types.next_tick(60.0) == 65
    assert event_types.next_tick(64.999) == 65


def test_tick_that_came_a_moment_early_is_not_made_again():
    assert event_types.next_tick(64.999, last=65) == 70
    assert event_types.next_tick(3.0, last=65) == 5  # the clock was set back


def test_tick_subscriptions_are_known():
    assert event_types.wants_ticks(["EVENT"])
    assert event_types.wants_ticks(["TICK_3600"])
    assert not event_types.wants_ticks(["PROCESS_STATE", "REMOTE_COMMUNICATION"])
