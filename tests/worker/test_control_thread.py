"""The worker's end of the control pipe."""

import os
import time
from collections.abc import Iterator

import pytest

from supervisor.protocol.messages import (
    PROTOCOL,
    Committed,
    Flush,
    Flushing,
    Go,
    Hello,
    Identify,
    Progress,
    Restored,
    SaveFailed,
    Then,
)
from tests.worker.daemon_end import DaemonEnd
from worker.channel import Channel
from worker.requests import Asked, Requests


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def channel(daemon: DaemonEnd, requests: Requests) -> Iterator[Channel]:
    opened = Channel(daemon.control(), requests)
    yield opened
    opened.close()


def test_says_hello_at_once(daemon: DaemonEnd, channel: Channel) -> None:
    hello = daemon.wait_for(Hello)

    assert (hello.attempt, hello.protocol, hello.pid) == (1, PROTOCOL, os.getpid())


def test_go_brings_the_path_to_restore(daemon: DaemonEnd, channel: Channel) -> None:
    daemon.send(Go(1, "/somewhere/step-0000000010.a1"))

    assert channel.wait_for_go().restore == "/somewhere/step-0000000010.a1"


def test_flush_is_answered_at_once_and_kept_for_the_loop(
    daemon: DaemonEnd, channel: Channel, requests: Requests
) -> None:
    requests.step = 41
    daemon.send(Flush(1, id=7, reason="operator", then=Then.STOP))

    assert daemon.wait_for(Flushing, timeout=5) == Flushing(1, 7, 41)
    assert _taken(requests) == Asked((7,), stop=True)


def test_flushes_that_wait_are_served_as_one(daemon: DaemonEnd, channel: Channel, requests: Requests) -> None:
    daemon.send(Flush(1, id=1, reason="operator", then=Then.STOP))
    daemon.send(Flush(1, id=2, reason="notice", then=Then.GO_ON))
    daemon.wait_for(Flushing, among=lambda flushing: flushing.id == 2)
    daemon.send(Identify(1))
    daemon.wait_for(Hello)

    assert _taken(requests) == Asked((1, 2), stop=True)


def test_orders_for_another_attempt_are_dropped(daemon: DaemonEnd, channel: Channel, requests: Requests) -> None:
    daemon.send(Flush(2, id=1, reason="operator", then=Then.STOP))
    daemon.send(Flush(1, id=2, reason="operator", then=Then.GO_ON))
    daemon.wait_for(Flushing)

    assert [flushing.id for flushing in daemon.all_of(Flushing)] == [2]


def test_a_line_that_is_no_message_is_survived(daemon: DaemonEnd, channel: Channel) -> None:
    daemon.send_line(b"garbage\n")
    daemon.send(Flush(1, id=3, reason="operator", then=Then.GO_ON))

    assert daemon.wait_for(Flushing, timeout=5).id == 3


def test_identify_is_answered_with_where_training_stands(daemon: DaemonEnd, channel: Channel) -> None:
    channel.say(Restored(1, step=100, checkpoint="step-0000000100.a1", restore_s=0.1))
    channel.progress(Progress(1, step=120))
    daemon.wait_for(Progress)
    daemon.heard.clear()

    daemon.send(Identify(1))

    assert daemon.wait_for(Hello).attempt == 1
    assert daemon.wait_for(Progress).step == 120


def test_full_pipe_keeps_the_latest_progress_and_all_that_must_arrive(daemon: DaemonEnd, channel: Channel) -> None:
    filler = SaveFailed(1, 0, "x" * 8000)
    for _ in range(20):  # 160 kB into a pipe of 64 kB
        channel.say(filler)
    for step in range(1000):
        channel.progress(Progress(1, step))
    channel.say(Committed(1, 999, "step-0000000999.a1", 1, 0.1, 0.1))

    assert daemon.wait_for(Progress).step == 999
    assert len(daemon.all_of(SaveFailed)) == 20
    assert daemon.all_of(Committed)


def test_talking_never_waits_for_a_daemon_that_does_not_read(channel: Channel) -> None:
    began_at = time.monotonic()
    for step in range(3000):
        channel.say(Committed(1, step, f"step-{step:010d}.a1", 1, 0.1, 0.1))
        channel.progress(Progress(1, step))

    assert time.monotonic() - began_at < 5
    assert not channel.drain(timeout=0.05)


def test_drained_means_that_the_daemon_can_read_it(daemon: DaemonEnd, channel: Channel) -> None:
    channel.say(SaveFailed(1, 5, "disk full"))

    assert channel.drain(timeout=5)
    daemon.read()
    assert daemon.all_of(SaveFailed)


def test_a_forked_child_does_not_speak_for_the_worker(daemon: DaemonEnd, channel: Channel) -> None:
    channel.drain(timeout=5)
    child = os.fork()
    if child == 0:
        channel.say(SaveFailed(1, 5, "from the child"))
        channel.progress(Progress(1, 5))
        os._exit(0 if not channel.drain(timeout=0.1) else 1)
    _, status = os.waitpid(child, 0)
    channel.progress(Progress(1, 6))
    daemon.wait_for(Progress)

    assert os.waitstatus_to_exitcode(status) == 0
    assert not daemon.all_of(SaveFailed)


def _taken(requests: Requests) -> Asked | None:
    """What the thread left for the loop: it answers before it leaves it, so the answer may be there first."""
    deadline = time.monotonic() + 5
    while (asked := requests.take()) is None and time.monotonic() < deadline:
        os.sched_yield()
    return asked
