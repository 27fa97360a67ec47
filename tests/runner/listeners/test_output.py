"""What programs print comes from a thread to the event loop: in order, bounded, and without keeping others waiting."""

import asyncio
import threading

import structlog.testing

from supervisor.host.logs.output_events import ProgramOutput
from supervisor.runner.listeners.output import (
    BATCH,
    HELD_BYTES,
    OVERHEAD_BYTES,
    OutputPublisher,
)


def output(data: bytes, program: str = "p") -> ProgramOutput:
    return ProgramOutput("PROCESS_LOG_STDOUT", program, 1, data)


async def turns() -> None:
    """As many as it needs, and more."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_all_of_a_thread_s_words_arrive_in_order_with_turns_for_others():
    async def run() -> tuple[list[bytes], int]:
        delivered: list[bytes] = []
        taken = 0
        printing = OutputPublisher()
        words = [b"%d" % number for number in range(5 * BATCH)]
        thread = threading.Thread(target=lambda: [printing.on_output(output(word)) for word in words])
        thread.start()
        thread.join()
        await turns()
        assert not delivered, "nobody is there yet"
        printing.start(lambda each: delivered.append(each.data))
        while len(delivered) < len(words):
            taken += 1
            await asyncio.sleep(0)
        assert delivered == words
        return delivered, taken

    _, taken = asyncio.run(run())

    assert taken >= 5


def test_output_beyond_the_buffer_is_dropped_and_reported_once():
    async def run() -> int:
        delivered: list[bytes] = []
        printing = OutputPublisher()
        printing.start(lambda each: delivered.append(each.data))
        piece = bytes(HELD_BYTES // 10)
        for _ in range(30):
            printing.on_output(output(piece))
        printing.on_missed(5, "p")
        await turns()
        printing.on_output(output(b"after"))
        await turns()
        assert delivered[-1] == b"after"
        assert (len(delivered) - 1) * (len(piece) + OVERHEAD_BYTES) <= HELD_BYTES
        return len(delivered) - 1

    with structlog.testing.capture_logs() as logged:
        kept = asyncio.run(run())

    assert [(each["event"], each["events"]) for each in logged] == [("listener.output_missed", 30 - kept + 5)]


def test_a_program_that_prints_without_end_takes_no_other_s_place_and_is_named():
    async def run() -> list[ProgramOutput]:
        delivered: list[ProgramOutput] = []
        printing = OutputPublisher()
        piece = bytes(HELD_BYTES // 10)
        for number in range(20):
            printing.on_output(output(piece, "noisy"))
            printing.on_output(output(b"%d" % number, "quiet"))
        printing.start(delivered.append)
        await turns()
        return delivered

    with structlog.testing.capture_logs() as logged:
        delivered = asyncio.run(run())

    assert [each.data for each in delivered if each.program == "quiet"] == [b"%d" % number for number in range(20)]
    kept = sum(each.program == "noisy" for each in delivered)
    assert [each["programs"] for each in logged] == [{"noisy": 20 - kept}]
