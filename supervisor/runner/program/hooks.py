"""What of a program's life its hooks are told: failed, relaunched, a checkpoint refused, done, a notice."""

import platform
import time
from collections.abc import Mapping

from supervisor.config import ProgramConfig
from supervisor.core.failures.restart import Cause
from supervisor.core.program import effects as order
from supervisor.core.program import events as fact
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.host.hooks import HookEvent, HookFact, HookRunner

Commands = Mapping[str, tuple[str, ...] | None]


class HookNotifier:
    """Looks on while one program runs, and tells its hooks. `defaults`: the commands of [supervisord], by event."""

    __slots__ = ("_config", "_defaults", "_ended", "_hooks")

    def __init__(self, config: ProgramConfig, defaults: Commands, hooks: HookRunner) -> None:
        self._config = config
        self._defaults = defaults
        self._hooks = hooks
        self._ended: order.RecordEnd | None = None

    def on_event(self, event: fact.Event, facts: ProgramFacts) -> None:
        """The core heard of something."""
        if isinstance(event, fact.NoticeReceived) and not event.again:
            notice = event.notice
            deadline_s = None if notice.deadline_at is None else round(notice.deadline_at - time.monotonic(), 3)
            told: dict[str, HookFact] = {"source": notice.source, "kind": str(notice.kind), "text": notice.text}
            self._run_hook("notice", facts, certainty=str(notice.certainty), deadline_s=deadline_s, **told)

    def on_effect(self, effect: order.Effect, facts: ProgramFacts) -> None:
        """The core gave an order."""
        match effect:
            case order.RecordEnd():
                self._ended = effect
                if effect.cause == Cause.DONE:
                    self._run_hook("done", facts)
            case order.Spawn() if self._ended is not None:
                if self._ended.cause not in (Cause.DONE, Cause.STOPPED):
                    self._run_hook("relaunched", facts, cause=str(self._ended.cause), text=self._ended.text)
                self._ended = None

    def on_state_change(self, before: State, facts: ProgramFacts) -> None:
        """The state changed."""
        if facts.state is State.FAILED and before is not State.FAILED:
            cause = str(self._ended.cause) if self._ended is not None else None
            self._run_hook("failed", facts, cause=cause)
        if facts.state in (State.STOPPED, State.FAILED, State.SUCCEEDED, State.EXITED):
            self._ended = None  # what is started next is no relaunch

    def on_checkpoint_refused(self, checkpoint: str, reason: str, facts: ProgramFacts) -> None:
        """A checkpoint was found damaged."""
        self._run_hook("refused", facts, checkpoint=checkpoint, text=reason)

    def _run_hook(self, event: str, facts: ProgramFacts, **more: HookFact) -> None:
        command = self._config.hooks().get(event) or self._defaults.get(event)
        if command is None:
            return
        told: dict[str, HookFact] = {
            "event": event,
            "program": self._config.name,
            "host": platform.node(),
            "wall_at": time.time(),
            "attempt": facts.attempt,
            "state": str(facts.state),
            "step": facts.current.step,
            "reason": facts.reason,
        }
        self._hooks.run_hook(HookEvent(command, event, self._config.name, {**told, **more}))
