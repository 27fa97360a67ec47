"""SIGTERM and SIGINT as requests."""

import os
import signal
from collections.abc import Iterator

import pytest

from worker.process.requests import Asked, Requests
from worker.process.signals import PoliteStop


@pytest.fixture(autouse=True)
def _handlers_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_asks_for_a_flush_and_a_stop(number: signal.Signals, requests: Requests) -> None:
    PoliteStop(requests).install()
    os.kill(os.getpid(), number)

    assert requests.take() == Asked((), stop=True)


def test_second_interrupt_is_not_polite(requests: Requests) -> None:
    PoliteStop(requests).install()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_handler_of_the_script_is_called_too(requests: Requests) -> None:
    called = []
    signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    PoliteStop(requests).install()
    os.kill(os.getpid(), signal.SIGTERM)

    assert called == [signal.SIGTERM]
    assert requests.take() is not None


def test_ignored_signal_stays_ignored(requests: Requests) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    PoliteStop(requests).install()
    os.kill(os.getpid(), signal.SIGINT)

    assert requests.take() is None


def test_handlers_are_given_back(requests: Requests) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = PoliteStop(requests)
    stop.install()
    during = signal.getsignal(signal.SIGTERM)
    stop.remove()

    assert during != before
    assert signal.getsignal(signal.SIGTERM) == before
