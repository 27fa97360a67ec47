"""Has the daemon exit by itself once its programs have ended, if `exit_on` or a batch script wants that."""

from collections.abc import Callable, Mapping, Sequence

import structlog

from supervisor.core.fleet.exit_conditions import EXIT_FATAL, DaemonExit, ExitOn, ProgramOutcome, daemon_exit
from supervisor.core.program.facts import State
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


class ExitWatch:
    """`is_rank`: its jobs train with other nodes. `leave` asks the daemon to exit with a status; `is_leaving`: whether
    it was asked, for whatever reason.
    """

    def __init__(
        self,
        runners: Mapping[str, Runner],
        exit_on: Sequence[ExitOn],
        is_rank: bool,
        leave: Callable[[int], None],
        is_leaving: Callable[[], bool],
    ) -> None:
        self._runners = runners
        self.exit_on = exit_on
        self._is_rank = is_rank
        self._leave = leave
        self._is_leaving = is_leaving
        self._has_begun = False

    def begin(self) -> None:
        """All programs are started or adopted: from now on they can have ended."""
        self._has_begun = True
        self.on_change()

    def on_change(self) -> None:
        """A program's state is another one."""
        if not (self.exit_on and self._has_begun) or self._is_leaving():
            return
        if (how := daemon_exit(self.exit_on, self.outcomes())) is not None:
            status = 0 if how is DaemonExit.DONE else EXIT_FATAL
            log.warning("daemon.finished", how=how.value, exit_status=status)
            self._leave(status)

    def outcomes(self) -> list[ProgramOutcome]:
        """What decides whether the daemon has something left to do.

        A job is not done before its result is in the mirror: this host's disk may go with the daemon. A gang's is on a
        disk that all nodes share, or was in the mirror before its workers exited.
        """
        return [
            ProgramOutcome(
                State.STARTING if runner.waits_for is not None or self._is_uploading(runner) else runner.state,
                runner.records.process.started_wall_at is not None,
                runner.takeover.was_done,
            )
            for runner in self._runners.values()
            if runner.config.listener is None or runner.state is State.FAILED  # one that listens ends after all others
        ]

    def _is_uploading(self, runner: Runner) -> bool:
        mirror = runner.mirror
        return runner.state is State.SUCCEEDED and not self._is_rank and mirror is not None and mirror.waits
