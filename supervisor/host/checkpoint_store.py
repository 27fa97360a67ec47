"""Answers questions about checkpoint directories without blocking the event loop.

Every look at the disk happens in a thread (`BlockingCalls`), for a job of another user in a process of that user's that
the thread waits for. A dead file system may hold a thread forever; that delays only later questions about the same
directory, never the loop, another job, or the end of the daemon.
"""

import errno
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeVar

from supervisor.host import checkpoint_calls, checkpoint_process
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.checkpoint_calls import (
    Attempts,
    CheckpointAnswer,
    CheckpointRequest,
    Listing,
    Moved,
    OnDisk,
    Order,
    Question,
    SetAside,
)
from supervisor.host.children import Identity
from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.memory_tier.salvage import NotSalvaged, Salvaged, SalvageRequest, salvage
from supervisor.host.processes.credentials import cached_credentials
from supervisor.host.processes.spawning import SpawnError
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.directory import DirectoryView
from supervisor.protocol.checkpoints.listing import ListedCheckpoint
from supervisor.protocol.checkpoints.selection import ANY, Selection, SelectionRules
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint

Result = TypeVar("Result")
Answer = TypeVar("Answer", Selection, SetAside, Listing, Attempts, DirectoryView, Moved, OnDisk)


class CheckpointStore:
    """The questions the daemon asks, answered one at a time for each directory, lists beside the others.

    `user`: of the job, as the configuration names it; None: the daemon's own. `expected`: the name of the checkpoint
    that should be the newest, if that is known.
    """

    def __init__(self) -> None:
        self._calls = BlockingCalls()

    async def select(self, directory: Path, rules: SelectionRules = ANY, user: str | None = None) -> Selection:
        """Returns the newest whole checkpoint and quarantines damaged ones; raises what `select_checkpoint` raises."""
        return await self._ask(
            CheckpointRequest(Question.SELECT, directory, rules, expected=rules.expected), Selection, user
        )

    async def look(
        self, directory: Path, writes: bool = False, user: str | None = None, expected: str | None = None
    ) -> DirectoryView:
        """Looks at the directory without reading its checkpoints. Raises OSError if it can't be used."""
        request = CheckpointRequest(Question.LOOK, directory, writes=writes, expected=expected)
        return await self._ask(request, DirectoryView, user)

    async def begin_at(
        self,
        directory: Path,
        step: int,
        since: int | None = None,
        user: str | None = None,
        expected: str | None = None,
        order: Order | None = None,
        mirror: str | None = None,
        first: int = 0,
    ) -> tuple[str, ...]:
        """Moves what is newer than a step aside, for 0 all that the job has there; returns the names.

        Moves nothing if attempt `since`, the first that was to begin there, or a later one has saved: it is done.
        Nor once `order` is withdrawn, which is an OSError. Raises OSError, and NoValidCheckpoint if there is no whole
        checkpoint of that step. `mirror`: the URL of the job's run in a store, if it has one; `first`: what that has is
        of attempts before it.
        """
        request = CheckpointRequest(
            Question.BEGIN_AT, directory, step=step, since=since, expected=expected, mirror=mirror, first=first
        )
        return (await self._ask(request, Moved, user, order)).names

    async def roll_back(
        self,
        directory: Path,
        before: int,
        user: str | None = None,
        expected: str | None = None,
        diverged: int | None = None,
    ) -> tuple[RejectedCheckpoint, ...]:
        """Quarantines the checkpoints of step `before` and later, if an older one is whole, but for those of later
        attempts than `diverged`, in which training did (None: not known)."""
        request = CheckpointRequest(Question.ROLL_BACK, directory, before=before, diverged=diverged, expected=expected)
        return (await self._ask(request, SetAside, user)).checkpoints

    async def quarantine(
        self,
        directory: Path,
        reasons: Collection[tuple[str, str]],
        because: OlderBecause,
        user: str | None = None,
    ) -> tuple[RejectedCheckpoint, ...]:
        """Quarantines those of the named checkpoints that exist, each with its reason. Raises OSError."""
        request = CheckpointRequest(Question.QUARANTINE, directory, reasons=dict(reasons), because=because)
        return (await self._ask(request, SetAside, user)).checkpoints

    async def list_checkpoints(self, directory: Path, verify: bool, user: str | None = None) -> list[ListedCheckpoint]:
        """All checkpoints, newest first, then those in quarantine. `verify` reads every byte of them.

        Raises OSError if the directory can't be read.
        """
        request = CheckpointRequest(Question.LIST, directory, verify=verify)
        # in threads of their own: reading every byte may take minutes, and no start waits for it, nor a short list
        place = directory / ("verified" if verify else "listed")
        return list((await self._ask(request, Listing, user, place=place)).checkpoints)

    async def attempts_in(self, directory: Path, user: str | None = None) -> Attempts:
        """The highest attempt in the names of all checkpoints, also unfinished and bad ones; 0 if there are none.

        Raises OSError if the directory can't be read.
        """
        return await self._ask(CheckpointRequest(Question.HIGHEST_ATTEMPT, directory), Attempts, user)

    async def size_of(self, directory: Path, name: str, user: str | None = None) -> int:
        """How many bytes a checkpoint has on the disk, whatever anybody says. Raises OSError."""
        request = CheckpointRequest(Question.MEASURE, directory, name=name)
        return (await self._ask(request, OnDisk, user)).size_bytes

    async def salvage(
        self, held: HeldMemory, request: SalvageRequest, user: str | None = None
    ) -> Salvaged | NotSalvaged:
        """Has the newest state in memory written as a checkpoint, in a process of the job's user. Raises OSError."""
        mine = held.duplicate()  # the caller may let go of it meanwhile

        def work() -> Salvaged | NotSalvaged:
            try:
                return salvage(mine, request, other_identity(user))
            finally:
                mine.close()

        # in a thread of its own: a worker that can restores it from memory meanwhile, and an older one is selected
        return await self._run(request.directory / layout.FROM_MEMORY, work)

    async def device_number(self, directory: Path) -> int:
        """The number of the device that the directory is on. Raises OSError."""
        return await self._run(directory, lambda: directory.stat().st_dev)

    async def _ask(
        self,
        request: CheckpointRequest,
        kind: type[Answer],
        user: str | None,
        order: Order | None = None,
        place: Path | None = None,
    ) -> Answer:
        identity = other_identity(user)
        work: partial[CheckpointAnswer]
        if identity is None:
            work = partial(checkpoint_calls.answer, request, order)
        else:
            work = partial(checkpoint_process.answer_as, identity, request, order)
        answer = await self._run(place or request.directory, work)
        assert isinstance(answer, kind)
        return answer

    async def _run(self, directory: Path, work: Callable[[], Result]) -> Result:
        return await self._calls.run_for_folder(directory, work)


def other_identity(user: str | None) -> Identity | None:
    """Whom a process has to become to do the user's work; None if the daemon does it. Raises OSError."""
    if user is None or os.geteuid() != 0:
        return None
    try:
        credentials = cached_credentials(user)
    except SpawnError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return None if credentials.uid == 0 else credentials.identity
