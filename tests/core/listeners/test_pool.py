"""A pool of listeners: the protocol, what is sent to whom, and that no event goes missing in silence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.listeners.event_buffer import MAX_BYTES
from supervisor.core.listeners.pool import (
    EventDropped,
    EventRejected,
    ListenerDistrusted,
    ListenerPool,
    ListenerState,
    SendEvent,
)
from tests.fuzzing import cases

OK, FAIL = b"RESULT 2\nOK", b"RESULT 4\nFAIL"


def pool(*listeners: str, capacity: int = 10) -> ListenerPool:
    """With these listeners, all READY."""
    made = ListenerPool("ears", "super", capacity)
    for name in listeners:
        made.listener_started(name)
        made.set_listener_up(name, True, 0.0)
        made.listener_wrote(name, b"READY\n", 0.0)
    return made


def offer(made: ListenerPool, number: int, payload: bytes = b"x"):
    return made.add_event(number, f"E{number}", payload, 0.0)


def sent(effects) -> list[tuple[str, str]]:
    """To whom which event was sent."""
    return [
        (effect.listener, effect.data.decode().split("eventname:")[1].split()[0])
        for effect in effects
        if isinstance(effect, SendEvent)
    ]


def test_an_event_is_sent_with_its_length_in_bytes():
    made = pool("a")

    (effect,) = made.add_event(21, "REMOTE_COMMUNICATION", "type:t\nhäß".encode(), 0.0)

    header, payload = effect.data.split(b"\n", 1)
    assert header == b"ver:3.0 server:super serial:21 pool:ears poolserial:0 eventname:REMOTE_COMMUNICATION len:12"
    assert payload == "type:t\nhäß".encode()
    assert len(payload) == 12


def test_events_wait_until_a_listener_is_ready_and_runs():
    made = ListenerPool("ears", "super", 10)
    offer(made, 0)
    made.listener_started("a")

    assert not sent(made.listener_wrote("a", b"READY\n", 0.0))
    assert sent(made.set_listener_up("a", True, 0.0)) == [("a", "E0")]


def test_a_listener_has_one_event_at_a_time_and_they_come_in_order():
    made = pool("a")
    first = offer(made, 0)
    offer(made, 1)
    offer(made, 2)

    assert sent(first) == [("a", "E0")]
    assert not made.listener_wrote("a", OK, 0.0)
    assert sent(made.listener_wrote("a", b"READY\n", 0.0)) == [("a", "E1")]
    assert sent(made.listener_wrote("a", OK + b"READY\n", 0.0)) == [("a", "E2")]
    assert (made.accepted, made.waiting, made.unanswered) == (2, 0, 1)


def test_every_free_listener_gets_one():
    made = pool("a", "b")

    assert sent(offer(made, 0) + offer(made, 1) + offer(made, 2)) == [("a", "E0"), ("b", "E1")]


def test_a_refused_event_is_sent_again_before_the_others_and_to_whoever_is_free():
    made = pool("a", "b")
    offer(made, 0)
    offer(made, 1)
    offer(made, 2)

    refused = made.listener_wrote("a", FAIL, 0.0)
    again = made.listener_wrote("b", OK + b"READY\n", 0.0)

    assert refused == [EventRejected("a", "E0", b"FAIL")]
    assert sent(again) == [("b", "E0")]
    assert (made.refused, made.waiting) == (1, 1)


def test_an_event_that_is_refused_again_waits_a_second():
    made = pool("a")
    offer(made, 0)

    once = made.listener_wrote("a", FAIL + b"READY\n", 5.0)
    twice = made.listener_wrote("a", FAIL + b"READY\n", 5.0)

    assert sent(once) == [("a", "E0")]
    assert not sent(twice)
    assert made.deadline() == 6.0
    assert not made.expire(5.9)
    assert sent(made.expire(6.0)) == [("a", "E0")]
    assert made.deadline() is None


def test_an_answer_for_code_that_is_not_here_is_no_refusal():
    made = pool("a")
    made.takes_data = True
    offer(made, 0)
    offer(made, 1)

    assert sent(made.listener_wrote("a", b"RESULT 5\nlinesREADY\n", 0.0)) == [("a", "E1")]
    assert made.listener_wrote("a", FAIL, 0.0) == [EventRejected("a", "E1", b"FAIL")]
    assert (made.accepted, made.refused) == (1, 1)


def test_any_other_answer_is_a_refusal_too():
    made = pool("a")
    offer(made, 0)

    assert made.listener_wrote("a", b"RESULT 3\nOK\n", 0.0) == [EventRejected("a", "E0", b"OK\n")]


def test_a_listener_that_dies_busy_leaves_its_event_to_the_next():
    made = pool("a", "b")
    offer(made, 0)
    offer(made, 1)
    offer(made, 2)

    assert not sent(made.listener_exited("b", 0.0))
    assert not sent(made.listener_exited("a", 0.0))
    made.listener_started("a")
    made.set_listener_up("a", True, 0.0)

    assert sent(made.listener_wrote("a", b"READY\n", 0.0)) == [("a", "E0")]
    assert sent(made.listener_wrote("a", OK + b"READY\n", 0.0)) == [("a", "E1")]
    assert sent(made.listener_wrote("a", OK + b"READY\n", 0.0)) == [("a", "E2")]


def test_a_listener_that_reads_no_more_is_not_sent_anything():
    made = pool("a")
    offer(made, 0)

    (distrusted,) = made.listener_stdin_closed("a", 0.0)

    assert isinstance(distrusted, ListenerDistrusted)
    assert made.waiting == 1
    assert made.listener_stdin_closed("a", 0.0) == []
    assert not sent(offer(made, 1))


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (b"", b"HELLO\n"),
        (b"", b"READ\n"),
        (b"", OK),
        (b"READY\n", b"READY\n"),
        (b"READY\n", b"x"),
    ],
)
def test_a_listener_that_says_something_else_is_not_trusted_until_it_is_started_again(before: bytes, said: bytes):
    made = ListenerPool("ears", "super", 10)
    made.listener_started("a")
    made.set_listener_up("a", True, 0.0)
    made.listener_wrote("a", before, 0.0)

    (distrusted,) = made.listener_wrote("a", said, 0.0)

    assert isinstance(distrusted, ListenerDistrusted)
    listener = made.listener("a")
    assert listener is not None
    assert listener.state is ListenerState.UNKNOWN
    assert made.listener_wrote("a", b"READY\n", 0.0) == []
    assert not sent(offer(made, 0))
    made.listener_exited("a", 0.0)
    made.listener_started("a")
    made.set_listener_up("a", True, 0.0)
    assert sent(made.listener_wrote("a", b"READY\n", 0.0)) == [("a", "E0")]


@pytest.mark.parametrize(
    "said", [b"READY\n", b"RESULT\n", b"RESULT x\n", b"RESULT -1\n", b"RESULT 99999999\n", b"RESULT 2000000\n", b"O"]
)
def test_a_wrong_answer_gives_the_event_to_another(said: bytes):
    made = pool("a", "b")
    offer(made, 0)

    effects = made.listener_wrote("a", said, 0.0)

    assert isinstance(effects[0], ListenerDistrusted)
    assert sent(effects) == [("b", "E0")]


def test_full_pool_drops_and_counts_the_oldest_event():
    made = pool(capacity=2)

    effects = offer(made, 0) + offer(made, 1) + offer(made, 2) + offer(made, 3)

    assert effects == [EventDropped("E0", 1), EventDropped("E1", 2)]
    assert (made.waiting, made.dropped) == (2, 2)


def test_a_program_that_makes_events_without_end_drops_its_own():
    made = pool(capacity=4)
    offered = [("victim", 0), *(("flood", number) for number in range(1, 9)), ("victim", 9)]

    effects = [effect for of, number in offered for effect in made.add_event(number, f"{of}{number}", b"x", 0.0, of)]

    assert [effect.event for effect in effects if isinstance(effect, EventDropped)] == [
        f"flood{n}" for n in range(1, 7)
    ]
    assert made.waiting == 4


def test_events_are_bounded_in_bytes_too_but_the_last_one_stays():
    made = pool(capacity=1000)
    half = b"x" * (MAX_BYTES // 2)

    assert not offer(made, 0, half)
    assert not offer(made, 1, half)
    assert offer(made, 2, b"x") == [EventDropped("E0", 1)]
    assert len(offer(made, 3, half + half + b"x")) == 2
    assert made.waiting == 1


def test_an_event_that_comes_back_is_not_dropped_for_want_of_room():
    made = pool("a", capacity=1)
    offer(made, 0)
    offer(made, 1)

    assert not any(isinstance(effect, EventDropped) for effect in made.listener_exited("a", 0.0))
    assert made.waiting == 2


WORDS = st.sampled_from([b"READY\n", OK, FAIL, b"RESULT 0\n", b"RESULT ", b"\n", b"OK", b"RESULT 12\nREADY\n"])


@pytest.mark.fuzz
@cases(500)
@given(st.lists(st.one_of(WORDS, st.binary(max_size=12)), max_size=12), st.lists(st.integers(1, 9), max_size=40))
def test_no_listener_reply_loses_an_event(said: list[bytes], cuts: list[int]):
    text = b"".join(said)
    whole, pieces = pool("a"), pool("a")
    for made in (whole, pieces):
        for number in range(5):
            offer(made, number)

    effects = whole.listener_wrote("a", text, 0.0)
    place, in_pieces = 0, []
    for cut in [*cuts, len(text)]:
        in_pieces += pieces.listener_wrote("a", text[place : place + cut], 0.0)
        place += cut
    in_pieces += pieces.listener_wrote("a", text[place:], 0.0) if place < len(text) else []

    # what comes after READY in the same breath is a mistake, a moment later it may be an answer: as in Supervisor
    assert sent(in_pieces)[: len(sent(effects))] == sent(effects)
    for made in (whole, pieces):
        assert made.accepted + made.unanswered == 5
