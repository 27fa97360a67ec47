"""How fast a job trains, compared with its own past: sums up what its worker reports (`fleet/watches/speed` judges)."""

from supervisor.core.failures.slowness import WINDOW_S, SlownessDetector, Window
from supervisor.core.program.effects import Effect, Spawn
from supervisor.protocol.wire import messages
from supervisor.runner.records.observers import ProgramObserver

_NOT_STEPS = ("evaluation", "save", "replay", "tracing")
"""Sections behind which the time since the last report is more than that of steps."""


class SpeedRecorder(ProgramObserver):
    """The speed of one job. Times are monotonic seconds."""

    __slots__ = (
        "_conditions",
        "_data_s",
        "_detector",
        "_has_changed",
        "_length_s",
        "_microbatches",
        "_saving_s",
        "_section",
        "_step",
        "_steps",
    )

    def __init__(self) -> None:
        self._detector = SlownessDetector()
        self._step: int | None = None  # of the last report
        self._section: str | None = None
        self._steps = 0
        self._length_s = self._data_s = self._saving_s = 0.0
        self._has_changed = False
        self._microbatches = 1
        self._conditions: tuple[int, int | None] | None = None  # on which step times depend: parts of a batch, devices

    @property
    def detector(self) -> SlownessDetector:
        """Which has all windows."""
        return self._detector

    @property
    def usual_step_s(self) -> float | None:
        """What a step usually takes; None until enough is known."""
        return self._detector.usual_step_s

    def pop_change(self) -> bool:
        """Whether the job became slower, or as fast as usual again, since the last call."""
        changed, self._has_changed = self._has_changed, False
        return changed

    def on_effect(self, effect: Effect, now: float) -> None:
        if isinstance(effect, Spawn):
            self._microbatches = effect.microbatches

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        match message:
            case messages.Restored():
                before, self._conditions = self._conditions, (self._microbatches, message.replicas)
                self._detector.begin_attempt(is_alike=before in (None, self._conditions))
                self._step, self._has_changed = message.step, False
                self._clear_window()
            case messages.Progress():
                self._add(message, now)

    def _clear_window(self) -> None:
        self._steps, self._length_s, self._data_s, self._saving_s = 0, 0.0, 0.0, 0.0

    def _add(self, message: messages.Progress, now: float) -> None:
        steps = message.step - (message.step if self._step is None else self._step)
        section, self._section, self._step = self._section, message.section, message.step
        self._data_s += message.data_s or 0.0
        if steps <= 0 or message.step_s is None or section in _NOT_STEPS:
            return
        length_s = steps * message.step_s
        self._steps += steps
        self._length_s += length_s
        self._saving_s += 0.0 if message.saving_s is None else length_s
        if self._length_s >= WINDOW_S:
            window = Window(now, self._steps, self._length_s, min(self._data_s, self._length_s), self._saving_s)
            self._has_changed = self._detector.add(window) or self._has_changed
            self._clear_window()
