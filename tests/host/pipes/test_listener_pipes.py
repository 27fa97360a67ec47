"""The pipes of an event listener, with the other ends in the test's hands."""

import asyncio
import os

from supervisor.host.pipes import listener_pipes
from supervisor.host.pipes.listener_pipes import ListenerPipes
from tests.reading import descriptors

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


def test_more_than_a_pipe_holds_gets_through_without_waiting():
    async def act() -> bytes:
        pipes, stdin, stdout = opened(Ear())
        pipes.write(b"x" * 300_000)
        pipes.write(b"end")
        read = b""
        while not read.endswith(b"end"):
            read += await asyncio.wait_for(asyncio.to_thread(os.read, stdin, 65536), PATIENCE_S)
        pipes.close()
        os.close(stdin)
        os.close(stdout)
        return read

    assert asyncio.run(act()) == b"x" * 300_000 + b"end"


def test_last_output_is_read_when_the_pipes_close():
    async def act() -> bytes:
        ear = Ear()
        pipes, stdin, stdout = opened(ear)
        os.write(stdout, b"RESULT 2\nOK")
        pipes.close()
        os.close(stdin)
        os.close(stdout)
        return ear.said

    assert asyncio.run(act()) == b"RESULT 2\nOK"


def test_a_listener_that_lives_without_reading_is_deaf():
    async def act() -> None:
        ear = Ear()
        pipes, stdin, stdout = opened(ear)
        os.close(stdin)
        pipes.write(b"event")
        await asyncio.wait_for(ear.is_deaf.wait(), PATIENCE_S)
        pipes.close()
        os.close(stdout)

    asyncio.run(act())


def test_exited_listener_is_not_deaf_and_neither_is_its_successor():
    async def act() -> bool:
        ear = Ear()
        pipes, stdin, stdout = opened(ear)
        os.close(stdin)
        os.close(stdout)
        pipes.write(b"event")
        pipes.close()
        await asyncio.sleep(2 * listener_pipes.CLOSED_GRACE_S)
        return ear.is_deaf.is_set()

    assert not asyncio.run(act())


def test_a_copy_that_nobody_reads_holds_nothing_up():
    async def act() -> int:
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
        for descriptor in (reading, stdin, stdout):
            os.close(descriptor)
        return len(ear.said) - sent

    assert asyncio.run(act()) == 0


def test_nothing_stays_open():
    async def act() -> None:
        pipes = ListenerPipes(lambda data: None, lambda: None)
        pipes.close()
        pipes.close()

    before = descriptors()
    asyncio.run(act())

    assert len(os.listdir("/proc/self/fd")) == before
