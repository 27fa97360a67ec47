"""The process of a program's present or last attempt, for people: when it started, whether it runs, how it ended."""

import time
from dataclasses import dataclass

from supervisor.core.diagnosis.evidence import Diagnosis
from supervisor.host.processes.process_status import Exit
from supervisor.host.processes.spawning import SpawnError
from supervisor.host.resources.oom_kills import OomKillCounter

CLOCK_SET_S = 1.0  # by less the clocks run apart, and people who look see the same number again


@dataclass(slots=True)
class ProcessRecord:
    """What this daemon knows of the process. Times are monotonic, so that setting the clock changes no run time, unless
    the name says `wall`. None: not known, or it has not happened.

    `pid`: until its exit is posted. `status_text`: what it said last of what it is doing (STATUS= of a notification).
    `health_unknown`: why its health check can't be run. `diagnosis`: why it died, until the next attempt begins.
    `oom_counters`: of kills for lack of memory, as of when it was last seen to move to another cgroup.
    """

    pid: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    ended_wall_at: float | None = None
    last_exit: Exit | None = None
    spawn_error: SpawnError | None = None
    status_text: str | None = None
    health_unknown: str | None = None
    diagnosis: Diagnosis | None = None
    oom_counters: tuple[OomKillCounter, ...] = ()
    _started_wall_at: float | None = None
    _started_since_boot_s: float = 0.0

    @property
    def started_wall_at(self) -> float | None:
        """When it started, by the wall clock as it is set now, or was when it ended: another clock measures how long
        ago that was, suspended time included. So what is later by one is later by the other.
        """
        if self._started_wall_at is not None and self.ended_at is None:
            wall_at = time.time() - (_since_boot_s() - self._started_since_boot_s)
            if abs(wall_at - self._started_wall_at) > CLOCK_SET_S:
                self._started_wall_at = wall_at
        return self._started_wall_at

    @property
    def run_time_s(self) -> float | None:
        """For how many seconds it has run, or ran; None if this daemon never had one."""
        if self.started_at is None:
            return None
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    def reset_for_attempt(self) -> None:
        """Another attempt begins."""
        self.spawn_error = self.last_exit = self.status_text = self.health_unknown = self.diagnosis = None

    def started(self, pid: int, started_at: float) -> None:
        """The process runs since then; that of an earlier daemon does for longer than this daemon."""
        now = time.monotonic()
        self.pid = pid
        self.started_at, self.ended_at = started_at, None
        self._started_wall_at, self.ended_wall_at = time.time() - (now - started_at), None
        self._started_since_boot_s = _since_boot_s() - (now - started_at)

    def not_started(self, error: SpawnError) -> None:
        """No process could be started."""
        self.spawn_error, self.ended_wall_at = error, time.time()
        self.started_at = self.ended_at = time.monotonic()

    def ended(self, exit_: Exit) -> None:
        """The process is gone."""
        self._started_wall_at = self.started_wall_at  # for good
        self.last_exit, self.ended_wall_at, self.ended_at = exit_, time.time(), time.monotonic()


def _since_boot_s() -> float:
    """Seconds since the boot of the host, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
