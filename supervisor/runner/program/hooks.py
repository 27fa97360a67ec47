"""Runs the hooks of one program: failed, relaunched, a checkpoint refused, steps not saved, a difference, slower, done,
a notice."""

import platform
import time
from collections.abc import Mapping

from supervisor.config import ProgramConfig
from supervisor.core.diagnosis.evidence import flat
from supervisor.core.failures.restart import Cause
from supervisor.core.job import Job
from supervisor.core.program import effects, events
from supervisor.core.program.facts import OVER, ProgramFacts, State
from supervisor.host.hooks import HookEvent, HookFact, HookRunner
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire import messages
from supervisor.runner.records.observers import ProgramObserver

NAMED = 10  # tensors in a message; the log has more
Commands = Mapping[str, tuple[str, ...] | None]


class HookNotifier(ProgramObserver):
    """Runs the commands of one program's section, or those of [supervisord] (`defaults`, by event)."""

    __slots__ = ("_config", "_defaults", "_ended", "_hooks", "_job")

    def __init__(self, config: ProgramConfig, job: Job, defaults: Commands, hooks: HookRunner) -> None:
        self._job = job
        self._config = config
        self._defaults = defaults
        self._hooks = hooks
        self._ended: effects.RecordEnd | None = None  # of the last attempt, until another one starts

    def on_decision(
        self, event: events.Event | str | None, before: State, decided: list[effects.Effect], facts: ProgramFacts
    ) -> None:
        if isinstance(event, events.NoticeReceived) and not event.recalled:
            notice = event.notice
            deadline_s = None if notice.deadline_at is None else round(notice.deadline_at - time.monotonic(), 3)
            details: dict[str, HookFact] = {"source": notice.source, "kind": str(notice.kind), "text": notice.text}
            self._run_hook("notice", certainty=str(notice.certainty), deadline_s=deadline_s, **details)

        if isinstance(event, events.SpeedChanged) and event.attempt == facts.attempt and event.slowdown is not None:
            slow = event.slowdown
            self._run_hook("slower", text=str(slow), step_s=slow.step_s, usual_step_s=slow.usual_step_s)

    def on_effect(self, effect: effects.Effect, now: float) -> None:
        match effect:
            case effects.RecordEnd():
                self._ended = effect
                if effect.cause is Cause.DONE:
                    self._run_hook("done")
                if effect.unsaved is not None:
                    lost = effect.unsaved
                    steps: dict[str, HookFact] = {"safe_step": lost.safe_step, "unsaved_steps": lost.unsaved}
                    self._run_hook("unsaved", **steps, checkpoint=lost.checkpoint, text=lost.describe_end())
            case effects.Spawn() if self._ended is not None:
                if not self._ended.cause.traits.is_meant:
                    cause, text = str(self._ended.cause), self._ended.text
                    self._run_hook("relaunched", cause=cause, text=text, **self._diagnosis())
                self._ended = None

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        if facts.state is before:
            return
        if facts.state is State.FAILED:
            cause = str(self._ended.cause) if self._ended is not None else None
            self._run_hook("failed", cause=cause, **self._diagnosis())
        if facts.state in OVER:
            self._ended = None  # the next start is no relaunch

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        if isinstance(message, messages.Replayed) and message.differing:
            self._run_hook("replay_difference", text=describe_difference(message), steps=message.steps)

    def on_checkpoint_refused(self, checkpoint: str, reason: str) -> None:
        self._run_hook("refused", checkpoint=checkpoint, text=reason)

    def _diagnosis(self) -> dict[str, HookFact]:
        """Why the last attempt died, if it did."""
        diagnosis = self._ended.diagnosis if self._ended is not None else None
        return {} if diagnosis is None else flat(diagnosis)

    def _run_hook(self, event: str, **more: HookFact) -> None:
        facts = self._job.facts
        command = self._config.hooks().get(event) or self._defaults.get(event)
        if command is None:
            return
        payload: dict[str, HookFact] = {
            "event": event,
            "program": self._config.name,
            "host": platform.node(),
            "wall_at": time.time(),
            "attempt": facts.attempt,
            "state": str(facts.state),
            "step": facts.current.step,
            "reason": facts.reason,
        }
        self._hooks.run_hook(HookEvent(command, event, self._config.name, {**payload, **more}))


def describe_difference(message: messages.Replayed) -> str:
    """What steps that were trained a second time gave, in a sentence."""
    names = message.differing
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    steps = f"{counted(message.steps, 'step')} before step {message.step + 1}"
    return f"{steps} gave other bits when they were trained a second time: {', '.join(names[:NAMED])}{more}"
