"""Executes the effects that the core decided for one program; what follows from them comes back as events."""

import time
from typing import assert_never

from supervisor.core.program import effects, events
from supervisor.host.processes.process_status import Exit
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.attempt.starting import find_start_obstacle
from supervisor.runner.checkpoints.selector import CheckpointSelector
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.program.attempt_starter import AttemptStarter
from supervisor.runner.program.current_attempt import NOTED_AT_ONCE, CurrentAttempt
from supervisor.runner.program.silence import observe_silence
from supervisor.runner.program.stopping import AttemptStopper


class EffectExecutor:
    """Has each effect executed by whom it concerns. `selector`, `mirror`, `memory`: of a job, if it has one."""

    def __init__(
        self,
        program: ProgramServices,
        current: CurrentAttempt,
        starter: AttemptStarter,
        selector: CheckpointSelector | None,
        mirror: JobMirror | None,
        memory: MemoryHolder | None,
    ) -> None:
        self._config = program.config
        self._services = program.services
        self._post = program.post
        self._records = program.records
        self._current = current
        self._starter = starter
        self._selector = selector
        self._mirror = mirror
        self._memory = memory
        self._tasks = program.tasks
        self._log = program.log
        self._stopper = AttemptStopper(program, current, starter)
        self._is_looking = False  # whether its directory and command are there

    def execute(self, effect: effects.Effect) -> None:
        """Executes one effect, or begins to."""
        match effect:
            case effects.Spawn():
                self._starter.start(effect)
            case effects.SalvageMemory():
                if self._memory is not None:
                    self._memory.salvage(effect)
            case effects.ReleaseMemory(attempt):
                if self._memory is not None:
                    self._memory.live.release(attempt)
            case effects.SelectCheckpoint() | effects.LookAtStorage() | effects.QuarantineCheckpoints():
                if self._selector is not None:
                    self._tasks.start(self._selector.execute(effect))
            case effects.WithdrawOrder():
                if self._selector is not None:
                    self._selector.withdraw_order()
            case effects.LookAtStartPaths():
                self._tasks.start(self._look_at_start_paths(effect))
            case effects.SendGo():
                if self._mirror is not None:
                    self._mirror.on_selected(effect)
                self._current.send(_message_of(effect))
            case effects.RequestIdentity():
                me = self._services.daemon
                self._current.send(messages.Identify(effect.attempt, *((me.pid, me.start_time) if me else ())))
            case effects.RequestFlush(attempt, id, reason, then, deadline_s):
                if not self._current.note_descendants(NOTED_AT_ONCE):
                    self._tasks.start(self._current.note_descendants_before(lambda: None))
                self._log.info("flush.asked", attempt=attempt, reason=reason, then=str(then))
                self._current.send(messages.Flush(attempt, id, reason, then, deadline_s))
            case effects.Terminate(attempt):
                self._stopper.terminate(attempt)
            case effects.Abort():
                self._stopper.abort(effect)
            case effects.LookAtSilence():
                self._look_at_silence(effect)
            case effects.Kill(attempt):
                self._stopper.kill(attempt)
            case effects.RecordWanted(wanted):
                self._services.ledger.wanted.record_wanted(self._config.name, wanted)
            case effects.PersistHangHistory(longest):
                self._services.ledger.job_states.record_hang_history(self._config.name, dict(longest))
            case effects.RecordEnd():
                self._record_end(effect)
            case effects.ReportBreach():
                self._report_breach(effect)
            case _:
                assert_never(effect)

    def _look_at_silence(self, effect: effects.LookAtSilence) -> None:
        program, live = self._config.name, self._current.attempt
        if live is not None:
            self._tasks.start(observe_silence(effect, program, live, self._services, self._post, self._log))

    def _report_breach(self, effect: effects.ReportBreach) -> None:
        self._log.error(
            "invariant.broken",
            invariant=effect.invariant,
            on=effect.event,
            before=effect.before,
            after=effect.after,
            remedy="the program is supervised on; please report this record",
        )

    async def _look_at_start_paths(self, effect: effects.LookAtStartPaths) -> None:
        """Posts whether the program could be started now; nothing while an earlier look has no answer."""
        if self._is_looking:
            return
        self._is_looking = True
        try:
            error = await find_start_obstacle(self._config, self._services)
        finally:
            self._is_looking = False
        self._post(events.StartPathsSeen(effect.attempt, error))

    def _record_end(self, effect: effects.RecordEnd) -> None:
        process = self._records.process
        exit_ = process.last_exit or Exit(None, None)
        if process.ended_wall_at is None:  # nobody saw it
            process.ended_wall_at = time.time()
        self._services.ledger.attempts.attempt_ended(
            self._config.name,
            effect.attempt,
            effect.cause,
            effect.text,
            exit_.code,
            exit_.signal,
            self._records.training.step,
            process.ended_wall_at,
            process.run_time_s,
            effect.diagnosis,
        )
        self._current.left_folder.on_end_recorded()


def _message_of(effect: effects.SendGo) -> messages.Go:
    mount, device = effect.seen_on or (None, None)
    return messages.Go(
        effect.attempt,
        effect.restore,
        memory=None if effect.memory is None else effect.memory.socket,
        memory_attempt=None if effect.memory is None else effect.memory.of_attempt,
        mount=mount,
        device=device,
        no_copies=effect.no_copies,
        highest_step=effect.highest_step,
    )
