"""What holds for all tests."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _interruptible_children() -> None:
    """Children inherit an ignored SIGINT, which is what a shell gives to what it starts in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
