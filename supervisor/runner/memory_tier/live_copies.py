"""The memory into which the live workers of a job copy their state: named by them, held here, so that it outlives them.

A worker names it to each daemon that supervises it. One that dies before it could is looked into (`find`), and a daemon
that is replaced by the next gives away what it holds.
"""

import asyncio
from collections.abc import Collection

from supervisor.config import JobConfig
from supervisor.core.program import events
from supervisor.host.memory_tier.handed_over import LeftMemory
from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.processes.spawning import SpawnError
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.launching import owner_ids
from supervisor.runner.attempt.services import ProgramServices


class LiveCopies:
    """By attempt. Those of a dead one are there until they are popped or released."""

    def __init__(self, program: ProgramServices, job: JobConfig) -> None:
        self._config = program.config
        self._job = job
        self._records = program.records
        self._post = program.post
        self._log = program.log
        self._held: dict[int, HeldMemory] = {}

    def on_named(self, message: messages.MemoryCopies) -> None:
        """Takes hold of the memory that a worker names, or lets go of it."""
        attempt = message.attempt
        if message.descriptor is None:
            self.release(attempt)
            self._log.info("memory.off", attempt=attempt, why=message.why_not)
        else:
            try:
                held = HeldMemory(message.pid, message.descriptor, self._owner())
            except (OSError, SpawnError) as error:
                self._log.warning("memory.not_held", attempt=attempt, error=str(error))
                self._records.training.memory_off = f"the daemon can't open them: {error}"
                # what it named before stays: it may have died with this word unread, and the file gone with it
            else:
                self._hold(attempt, held)
        self._post(events.CopiesHeld(attempt, self.has(attempt)))

    async def find(self, attempt: int, pids: Collection[int]) -> str | None:
        """Takes hold of what the worker of an earlier daemon has there, before it names that: it may never do so.

        `pids`: its processes. Returns why it can't; None also if there is nothing.
        """
        if self.has(attempt):
            return None
        try:
            held = await asyncio.to_thread(HeldMemory.find, pids, self._owner())
        except (OSError, SpawnError) as error:
            self._log.warning("memory.not_held", attempt=attempt, error=str(error))
            return getattr(error, "strerror", None) or str(error)
        if held is not None:
            self._hold(attempt, held)
        return None

    def _owner(self) -> int | None:
        """The uid of the job's user; None: the daemon's own. Raises SpawnError."""
        owner = owner_ids(self._config)
        return None if owner is None else owner[0]

    def _hold(self, attempt: int, held: HeldMemory) -> None:
        self.release(attempt)
        self._held[attempt] = held
        self._log.info("memory.held", attempt=attempt, size_bytes=held.size_bytes)

    def keep(self, memory: LeftMemory) -> None:
        """Holds what a worker had there when the daemon before left: it names it again, unless it is dead."""
        self.release(memory.attempt)
        self._held[memory.attempt] = memory.held

    def has(self, attempt: int) -> bool:
        """Whether it has hold of the memory of an attempt."""
        return attempt in self._held

    def pop(self, attempt: int) -> HeldMemory | None:
        """Gives away what an attempt has there; None if that is nothing."""
        return self._held.pop(attempt, None)

    def release(self, attempt: int) -> None:
        """Lets go of the memory of an attempt."""
        if (held := self.pop(attempt)) is not None:
            held.close()

    def release_all(self) -> None:
        """Lets go of everything; the next daemon takes hold of what live workers name to it."""
        for attempt in list(self._held):
            self.release(attempt)

    def hand_over(self) -> list[LeftMemory]:
        """Gives everything away: the next daemon takes hold of it before it adopts the workers."""
        held, self._held = self._held, {}
        job = self._config.name, self._config.user, str(self._job.checkpoint_dir)
        return [LeftMemory(*job, attempt, None, None, memory) for attempt, memory in held.items()]
