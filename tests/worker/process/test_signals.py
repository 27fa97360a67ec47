"""SIGTERM and SIGINT as requests."""

import os
import signal
from collections.abc import Iterator

import pytest

from worker.process.requests import PendingRequests, SaveRequest
from worker.process.signals import StopSignals


@pytest.fixture(autouse=True)
def _handlers_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def requests() -> PendingRequests:
    return PendingRequests()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_requests_a_save_and_a_stop(number: signal.Signals, requests: PendingRequests) -> None:
    StopSignals(requests).install()
    os.kill(os.getpid(), number)

    request = requests.pop_save_request()
    assert request is not None
    assert request == SaveRequest((), stop=True, deadline_at=request.deadline_at)
    assert request.deadline_at is not None, "who sends a signal waits for some seconds only"


def test_second_interrupt_raises_keyboard_interrupt(requests: PendingRequests) -> None:
    StopSignals(requests).install()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_handler_of_the_script_is_called_too(requests: PendingRequests) -> None:
    called = []
    signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    StopSignals(requests).install()
    os.kill(os.getpid(), signal.SIGTERM)

    assert called == [signal.SIGTERM]
    assert requests.pop_save_request() is not None


def test_ignored_signal_stays_ignored(requests: PendingRequests) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    StopSignals(requests).install()
    os.kill(os.getpid(), signal.SIGINT)

    assert requests.pop_save_request() is None


def test_removing_restores_the_previous_handlers(requests: PendingRequests) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopSignals(requests)
    stop.install()
    during = signal.getsignal(signal.SIGTERM)
    stop.remove()

    assert during != before
    assert signal.getsignal(signal.SIGTERM) == before
