"""Ends a program's current attempt, each way harder than the one before: stop command or signal, SIGABRT, SIGKILL."""

import signal
from functools import partial

from supervisor.core.program import effects, events
from supervisor.host.health_checks import HealthChecks, NotRun
from supervisor.protocol import layout
from supervisor.runner.attempt.attempt import LiveAttempt
from supervisor.runner.attempt.launching import command_beside
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.program.attempt_starter import AttemptStarter
from supervisor.runner.program.current_attempt import NOTED_AT_ONCE, CurrentAttempt


class AttemptStopper:
    """Carries out what the core decided about the end of an attempt, also of one that waits to be started."""

    def __init__(self, program: ProgramServices, current: CurrentAttempt, starter: AttemptStarter) -> None:
        self._config = program.config
        self._services = program.services
        self._current = current
        self._starter = starter
        self._records = program.records
        self._post = program.post
        self._tasks = program.tasks
        self._log = program.log

    def terminate(self, number: int) -> None:
        """Runs the program's stop command, if it has one, and sends the stop signal."""
        self._starter.cancel(number)
        if self._config.stop_command is None or self._current.attempt is None:  # no process: there is nothing to stop
            self._send_stop_signal(number)
        else:
            self._tasks.start(self._run_stop_command(number, self._config.stop_command))

    async def _run_stop_command(self, number: int, command: tuple[str, ...]) -> None:
        """Runs it; if the worker is still alive then, the stop signal follows."""
        self._log.info("worker.told_to_stop", attempt=number, command=command[0])
        check = command_beside(self._config, "stop_command", command, self._records.process.pid, self._services)
        try:
            why = await self._services.stops.run(check.user, HealthChecks().failure_of, check)
        except NotRun as error:
            why = str(error)
        if why is not None:
            self._log.warning("stop_command.failed", attempt=number, why=why)
        self._send_stop_signal(number)

    def _send_stop_signal(self, number: int) -> None:
        send = partial(self._send_signal, number)
        if self._current.note_descendants(NOTED_AT_ONCE):
            send()
        else:
            self._tasks.start(self._current.note_descendants_before(send))

    def _send_signal(self, number: int) -> None:
        attempt = self._current.attempt
        if attempt is not None and attempt.number == number:
            self._log.info("worker.told_to_stop", attempt=number, signal=self._config.stopsignal.name)
            attempt.is_told_to_end = True
            attempt.process.send_signal(self._config.stopsignal, group=self._config.stopasgroup)

    def abort(self, effect: effects.Abort) -> None:
        """Keeps the stacks of a stuck worker, then sends SIGABRT."""
        self._starter.cancel(effect.attempt)
        self._log.error("worker.aborted", attempt=effect.attempt, last_step=self._records.training.step)
        if self._current.attempt is not None:
            self._tasks.start(self._save_stacks_then_abort(self._current.attempt, effect.timeout_s))

    async def _save_stacks_then_abort(self, attempt: LiveAttempt, limit_s: float) -> None:
        services, name, number = self._services, self._config.name, attempt.number
        pipes, dumps = layout.attempt_folder(services.runtime_dir, name, number), services.state_dir / "stacks" / name
        why = f"{name}, attempt {number}, pid {attempt.process.pid}, last step {self._records.training.step}"
        try:
            path = await attempt.save_stacks(pipes, dumps, limit_s, why)
            self._log.info("stacks.kept", attempt=number, path=str(path))
            self._post(events.StacksCollected(number, str(path)))  # before the signal, or not at all
        except (OSError, TimeoutError) as error:
            self._log.warning("stacks.not_kept", attempt=number, error=str(error) or "it took too long")
        attempt.process.send_signal(signal.SIGABRT, group=False)
        attempt.process.send_signal(signal.SIGCONT, group=False)  # a stopped process doesn't even die

    def kill(self, number: int) -> None:
        """Sends SIGKILL to the worker, and to all that is to end with it."""
        self._starter.cancel(number)
        self._log.warning("worker.killed", attempt=number)
        if self._current.attempt is not None:
            self._current.attempt.kill(with_descendants=self._config.ends_all_processes)
