"""A signal reaches the loop however busy it is, and wakes it while it has nothing to do."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from supervisor.host.loop_signals import LoopSignals
from tests.waiting import wait_until_async

NUMBER = signal.SIGUSR2


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(NUMBER)
    yield
    signal.signal(NUMBER, before)


@pytest.fixture
async def signals(restored: None) -> AsyncIterator[LoopSignals]:
    made = LoopSignals()
    yield made
    made.close()


async def test_signal_is_not_lost_while_a_busy_loop_is_called_from_threads(signals: LoopSignals) -> None:
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    signals.handle(NUMBER, came.set)

    def call_often() -> None:
        for _ in range(5000):
            loop.call_soon_threadsafe(lambda: None)

    thread = threading.Thread(target=call_often)
    thread.start()
    thread.join()  # the loop stands still meanwhile
    os.kill(os.getpid(), NUMBER)

    await asyncio.wait_for(came.wait(), 10)


async def test_signal_wakes_a_loop_that_waits(signals: LoopSignals) -> None:
    came = asyncio.Event()
    signals.handle(NUMBER, came.set)

    def send() -> None:
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident or 0, NUMBER)

    threading.Thread(target=send).start()

    await asyncio.wait_for(came.wait(), 10)


async def test_many_signals_at_once_are_all_handled(signals: LoopSignals) -> None:
    counted: list[int] = []
    signals.handle(NUMBER, lambda: counted.append(1))

    for _ in range(1000):
        os.kill(os.getpid(), NUMBER)
    await wait_until_async(lambda: len(counted) >= 1000, "each is handled: it was delivered before the next was sent")

    assert len(counted) == 1000
