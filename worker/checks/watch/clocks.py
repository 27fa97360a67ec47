"""Tells numbers that a clock has shown from others: they change all the time, and decide no training."""

import datetime
import time

SLACK_S = 0.5  # a clock may be read a little before whatever is measured from
WALL_S = 7 * 86400.0  # how long a process may have run that asks

PROCESS_BEGAN_AT = time.monotonic()  # this module is imported early


def a_clock_showed(value: object, since: float) -> bool:
    """Whether a value is a time that a clock has shown: seconds, nanoseconds or a date.

    `since`: of `time.monotonic`, from when on. Its clock begins with the host, so soon after that it shows what a loss
    may be, too: the less time, the better.
    """
    if isinstance(value, datetime.datetime):
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, int):
        value = value / 1e9
    wall, now = time.time(), time.monotonic()
    return wall - WALL_S < value <= wall or (since - SLACK_S < value <= now and value % 1 != 0)
