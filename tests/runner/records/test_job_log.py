"""No job can push out of the daemon's log what others need."""

import time
from collections.abc import Callable
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from supervisor.runner.records.job_log import BYTES_AT_ONCE, LINES_AT_ONCE, JobLog


class Lines:
    """A log that keeps what is written."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))

    debug = warning = error = info


def quota(clock: Callable[[], float] = time.monotonic) -> tuple[JobLog, Lines]:
    lines = Lines()
    return JobLog(cast(FilteringBoundLogger, lines), clock), lines


def test_lines_beyond_the_quota_are_left_out_counted_and_told():
    log, lines = quota()
    for number in range(LINES_AT_ONCE + 500):
        log.info("checkpoint.committed", step=number)

    assert LINES_AT_ONCE <= len(lines.lines) < LINES_AT_ONCE + 100
    left_out = LINES_AT_ONCE + 500 - len(lines.lines)
    assert log.describe(0.0) == [f"{left_out} lines of it left out of the daemon's log"]
    assert log.describe(1e12) == []


def test_long_texts_use_the_quota_up_sooner():
    log, lines = quota()
    for _ in range(1000):
        log.error("checkpoint.not_saved", error="🙂" * 4000)

    assert sum(len(facts["error"]) * 6 for _, facts in lines.lines) <= BYTES_AT_ONCE
    assert log.left_out == 1000 - len(lines.lines)


def test_the_log_itself_says_how_many_lines_it_lacks():
    now = [time.monotonic()]
    log, lines = quota(lambda: now[0])
    for number in range(LINES_AT_ONCE + 7):
        log.info("checkpoint.committed", step=number)
    now[0] += 60.0
    log.info("checkpoint.committed", step=9)

    assert lines.lines[-2:] == [("worker.lines_left_out", {"lines": 7}), ("checkpoint.committed", {"step": 9})]
