"""What asyncio reports of its own, where nobody waits for an answer that could carry the error.

Where no descriptor is left, asyncio reports each of the connections that wait, up to its backlog of them, with a
traceback, and does so again each second.
"""

import asyncio
import time
from typing import Any

import structlog

from supervisor.protocol.wire.limits import TokenBucket

SAID_EVERY_S = 60.0
_OUT_OF_DESCRIPTORS = "socket.accept() out of system resource"  # as asyncio.selector_events says it

log = structlog.get_logger()


class LoopErrors:
    """Logs the errors of an event loop. Pass `on_error` to its set_exception_handler."""

    def __init__(self) -> None:
        self._lines = TokenBucket(1 / SAID_EVERY_S, 1)

    def on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """One line for all connections that can't be accepted, at most each SAID_EVERY_S; others as asyncio does."""
        if context.get("message") != _OUT_OF_DESCRIPTORS:
            loop.default_exception_handler(context)
            return
        if self._lines.take(time.monotonic()):
            reason, effect = str(context.get("exception")), "clients wait until there is room"
            remedy = "raise the limit of open files (ulimit -n, LimitNOFILE=), or see what holds them: ls /proc/PID/fd"
            log.error("client.not_accepted", reason=reason, effect=effect, remedy=remedy)
