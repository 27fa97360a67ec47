"""Output reaches event listeners: all of it, or what stands between the marks of capture mode, in bounded memory."""

import base64
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.logs.capture import LogCapture, Tee
from supervisor.host.logs.capture_mode import (
    BEGIN,
    CAPTURED,
    COMMUNICATION,
    END,
    LOG,
    CaptureModeParser,
)
from supervisor.host.logs.link import OUTBOX_BYTES, Link, Outbox
from supervisor.host.logs.messages import (
    PACKET_BYTES,
    CapturePipe,
    LoggerMessage,
    OutputMissed,
    OutputPrinted,
    encode,
)
from supervisor.host.logs.output_events import PIECE_BYTES, OutputSubscribers, ProgramOutput, output_messages
from tests.waiting import wait_until

PIPE = CapturePipe(1, "", 0, 0, program="p", channel="stdout", attempt=3, events=True)
PLAIN = st.binary(max_size=20).filter(lambda data: b"<" not in data)
NEARLY = st.sampled_from([BEGIN[:5], BEGIN[:-1], END[:-1], b"<", b"<!--", b"-->", BEGIN.lower()])


def collected(capture: CaptureModeParser, pieces: list[bytes]) -> tuple[bytes, list[bytes], bytes]:
    """What was logged, the messages, what of them was heard piece by piece."""
    logged, messages, captured = b"", [], b""
    for piece in pieces:
        for kind, data in capture.feed(piece):
            assert data or kind == COMMUNICATION
            if kind == LOG:
                logged += data
            elif kind == CAPTURED:
                captured += data
            else:
                messages.append(data)
    return logged + capture.end(), messages, captured


@given(st.lists(st.tuples(PLAIN | NEARLY, st.none() | PLAIN), max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_marks_are_found_however_the_output_is_cut(parts: list[tuple[bytes, bytes | None]], cuts: list[int]):
    whole = b"".join(before + (b"" if told is None else BEGIN + told + END) for before, told in parts)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(places)]

    logged, messages, captured = collected(CaptureModeParser(1000), pieces)

    assert messages == [told for _, told in parts if told is not None]
    assert logged == b"".join(before for before, _ in parts)
    assert captured == b"".join(messages)


def test_end_of_a_long_message_is_kept():
    _, messages, captured = collected(CaptureModeParser(4), [BEGIN + b"0123456789" + END, BEGIN + b"ab" + END])

    assert messages == [b"6789", b"ab"]
    assert captured == b"0123456789ab"


def test_a_message_that_never_ends_is_logged():
    assert collected(CaptureModeParser(100), [b"x" + BEGIN + b"half" + END[:4]])[0] == b"x" + BEGIN + b"half" + END[:4]


def test_a_packet_holds_the_largest_piece_and_pieces_make_the_whole():
    data = os.urandom(3 * PIECE_BYTES + 1)

    found = output_messages(PIPE._replace(program="p" * 100), LOG, data)

    assert all(len(encode(each)) <= PACKET_BYTES for each in found)
    assert b"".join(base64.b64decode(each.data) for each in found) == data
    assert [each.goes_on for each in found] == [True, True, True, False]
    assert {each.event for each in found} == {"PROCESS_LOG_STDOUT"}


class Receiver(Link):
    """Takes so many messages."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[LoggerMessage] = []

    def send(self, message: LoggerMessage, descriptor: int | None = None) -> bool:
        if len(self.taken) < self.room:
            self.taken.append(message)
            return True
        return False


def test_outbox_is_bounded_and_counts_the_events_that_it_drops():
    outbox, each = Outbox(), output_messages(PIPE, LOG, b"x" * (PIECE_BYTES + 1))
    size = sum(len(packet.data) for packet in each)
    told = OUTBOX_BYTES // size + 5
    for _ in range(told):
        outbox.put_output(each)
    outbox.send_to(receiver := Receiver(10**6))

    kept = [message for message in receiver.taken if isinstance(message, OutputPrinted)]
    assert sum(len(message.data) for message in kept) <= OUTBOX_BYTES
    assert kept == each * (len(kept) // 2)
    assert receiver.taken[-1] == OutputMissed(told - len(kept) // 2, "p")
    outbox.put_output(each)
    outbox.send_to(receiver)
    assert receiver.taken[-2:] == each


def test_a_program_that_prints_without_end_takes_no_other_s_place():
    outbox, noisy = Outbox(), PIPE._replace(program="noisy")
    for _ in range(2 * OUTBOX_BYTES // PIECE_BYTES):
        outbox.put_output(output_messages(noisy, LOG, bytes(PIECE_BYTES)))
    for number in range(10):
        outbox.put_output(output_messages(PIPE, COMMUNICATION, b"%d" % number))
        outbox.put_output(output_messages(noisy, LOG, bytes(PIECE_BYTES)))
    outbox.send_to(receiver := Receiver(10**6))

    own = [each for each in receiver.taken if isinstance(each, OutputPrinted) and each.program == "p"]
    assert [base64.b64decode(each.data) for each in own] == [b"%d" % number for number in range(10)]
    (missed,) = [each for each in receiver.taken if isinstance(each, OutputMissed)]
    assert missed.program == "noisy"
    assert missed.events + sum(
        isinstance(each, OutputPrinted) and each.program == "noisy" for each in receiver.taken
    ) == (2 * OUTBOX_BYTES // PIECE_BYTES + 10)


def test_an_event_of_which_a_part_was_sent_is_sent_whole():
    outbox, noisy = Outbox(), PIPE._replace(program="noisy")
    outbox.put_output(output_messages(noisy, LOG, bytes(OUTBOX_BYTES // 2)))
    outbox.send_to(begun := Receiver(3))
    for _ in range(40):
        outbox.put_output(output_messages(PIPE, LOG, bytes(PIECE_BYTES // 2)))
    outbox.send_to(rest := Receiver(10**6))

    sent = [each for each in (*begun.taken, *rest.taken) if isinstance(each, OutputPrinted)]
    whole = [each for each in sent if each.program == "noisy"]
    assert sent[: len(whole)] == whole
    assert sum(len(base64.b64decode(each.data)) for each in whole) == OUTBOX_BYTES // 2


def test_events_without_a_word_have_a_bound_too():
    """Two marks one after the other, as often as a program can print them: the logger held them all."""
    outbox = Outbox()
    for _ in range(10_000):
        outbox.put_output(output_messages(PIPE, COMMUNICATION, b""))

    assert len(outbox) < OUTBOX_BYTES / 250, "an object takes more"


def test_event_larger_than_the_outbox_is_sent_alone():
    outbox = Outbox()
    outbox.put_output(output_messages(PIPE, COMMUNICATION, bytes(2 * OUTBOX_BYTES)))
    outbox.send_to(receiver := Receiver(10**6))

    assert sum(len(base64.b64decode(each.data)) for each in receiver.taken if isinstance(each, OutputPrinted)) == (
        2 * OUTBOX_BYTES
    )


def test_order_is_kept_when_the_daemon_is_slow():
    outbox = Outbox()
    for number in range(5):
        outbox.put_output(output_messages(PIPE, LOG, b"%d" % number))
    outbox.send_to(slow := Receiver(2))
    outbox.send_to(rest := Receiver(10))

    found = [base64.b64decode(each.data) for each in (*slow.taken, *rest.taken) if isinstance(each, OutputPrinted)]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[tuple[LogCapture, list[ProgramOutput]]]:
    outputs = list[ProgramOutput]()
    logs = LogCapture(tmp_path, OutputSubscribers(outputs.append))
    logs.start()
    yield logs, outputs
    logs.close()


def until(count: int, outputs: list[ProgramOutput]) -> None:
    wait_until(lambda: sum(len(output.data) for output in outputs) >= count, details=lambda: outputs)


@pytest.mark.integration
def test_listeners_get_what_is_printed_and_the_log_all_but_the_messages(
    heard: tuple[LogCapture, list[ProgramOutput]], tmp_path: Path
):
    logs, outputs = heard
    tee = Tee("web", 2, "stderr", events=True, capture=100)
    pipe = logs.open_pipe(tmp_path / "log", 0, 0, tee)
    os.write(pipe, b"one " + BEGIN + b"told" + END + b"two\n")
    os.close(pipe)
    until(16, outputs)

    assert {(output.program, output.attempt) for output in outputs} == {("web", 2)}
    assert [(output.event, output.data) for output in outputs] == [
        ("PROCESS_LOG_STDERR", b"one "),
        ("PROCESS_LOG_STDERR", b"told"),
        ("PROCESS_COMMUNICATION_STDERR", b"told"),
        ("PROCESS_LOG_STDERR", b"two\n"),
    ]
    logs.close()
    assert (tmp_path / "log").read_bytes() == b"one two\n"


@pytest.mark.integration
def test_a_large_message_arrives_whole_without_any_log(heard: tuple[LogCapture, list[ProgramOutput]]):
    logs, outputs = heard
    data = os.urandom(200_000).replace(b"<", b"?")
    pipe = logs.open_pipe(None, 0, 0, Tee("web", 1, "stdout", capture=300_000))
    with os.fdopen(pipe, "wb") as file:
        file.write(BEGIN + data + END)
    until(len(data), outputs)

    assert outputs == [ProgramOutput("PROCESS_COMMUNICATION_STDOUT", "web", 1, data)]


@pytest.mark.integration
def test_marks_are_plain_output_without_capture_mode(heard: tuple[LogCapture, list[ProgramOutput]], tmp_path: Path):
    logs, outputs = heard
    pipe = logs.open_pipe(tmp_path / "log", 0, 0, Tee("web", 1, "stdout", events=True))
    os.write(pipe, BEGIN + b"x" + END)
    os.close(pipe)
    until(len(BEGIN + END) + 1, outputs)

    assert b"".join(output.data for output in outputs) == BEGIN + b"x" + END
