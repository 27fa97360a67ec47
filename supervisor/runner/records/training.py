"""What is known of a job's training, for people: gathered from its worker's messages, read by `status`."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from supervisor.protocol.wire import messages
from supervisor.runner.records.observers import ProgramObserver

TRACEBACK_LINES = 6  # the error, and where it was raised; the log has all of it
MAX_LEFT_OUT = 100  # names that are kept of all messages of an attempt; as many as one may have


@dataclass(frozen=True, slots=True)
class LatestCheckpoint:
    """The newest committed checkpoint; `committed_wall_at` is Unix time. `size_bytes`: as the worker says, until the
    daemon has looked at the disk."""

    name: str
    step: int
    size_bytes: int
    save_s: float
    committed_wall_at: float


@dataclass(slots=True)
class TrainingStatus(ProgramObserver):
    """Where training stands. None: not known. Outlives the attempts; `reset_for_attempt` forgets what belongs to one.

    `interval_s`: what the worker chose, if it does. `changed`, `left_out`: why its bits, or its state after a restart,
    would not be those of an undisturbed run. `traceback`: the last lines of the one that it failed with. `replicas`:
    over how many devices it trains; `gpus_missing`: that its library sees none, and why. `is_imported`: its libraries
    are loaded. `memory_step`: of the newest copy of its state in memory; `memory_interval_s`, `memory_cost_s`: how
    often it is copied, and what one copy costs training; `memory_bytes`: what the copies take; `memory_off`: why there
    are none.
    """

    step: int | None = None
    total_steps: int | None = None
    epoch: int | None = None
    step_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: LatestCheckpoint | None = None
    restored: str | None = None
    save_error: str | None = None
    traceback: tuple[str, ...] = ()
    interval_s: float | None = None
    memory_step: int | None = None
    memory_interval_s: float | None = None
    memory_cost_s: float | None = None
    memory_bytes: int = 0
    memory_off: str | None = None
    changed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    replicas: int | None = None
    gpus_missing: str | None = None
    is_imported: bool = False

    def reset_for_attempt(self) -> None:
        """A new attempt: where it stands is not known yet."""
        self.step = self.epoch = self.step_s = self.restored = self.save_error = None
        self.interval_s = self.replicas = self.gpus_missing = None
        self.memory_step = self.memory_interval_s = self.memory_cost_s = self.memory_off = None
        self.memory_bytes = 0
        self.is_imported = False
        self.metrics = {}
        self.changed = self.left_out = self.traceback = ()

    def checkpoint_measured(self, name: str, size_bytes: int) -> None:
        """The checkpoint has so many bytes on the disk."""
        if self.checkpoint is not None and self.checkpoint.name == name:
            self.checkpoint = replace(self.checkpoint, size_bytes=size_bytes)

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        match message:
            case messages.Hello():
                self.is_imported = True
            case messages.Restored():
                self.step, self.restored = message.step, message.checkpoint
                self.total_steps, self.changed, self.replicas = message.total_steps, message.changed, message.replicas
                self.gpus_missing = message.gpus_missing
                if self.checkpoint is not None and self.checkpoint.step > message.step:
                    self.checkpoint = None  # it begins from an older one, or anew: a newer one is given up
            case messages.Progress():
                self.step = max(message.step, self.step or 0)  # a commit may have overtaken it
                self.epoch, self.step_s = message.epoch, message.step_s
                self.total_steps = message.total_steps or self.total_steps
                self.metrics, self.interval_s = message.metrics, message.interval_s
                self.memory_step, self.memory_interval_s = message.memory_step, message.memory_interval_s
                self.memory_cost_s = message.memory_cost_s
            case messages.MemoryCopies():
                self.memory_off, self.memory_bytes = message.why_not, message.size_bytes
            case messages.Committed():
                self.step, self.save_error = None if self.step is None else max(message.step, self.step), None
                self.left_out = tuple(dict.fromkeys((*self.left_out, *message.left_out)))[:MAX_LEFT_OUT]
                self.checkpoint = LatestCheckpoint(
                    message.checkpoint,
                    message.step,
                    message.size_bytes,
                    message.save_s,
                    time.time() - (message.ago_s or 0.0),
                )
            case messages.SaveFailed():
                self.save_error = message.error
            case messages.Failed():
                if message.step is not None and self.step is not None:  # it trained, and reports of steps are rare
                    self.step = max(message.step, self.step)
                self.traceback = tuple(message.traceback.strip().splitlines()[-TRACEBACK_LINES:])
            case messages.Done():
                self.step, self.metrics = message.step, message.metrics or self.metrics
