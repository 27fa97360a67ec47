"""One program that can't be shown hides no other: what fails for it becomes that program's line.

What is shown of a job comes in part from the job. Its messages have limits, so nothing that it says should make this
fail; but `status` is what an operator has when something fails, and must not depend on that.
"""

import time

import structlog

from supervisor.protocol.wire.limits import TokenBucket

MAX_SHOWN = 200  # characters of an error
LOGGED_EVERY_S = 600.0  # for each program: an open page asks once a second

MAX_REMEMBERED = 1000  # programs, the latest: those that are removed would be remembered for good

log = structlog.get_logger()
_logged: dict[str, TokenBucket] = {}


def not_shown(program: str, error: Exception) -> str:
    """Says that something of a program can't be shown, here and, now and then, in the log."""
    bucket = _logged.setdefault(program, TokenBucket(1 / LOGGED_EVERY_S, 1))
    if len(_logged) > MAX_REMEMBERED:
        del _logged[next(iter(_logged))]
    if bucket.take(time.monotonic()):
        log.error("program.not_shown", program=program, error=repr(error)[:MAX_SHOWN], exc_info=error)
    return f"cannot be shown: {repr(error)[:MAX_SHOWN]}; the daemon's log has more"
