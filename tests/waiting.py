"""Waits for a condition with a deadline: the one way in which tests wait."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Outcome = TypeVar("Outcome")

TIMEOUT_S = 60.0
"""For what takes well under a second; the machine may be busy."""
_INTERVAL_S = 0.01
_LONGEST_S = 0.1
_SHARE = 0.05
"""Of a wait, that it may take longer. Asking a daemon a hundred times a second costs a third of a processor."""


def wait_until(
    condition: Callable[[], Outcome],
    what: str = "the condition holds",
    timeout_s: float = TIMEOUT_S,
    details: Callable[[], object] = lambda: "",
    interval_s: float | None = None,
) -> Outcome:
    """Returns the first true value of `condition()`. Raises AssertionError after `timeout_s`, with `details()`.

    `what` completes the sentence "waited in vain until …". An exception in `condition` ends the wait. `interval_s`:
    between two looks, for a condition that starts a process; otherwise 10 ms, and up to 100 in a wait of two seconds.
    """
    began_at = time.monotonic()
    while not (outcome := condition()):
        waited_s = time.monotonic() - began_at
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:g} s in vain until {what}\n{details()}".rstrip())
        time.sleep(interval_s or min(max(_INTERVAL_S, waited_s * _SHARE), _LONGEST_S))
    return outcome


def stays(condition: Callable[[], object], what: str, for_s: float) -> None:
    """For what must not happen: raises AssertionError as soon as `condition()` is false within so many seconds."""
    ends_at = time.monotonic() + for_s
    while time.monotonic() < ends_at:
        assert condition(), f"no longer: {what}"
        time.sleep(_INTERVAL_S)


async def stays_async(condition: Callable[[], object], what: str, for_s: float) -> None:
    """Does what `stays` does, while the event loop goes on; the time is that of its clock."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + for_s
    while loop.time() < ends_at:
        assert condition(), f"no longer: {what}"
        await asyncio.sleep(_INTERVAL_S)


async def turn_loop(turns: int = 20) -> None:
    """Lets everything go on in this event loop that waits for nothing but its turn, sockets that can be read too."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def wait_until_async(
    condition: Callable[[], Outcome], what: str = "the condition holds", timeout_s: float = TIMEOUT_S
) -> Outcome:
    """Does what `wait_until` does, while the event loop goes on."""
    deadline_at = time.monotonic() + timeout_s
    while not (outcome := condition()):
        if time.monotonic() > deadline_at:
            raise AssertionError(f"waited {timeout_s:g} s in vain until {what}")
        await asyncio.sleep(_INTERVAL_S)
    return outcome
