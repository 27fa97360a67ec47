"""What a job's worker leaves in memory when it dies (`live_copies`): written as a checkpoint, and offered to the next.

A next worker that waits for its checkpoint need not wait until that is written, if it can restore from memory: it is
offered the memory, beside the newest checkpoint on the disk. What is offered is held until the worker has restored
something; and if it could not be written, until that worker has a newer state of its own, in memory or on the disk.
"""

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.config import JobConfig
from supervisor.core.program import effects, events
from supervisor.host.memory_tier.handed_over import LeftMemory
from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.memory_tier.memory_socket import MemorySocket
from supervisor.host.memory_tier.salvage import NotSalvaged, Salvaged, SalvageRequest
from supervisor.protocol.checkpoints.account import ReportedCheckpoint
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.memory_tier.live_copies import LiveCopies


@dataclass(slots=True)
class _Salvage:
    """What is left of an attempt whose worker is gone. `offered`: where the next worker gets it, while it may;
    `is_done`: it is on the disk, or there is nothing to be written: what the worker saved itself is as new."""

    effect: effects.SalvageMemory
    held: HeldMemory
    is_done: bool = False
    is_given_away: bool = False
    offered: MemorySocket | None = None

    def close_offer(self) -> None:
        """No worker gets it any more; whoever has it, has it."""
        if self.offered is not None:
            self.offered.close()
            self.offered = None


class MemoryHolder:
    """The memory of the workers of one job.

    Observers learn of each checkpoint that comes out of it, as if the worker had said so. `on_settled`: called when
    what was left of a worker is written, or given up.
    """

    def __init__(self, program: ProgramServices, job: JobConfig, on_settled: Callable[[], None]) -> None:
        self.live = LiveCopies(program, job)
        """Of the workers that live, or have died and are not salvaged."""
        self._config = program.config
        self._job = job
        self._services = program.services
        self._observers = program.observers
        self._post = program.post
        self._start = program.tasks.start
        self._on_settled = on_settled
        self._log = program.log
        self._waiting: _Salvage | None = None
        self._salvaged: ReportedCheckpoint | None = None
        self._is_settled = asyncio.Event()
        self._is_settled.set()
        self._news = asyncio.Event()  # somebody who waits may have to wait no longer
        self._met: messages.Hello | None = None  # of the newest worker
        self._asked = 0  # the attempt for which a checkpoint is being selected

    def on_message(self, message: messages.FromWorker) -> None:
        """What a worker says decides what is held of it, and of those before it."""
        match message:
            case messages.Hello():
                self._met = message
                self._news.set()
            case messages.MemoryCopies():
                self.live.on_named(message)
                self._drop_outdated(message.attempt)
            case messages.Committed():
                self._drop_outdated(message.attempt)
            case messages.Restored() if self._waiting is not None:
                self._waiting.close_offer()
                if self._is_settled.is_set() and (self._waiting.is_done or not message.from_memory):
                    self._say_lost(f"attempt {message.attempt} goes on from step {message.step}")
                    self._drop_waiting()  # it is on the disk, or training goes on from an older state

    def _drop_outdated(self, attempt: int) -> None:
        """A worker has a newer state than one of an earlier attempt that could not be written, or says why it has none:
        memory may be short."""
        waiting = self._waiting
        if waiting is not None and self._is_settled.is_set() and waiting.effect.attempt < attempt:
            self._drop_waiting()

    def salvage(self, effect: effects.SalvageMemory) -> None:
        """Begins to write what the memory of a dead worker holds."""
        held = self.live.pop(effect.attempt)
        if held is not None:
            self._drop_waiting()
            self._waiting = _Salvage(effect, held)
            self._begin_to_write(self._waiting)

    def _begin_to_write(self, waiting: _Salvage) -> None:
        self._is_settled.clear()
        self._start(self._settle(waiting))

    @property
    def is_writing(self) -> bool:
        """Whether what a dead worker had in memory is being written."""
        return not self._is_settled.is_set()

    @property
    def unwritten(self) -> int | None:
        """The attempt of a dead worker whose memory is not on the disk yet; None if there is nothing."""
        waiting = self._waiting
        return None if waiting is None or waiting.is_done else waiting.effect.attempt

    async def settle(self) -> None:
        """Returns when what was begun is done; call it before a checkpoint is selected.

        Tries once more what failed because of the disk or the host.
        """
        await self._is_settled.wait()
        if self._waiting is not None and self._waiting.is_done:
            self._drop_waiting()
        elif self._waiting is not None:
            self._is_settled.clear()
            await self._settle(self._waiting)

    def try_again(self) -> None:
        """Begins to write once more what could not be written before; `is_writing` says when that is over."""
        if self._waiting is not None and not self._waiting.is_done and self._is_settled.is_set():
            self._begin_to_write(self._waiting)

    async def until_restorable(self, attempt: int) -> bool:
        """Waits until what is left is written (False), or the worker of `attempt` is there and can restore it (True).

        If it can't be written, waits for that worker. Tries once more what failed before.
        """
        waiting, self._asked = self._waiting, attempt
        self._news.set()  # whoever asked for an earlier attempt waits no longer
        self.try_again()
        while self._asked == attempt and waiting is not None and self._waiting is waiting and not waiting.is_done:
            if self._met is not None and self._met.attempt == attempt:
                return self._met.restores_memory
            self._news.clear()
            await self._news.wait()
        return False

    def offer(self) -> events.MemoryOffer | None:
        """What the next worker may restore from memory; None if all is on the disk, or there is nothing."""
        waiting = self._waiting
        if waiting is None or waiting.is_done:
            return None
        waiting.close_offer()
        try:
            waiting.offered = MemorySocket(waiting.held)
        except OSError as error:
            self._log.warning("memory.not_offered", attempt=waiting.effect.attempt, error=str(error))
            return None
        return events.MemoryOffer(waiting.offered.name, waiting.effect.attempt)

    def pop_salvaged(self) -> ReportedCheckpoint | None:
        """The checkpoint that came of it since the last call."""
        salvaged, self._salvaged = self._salvaged, None
        return salvaged

    async def _settle(self, waiting: _Salvage) -> None:
        try:
            await self._write(waiting)
        finally:
            if self._waiting is waiting or self._waiting is None:
                self._is_settled.set()
                self._news.set()
                self._on_settled()

    async def _write(self, waiting: _Salvage) -> None:
        effect = waiting.effect
        request = SalvageRequest(
            self._job.checkpoint_dir,
            self._config.name,
            effect.attempt,
            effect.mount,
            self._job.checkpoint_make_room,
            RetentionPolicy(self._job.checkpoint_keep, self._job.checkpoint_keep_every, self._job.checkpoint_keep_best),
            effect.restored,
        )
        try:
            result = await self._services.checkpoints.salvage(waiting.held, request, self._config.user)
        except (OSError, RuntimeError) as error:
            result = NotSalvaged(str(error), getattr(error, "errno", None) or errno.EAGAIN)
        if waiting.is_given_away:
            return  # whoever has it looks at the disk first, and tells of what is there
        may_pass = isinstance(result, NotSalvaged) and result.errno is not None
        waiting.is_done = not may_pass
        if self._waiting is waiting and not may_pass and waiting.offered is None:
            self._drop_waiting()
        if isinstance(result, Salvaged):
            self._report(effect, result)
        else:
            remedy = "it is tried once more before the next start, or as this daemon leaves" if may_pass else None
            self._log.warning("memory.not_salvaged", attempt=effect.attempt, why=result.text, remedy=remedy)

    def _report(self, effect: effects.SalvageMemory, salvaged: Salvaged) -> None:
        facts = {"attempt": effect.attempt, "step": salvaged.step, "checkpoint": salvaged.name}
        directory = str(self._job.checkpoint_dir)
        self._salvaged = ReportedCheckpoint(
            salvaged.step, salvaged.name, directory, effect.mount, effect.attempt, salvaged.wall_at
        )
        self._log.info("checkpoint.salvaged", **facts, took_s=round(salvaged.save_s, 3))
        committed = messages.Committed(
            effect.attempt, salvaged.step, salvaged.name, salvaged.size_bytes, salvaged.save_s, stall_s=0.0
        )
        self._observers.on_message(committed, time.monotonic())
        self._post(events.MemorySalvaged(effect.attempt, salvaged.step, salvaged.name, salvaged.wall_at))

    def _say_lost(self, effect: str) -> None:
        """If no disk took what is left, and nobody has restored it."""
        if self._waiting is not None and not self._waiting.is_done:
            why = "no disk took what its worker left in memory"
            self._log.error("memory.lost", attempt=self._waiting.effect.attempt, why=why, effect=effect)

    def _drop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.close_offer()
            self._waiting.held.close()
            self._waiting = None

    def hand_over(self) -> LeftMemory | None:
        """Gives away what is left and not on the disk yet; None if there is nothing. Whoever takes it lets go of it."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.is_done:
            self._waiting = waiting
            return None
        waiting.close_offer()
        waiting.is_given_away = True
        effect = waiting.effect
        job = self._config.name, self._config.user, str(self._job.checkpoint_dir)
        return LeftMemory(*job, effect.attempt, effect.mount, effect.restored, waiting.held)

    def is_for(self, left: LeftMemory) -> bool:
        """Whether it is of use to the job as it is configured now."""
        return (left.user, left.directory) == (self._config.user, str(self._job.checkpoint_dir))

    def take_over(self, left: LeftMemory) -> None:
        """Begins to write what another one has given away: of an earlier daemon, or of this one before an update."""
        self._log.info("memory.taken_over", attempt=left.attempt, size_bytes=left.held.size_bytes)
        self._drop_waiting()
        self._waiting = _Salvage(effects.SalvageMemory(left.attempt, left.mount, left.restored), left.held)
        self._begin_to_write(self._waiting)

    def detach(self) -> None:
        """Lets go of everything; the next daemon takes hold of what live workers name to it."""
        self._say_lost("the steps since the newest checkpoint are lost")
        self._drop_waiting()
        self.live.release_all()
