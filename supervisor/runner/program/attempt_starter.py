"""Begins a program's attempts: a new process, the standby, or one that an earlier daemon started."""

from supervisor.core.gpus.verdict import RECHECK_S
from supervisor.core.program import effects, events
from supervisor.host.processes.spawning import SpawnError
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.adopting import LeftoverWorker
from supervisor.runner.attempt.factory import AttemptFactory
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.attempt.standby import StandbyHolder
from supervisor.runner.attempt.starting import spawn_error_of, unreachable_path
from supervisor.runner.program.current_attempt import CurrentAttempt
from supervisor.runner.program.gpu_gate import GpuGate


class AttemptStarter:
    """Gives `current` its processes; a job's once its GPUs are free."""

    def __init__(self, program: ProgramServices, current: CurrentAttempt, standby: StandbyHolder | None) -> None:
        self._config = program.config
        self._services = program.services
        self._current = current
        self._records = program.records
        self._standby = standby
        self._post = program.post
        self._tasks = program.tasks
        self._log = program.log
        self._gpus = GpuGate(program.config, program.services, standby, program.log)
        self._attempts = AttemptFactory(program.config, program.services, current, program.records, program.log)
        self._delayed: effects.Spawn | None = None  # whose GPUs may not be free yet

    def start(self, effect: effects.Spawn) -> None:
        """Starts the process of an attempt, or promotes the standby; a job's once its GPUs are free."""
        if self._gpus.applies:
            self._delayed = effect
            self._current.expect_start()
            self._post(events.SpawnDelayed(effect.attempt, self._gpus.longest_wait_s))
            self._tasks.start(self._spawn_when_gpus_fit(effect))
        else:
            self._spawn(effect)

    async def _spawn_when_gpus_fit(self, effect: effects.Spawn) -> None:
        try:
            if (refusal := self._gpus.take_refusal(effect.attempt)) is not None:
                self._end_wait()
                self._post(events.SpawnFailed(effect.attempt, refusal, permanent=True))
                return
            verdict = await self._gpus.wait_until_fit(self._current.last_pid)
            if self._delayed is not effect:
                return  # the attempt was ended meanwhile
            unsent = self._end_wait()
            self._gpus.log_verdict(effect.attempt, verdict)
            if verdict.unusable_because is not None:
                why = verdict.unusable_because
                self._post(events.SpawnFailed(effect.attempt, why, permanent=False, retry_in_s=RECHECK_S))
                return
            self._spawn(effect, verdict.visible, verdict.without)
            for message in unsent:
                self._current.send(message)
        except Exception as error:
            if self._delayed is effect:
                self._end_wait()
            if self._current.attempt is not None:
                raise
            self._report_spawn_failure(effect, spawn_error_of(error, self._config, "capture its output", self._log))

    def _end_wait(self) -> list[messages.ToWorker]:
        """Nothing waits for its GPUs any more; gives what was said to that attempt meanwhile."""
        self._delayed = None
        return self._current.take_unsent()

    def _spawn(self, effect: effects.Spawn, visible_gpus: str | None = None, gpus_left_out: str | None = None) -> None:
        number, microbatches = effect.attempt, effect.microbatches
        unfit = None if visible_gpus is None else "the attempt gets fewer GPUs than it has"
        standby = self._standby.promote(number, microbatches, unfit) if self._standby is not None else None
        try:
            if standby is not None:
                attempt = self._attempts.promote(number, standby)
            else:
                attempt = self._attempts.spawn(number, microbatches, visible_gpus)
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody else would end a promoted standby
            if self._standby is not None and standby is not None:
                self._standby.discard(standby)
            what = "make its standby an attempt" if standby is not None else "capture its output"
            self._report_spawn_failure(effect, spawn_error_of(error, self._config, what, self._log))
            return
        self._current.begin(attempt, visible_gpus)
        process, record = attempt.process, self._records.process
        record.oom_counters = attempt.memory.cgroup_counters
        self._record_start(effect, record.started_wall_at, process.pid, process.start_time)
        self._log.info("worker.spawned", attempt=number, pid=process.pid, was_standby=standby is not None)
        self._post(events.SpawnSucceeded(number, gpus_left_out))

    def _report_spawn_failure(self, effect: effects.Spawn, error: SpawnError) -> None:
        number, record = effect.attempt, self._records.process
        record.not_started(error)
        self._record_start(effect, record.ended_wall_at)
        self._log.error("worker.not_spawned", attempt=number, error=str(error))
        self._post(events.SpawnFailed(number, str(error), error.permanent, missing=unreachable_path(error)))

    def _record_start(self, effect: effects.Spawn, at: float | None, pid: int = 0, start_time: int = 0) -> None:
        """In the ledger, also of one that never became a process."""
        attempts, name = self._services.ledger.attempts, self._config.name
        attempts.attempt_started(name, effect.attempt, pid, start_time, at or 0.0, effect.microbatches)

    def cancel(self, number: int) -> None:
        """Gives up a start that still waits for its GPUs."""
        if self._delayed is not None and self._delayed.attempt == number:
            self._end_wait()
            text = "ended before it was started; its GPUs were not free"
            self._post(events.SpawnFailed(number, text, permanent=False))

    def adopt(self, left: LeftoverWorker) -> bool:
        """Supervises a process that an earlier daemon started; False if it is gone, or its pipes are."""
        self._records.reset_for_attempt()
        attempt = self._attempts.adopt(left)
        if attempt is None:
            return False
        self._current.begin(attempt)
        self._log.info("worker.adopted", attempt=left.attempt, pid=left.pid, runs_for_s=round(left.age_s, 1))
        return True
