"""The pipes of an event listener, with the other ends in the test's hands."""

import asyncio
import os

import pytest

from supervisor.host.pipes import listener_pipes
from supervisor.host.pipes.listener_pipes import ListenerPipes
from tests.reading import descriptors
from tests.waiting import stays_async

pytestmark = pytest.mark.fast_clock

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy


class Ear:
    """What the daemon's side was told."""

    def __init__(self) -> None:
        self.said = b""
        self.is_deaf = asyncio.Event()
        self.more = asyncio.Event()

    def heard(self, data: bytes) -> None:
        self.said += data
        self.more.set()


def opened(ear: Ear, copy: int | None = None) -> tuple[ListenerPipes, int, int]:
    """The pipes, and duplicates of the listener's ends."""
    pipes = ListenerPipes(ear.heard, ear.is_deaf.set, copy)
    stdin, stdout = os.dup(pipes.stdin), os.dup(pipes.stdout)
    pipes.close_listener_ends()
    return pipes, stdin, stdout


async def test_more_than_a_pipe_holds_gets_through_without_waiting():
    pipes, stdin, stdout = opened(Ear())

    pipes.write(b"x" * 300_000)
    pipes.write(b"end")
    read = b""
    while not read.endswith(b"end"):
        read += await asyncio.wait_for(asyncio.to_thread(os.read, stdin, 65536), PATIENCE_S)

    assert read == b"x" * 300_000 + b"end"
    pipes.close()
    os.close(stdin)
    os.close(stdout)


async def test_last_output_is_read_when_the_pipes_close():
    ear = Ear()
    pipes, stdin, stdout = opened(ear)

    os.write(stdout, b"RESULT 2\nOK")
    pipes.close()

    assert ear.said == b"RESULT 2\nOK"
    os.close(stdin)
    os.close(stdout)


async def test_a_listener_that_lives_without_reading_is_deaf():
    ear = Ear()
    pipes, stdin, stdout = opened(ear)

    os.close(stdin)
    pipes.write(b"event")

    await asyncio.wait_for(ear.is_deaf.wait(), PATIENCE_S)
    pipes.close()
    os.close(stdout)


async def test_exited_listener_is_not_deaf_and_neither_is_its_successor():
    ear = Ear()
    pipes, stdin, stdout = opened(ear)

    os.close(stdin)
    os.close(stdout)
    pipes.write(b"event")
    pipes.close()

    await stays_async(lambda: not ear.is_deaf.is_set(), "not deaf", for_s=2 * listener_pipes.CLOSED_GRACE_S)


async def test_a_copy_that_nobody_reads_holds_nothing_up():
    ear = Ear()
    reading, copy = os.pipe()
    pipes, stdin, stdout = opened(ear, copy)
    os.set_blocking(stdout, False)

    sent = 0
    while sent < 500_000:
        try:
            sent += os.write(stdout, b"x" * 4096)
        except BlockingIOError:
            await asyncio.wait_for(ear.more.wait(), PATIENCE_S)
            ear.more.clear()
    pipes.close()

    assert len(ear.said) == sent
    for descriptor in (reading, stdin, stdout):
        os.close(descriptor)


async def test_nothing_stays_open():
    before = descriptors()

    pipes = ListenerPipes(lambda data: None, lambda: None)
    pipes.close()
    pipes.close()

    assert len(os.listdir("/proc/self/fd")) == before
