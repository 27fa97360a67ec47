"""Looks now and then whether another host has taken the run over, and whether the store answers at all.

While the job runs, the epochs are listed every WATCH_S seconds, in a thread of the mirror process that waits for no
upload. So a host that was replaced learns of it although it uploads nothing, and a store that does not answer is known
as such long before a request of an upload gives up.
"""

import asyncio
import time
from collections.abc import Callable

from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError, RunFenced
from supervisor.runner.mirror.hold import RunHold

WATCH_S = 8.0  # between two looks at the epochs: with SILENT_S, what happens there is known within 15 s
SILENT_S = 5.0  # a list takes a fraction of a second; a store that needs longer is worth a word


class EpochWatch:
    """`on_fenced` is called if another host has taken over the run that this one's job trains."""

    def __init__(
        self,
        client: MirrorClient,
        hold: RunHold,
        on_fenced: Callable[[RunFenced], None],
        background: BackgroundTasks,
    ) -> None:
        self.error: str | None = None
        """Why the last look failed."""
        self._client = client
        self._hold = hold
        self._on_fenced = on_fenced
        self._background = background
        self._is_running = False
        self._is_finished = False
        self._task: asyncio.Task[None] | None = None
        self._looking_since: float | None = None  # while a look has no answer yet

    @property
    def silent_s(self) -> float:
        """For how long the store has not answered; 0 if it answers."""
        silent_s = 0.0 if self._looking_since is None else time.monotonic() - self._looking_since
        return silent_s if silent_s >= SILENT_S else 0.0

    def update(self, is_running: bool) -> None:
        """Whether the job runs; looks for as long as it does, or something waits for the store."""
        self._is_running = is_running
        if self._has_reason and (self._task is None or self._task.done()):
            self._task = self._background.start(self._watch())

    @property
    def _has_reason(self) -> bool:
        return (self._is_running or self._hold.waits) and not self._is_finished

    def stop(self) -> None:
        """Looks no more."""
        self._is_finished = True
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        hold = self._hold
        while self._has_reason:
            await asyncio.sleep(WATCH_S)
            starts, self._looking_since = hold.starts, time.monotonic()
            question = messages.WatchRequest(self._client.next_id(), hold.epoch or hold.known)
            try:
                await self._client.ask(question, messages.WatchAnswer)
                self.error = None
            except RunFenced as fenced:
                self.error = None
                if self._is_running and starts == hold.starts and not hold.is_selecting:
                    self._on_fenced(fenced)
            except MirrorError as error:
                self.error = str(error)
            finally:
                self._looking_since = None
        self.error = None
