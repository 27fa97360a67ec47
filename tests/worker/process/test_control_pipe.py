"""The worker's end of the control pipe."""

import os
import time
from collections.abc import Iterator

import pytest

from supervisor.host.pipes.control_pipes import read_last_words
from supervisor.protocol.layout import LAST_WORDS
from supervisor.protocol.wire.messages import (
    PROTOCOL,
    Committed,
    Done,
    Exported,
    Failed,
    Flush,
    Flushing,
    FromWorker,
    Go,
    Hello,
    Identify,
    Phase,
    Progress,
    Restored,
    Restoring,
    SaveFailed,
    Then,
    WorkerStatus,
)
from tests.waiting import wait_until
from tests.worker.daemon_end import DaemonEnd
from worker.process.control_pipe import WorkerChannel
from worker.process.requests import PendingRequests, SaveRequest
from worker.process.sent_messages import LAST_WORDS_BYTES


@pytest.fixture
def requests() -> PendingRequests:
    return PendingRequests()


@pytest.fixture
def channel(daemon: DaemonEnd, requests: PendingRequests) -> Iterator[WorkerChannel]:
    opened = WorkerChannel(daemon.control(), requests)
    opened.start()
    yield opened
    opened.close()


def test_says_hello_at_once(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    hello = daemon.wait_for(Hello)

    assert (hello.attempt, hello.protocol, hello.pid) == (1, PROTOCOL, os.getpid())


def test_go_brings_the_path_to_restore(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    daemon.send(Go(1, "/somewhere/step-0000000010.a1"))

    assert channel.wait_for_go().restore == "/somewhere/step-0000000010.a1"


def test_flush_is_answered_at_once_and_kept_for_the_loop(
    daemon: DaemonEnd, channel: WorkerChannel, requests: PendingRequests
) -> None:
    requests.step = 41
    daemon.send(Flush(1, id=7, reason="operator", then=Then.STOP))

    assert daemon.wait_for(Flushing) == Flushing(1, 7, 41)
    assert _taken(requests) == SaveRequest((7,), stop=True)


def test_flushes_that_wait_are_served_as_one(
    daemon: DaemonEnd, channel: WorkerChannel, requests: PendingRequests
) -> None:
    daemon.send(Flush(1, id=1, reason="operator", then=Then.STOP))
    daemon.send(Flush(1, id=2, reason="notice", then=Then.GO_ON))
    daemon.wait_for(Flushing, among=lambda flushing: flushing.id == 2)
    daemon.send(Identify(1))
    daemon.wait_for(Hello)

    assert _taken(requests) == SaveRequest((1, 2), stop=True)


def test_orders_for_another_attempt_are_dropped(
    daemon: DaemonEnd, channel: WorkerChannel, requests: PendingRequests
) -> None:
    daemon.send(Flush(2, id=1, reason="operator", then=Then.STOP))
    daemon.send(Flush(1, id=2, reason="operator", then=Then.GO_ON))
    daemon.wait_for(Flushing)

    assert [flushing.id for flushing in daemon.all_of(Flushing)] == [2]


def test_a_line_that_is_no_message_is_survived(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    daemon.send_line(b"garbage\n")
    daemon.send(Flush(1, id=3, reason="operator", then=Then.GO_ON))

    assert daemon.wait_for(Flushing).id == 3


def test_identify_is_answered_with_where_training_stands(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    channel.send_message(Restored(1, step=100, checkpoint="step-0000000100.a1", restore_s=0.1))
    channel.send_progress(Progress(1, step=120))
    daemon.wait_for(Progress)
    daemon.heard.clear()

    daemon.send(Identify(1))

    assert daemon.wait_for(Hello).attempt == 1
    assert daemon.wait_for(Progress).step == 120


def test_full_pipe_keeps_the_latest_progress_and_all_that_must_arrive(
    daemon: DaemonEnd, channel: WorkerChannel
) -> None:
    filler = SaveFailed(1, 0, "x" * 8000)
    for _ in range(20):  # 160 kB into a pipe of 64 kB
        channel.send_message(filler)
    for step in range(1000):
        channel.send_progress(Progress(1, step))
    channel.send_message(Committed(1, 999, "step-0000000999.a1", 1, 0.1, 0.1))

    assert daemon.wait_for(Progress).step == 999
    assert len(daemon.all_of(SaveFailed)) == 20
    assert daemon.all_of(Committed)


def test_the_last_progress_comes_before_the_last_word(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    for _ in range(20):  # more than the pipe takes: what follows waits
        channel.send_message(SaveFailed(1, 0, "x" * 8000))
    last = Progress(1, 7, data_s=0.5), Done(1, 7, {})
    channel.send_progress(last[0])
    channel.send_message(last[1])
    daemon.wait_for(Progress)
    daemon.wait_for(Done)

    assert tuple(daemon.heard[-2:]) == last


LONG = {"loss": 1.5, **{f"{number} {'🙂' * 2000}": float(number) for number in range(99)}}
CLOWNS = "🤡" * 9000


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (Done(1, 7, LONG), Done(1, 7, {"loss": 1.5})),
        (SaveFailed(1, 7, CLOWNS, (3,)), SaveFailed(1, 7, f"{CLOWNS[:3999]}…", (3,))),
        (Exported(1, 4, 7, error=CLOWNS), Exported(1, 4, 7, error=f"{CLOWNS[:3999]}…")),
        (Failed(1, 7, CLOWNS, f"{CLOWNS}end"), Failed(1, 7, CLOWNS[:500], f"{CLOWNS[:2997]}end")),
        (
            Failed(1, 7, "diverged", batches=("12:345678",) * 9000, code=78),
            Failed(1, 7, "diverged", batches=("12:345678",) * 1000, code=78),
        ),
    ],
)
def test_message_too_long_for_a_line_loses_its_longest_parts(
    said: FromWorker, heard: FromWorker, daemon: DaemonEnd, channel: WorkerChannel
) -> None:
    channel.send_message(said)

    assert daemon.wait_for(type(heard)) == heard


def test_names_too_long_for_a_line_leave_the_thread_alive(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    channel.send_progress(Progress(1, 7, metrics=LONG))
    told = daemon.wait_for(Progress)
    daemon.send(Identify(1))

    assert told.metrics == {"loss": 1.5}
    assert daemon.wait_for(WorkerStatus)


def test_talking_never_waits_for_a_daemon_that_does_not_read(channel: WorkerChannel) -> None:
    began_at = time.monotonic()
    for step in range(3000):
        channel.send_message(Committed(1, step, f"step-{step:010d}.a1", 1, 0.1, 0.1))
        channel.send_progress(Progress(1, step))

    assert time.monotonic() - began_at < 5
    assert not channel.drain(timeout=0.05)


def test_drained_means_that_the_daemon_can_read_it(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    channel.send_message(SaveFailed(1, 5, "disk full"))

    assert channel.drain(timeout=5)
    daemon.read()
    assert daemon.all_of(SaveFailed)


@pytest.mark.integration
def test_a_forked_child_does_not_speak_for_the_worker(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    channel.drain(timeout=5)
    child = os.fork()
    if child == 0:
        channel.send_message(SaveFailed(1, 5, "from the child"))
        channel.send_progress(Progress(1, 5))
        channel.send_message(Failed(1, 5, "the child's own end"))
        os._exit(0 if not channel.drain(timeout=0.1) else 1)
    _, status = os.waitpid(child, 0)
    channel.send_progress(Progress(1, 6))
    daemon.wait_for(Progress)

    assert os.waitstatus_to_exitcode(status) == 0
    assert not daemon.all_of(SaveFailed)
    assert not (channel.pipes / LAST_WORDS).exists(), "how a child ends is not how the worker does"


def _taken(requests: PendingRequests) -> SaveRequest | None:
    """What the thread left for the loop: it answers before it leaves it, so the answer may be there first."""
    return wait_until(requests.pop_save_request, "a request is left")


def test_identify_repeats_what_a_new_daemon_may_have_missed_and_ends_with_where_it_stands(
    daemon: DaemonEnd, channel: WorkerChannel, requests: PendingRequests
) -> None:
    daemon.send(Go(1, "/c/step-0000000100.a1"))
    channel.wait_for_go()
    channel.send_message(Restored(1, step=100, checkpoint="step-0000000100.a1", restore_s=0.1))
    channel.send_message(_committed(step=110))
    channel.send_progress(Progress(1, step=112))
    requests.step = 113
    daemon.wait_for(Progress)
    daemon.send(Flush(1, id=4, reason="operator", then=Then.STOP))
    daemon.wait_for(Flushing)
    daemon.heard.clear()

    daemon.send(Identify(1))

    standing = daemon.wait_for(WorkerStatus)
    assert [type(each) for each in daemon.heard] == [Hello, Restored, Committed, Progress, WorkerStatus]
    assert daemon.wait_for(Committed).ago_s is not None
    assert standing == WorkerStatus(1, os.getpid(), Phase.TRAINING, 113, "step-0000000100.a1", (4,), 4, Then.STOP)


@pytest.mark.parametrize("answer", [Committed, SaveFailed])
def test_flush_that_was_answered_is_not_open_any_more(
    daemon: DaemonEnd, channel: WorkerChannel, answer: type[Committed] | type[SaveFailed]
) -> None:
    daemon.send(Flush(1, id=4, reason="operator", then=Then.GO_ON))
    daemon.wait_for(Flushing)
    channel.send_message(
        _committed(step=5, flushes=(4,)) if answer is Committed else SaveFailed(1, 5, "disk full", (4,))
    )
    daemon.send(Identify(1))

    standing = daemon.wait_for(WorkerStatus)

    assert (standing.flushes, standing.last_flush) == ((), 4)


def test_phase_follows_what_was_heard_and_said(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    def phase() -> Phase:
        daemon.heard.clear()
        daemon.send(Identify(1))
        return daemon.wait_for(WorkerStatus).phase

    phases = [phase()]
    daemon.send(Go(1, None))
    channel.wait_for_go()
    phases.append(phase())
    channel.send_message(Restored(1, step=0, checkpoint=None, restore_s=0.0))
    phases.append(phase())
    channel.send_message(Done(1, step=9))
    phases.append(phase())

    assert phases == [Phase.WAITING, Phase.RESTORING, Phase.TRAINING, Phase.DONE]


def test_done_and_failed_are_left_behind_for_a_daemon_that_comes_too_late(
    daemon: DaemonEnd, channel: WorkerChannel
) -> None:
    channel.send_message(Done(1, step=9))
    channel.send_message(Failed(1, 9, "ValueError: no"))

    assert read_last_words(daemon.folder, 1) == [Done(1, step=9), Failed(1, 9, "ValueError: no")]


def test_the_end_of_a_run_is_not_left_behind_once_the_next_one_has_begun(
    daemon: DaemonEnd, channel: WorkerChannel
) -> None:
    channel.send_message(Done(1, step=9))

    channel.send_message(Restored(1, step=9, checkpoint="step-0000000009.a1", restore_s=0.0))

    assert read_last_words(daemon.folder, 1) == []


def test_what_is_left_behind_for_a_later_daemon_has_a_limit(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    for step in range(2000):
        channel.send_message(Done(1, step))

    assert (daemon.folder / LAST_WORDS).stat().st_size <= LAST_WORDS_BYTES
    assert read_last_words(daemon.folder, 1)[-1] == Done(1, 1999)


def test_reliable_messages_reach_a_later_daemon(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    for step in range(1, 901):  # several pipes full
        channel.send_message(_committed(step))
        channel.send_progress(Progress(1, step))

    daemon.wait_for(Committed, among=lambda committed: committed.step == 900)

    assert [each.step for each in daemon.all_of(Committed)] == list(range(1, 901))


def _committed(step: int, flushes: tuple[int, ...] = ()) -> Committed:
    return Committed(1, step, f"step-{step:010d}.a1", 10, 0.1, 0.0, flushes)


def test_a_new_daemon_hears_again_that_the_restore_has_begun(daemon: DaemonEnd, channel: WorkerChannel) -> None:
    channel.send_message(Restoring(1, "step-0000000010.a1"))
    assert channel.drain(10.0)
    daemon.wait_for(Restoring)
    daemon.send(Identify(1))

    again = daemon.wait_for(Restoring)
    status = daemon.wait_for(WorkerStatus)

    assert again.checkpoint == "step-0000000010.a1"
    assert status.phase is Phase.WAITING
