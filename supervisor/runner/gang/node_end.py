"""How a daemon ends that is one of a gang: what it tells the other daemons, and the batch script."""

import asyncio
from pathlib import Path

import structlog

from supervisor.core.gang.roster import CHIEF
from supervisor.host.gang.link import GangLink
from supervisor.protocol import allocation
from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.protocol.gang import Leave
from supervisor.runner.gang.program import GangProgram

log = structlog.get_logger()


class NodeEnd:
    """`allocation`: this node's place. `verdict`: the file in which the chief tells the batch script how all ended."""

    def __init__(self, allocation: Allocation, link: GangLink, program: GangProgram, verdict: Path | None) -> None:
        self.status: StepExit | None = None
        """What the batch script is told; None: the daemon's own end decides."""
        self._allocation = allocation
        self._link = link
        self._program = program
        self._verdict = verdict
        self._left: dict[int, int] = {}
        """Of the ranks that have left in this turn, with which status."""
        self._has_told_failure = False

    def begin_turn(self) -> None:
        """Who left in the turn before does not count any more."""
        self._left.clear()

    def note_left(self, rank: int, status: int) -> None:
        """A rank has left in this turn; its worst status counts."""
        self._left[rank] = max(status, self._left.get(rank, 0))

    def tell_failure(self) -> None:
        """Tells the others that the program was given up: at once, as the chief, which writes why, may soon be gone."""
        if self._program.failure is not None and not self._has_told_failure:
            self._has_told_failure = True
            self._link.send(Leave(StepExit.FAILED, self._describe(StepExit.FAILED)))

    def decide(self, status: StepExit, text: str) -> None:
        """Tells the others that this daemon ends, and why; the first reason counts."""
        if self.status is None:
            self.status = status
            self._link.send(Leave(status, text))

    async def tell_exit(self, status: int) -> None:
        """The daemon exits with `status`."""
        if self._allocation.rank == CHIEF and self._verdict is not None:
            await asyncio.to_thread(self._write_verdict, self._verdict, max(status, *self._left.values(), 0))
        self._link.send(Leave(status, self._describe(status)))

    def _write_verdict(self, path: Path, status: int) -> None:
        """As of a step without spare nodes, the highest status of all counts, but only of those that have a rank."""
        partial = path.with_suffix(".partial")
        try:
            partial.write_text(allocation.verdict_text(self._allocation.generation, status))
            partial.rename(path)
        except OSError as error:
            log.error("gang.verdict_not_written", path=str(path), error=str(error), effect="the step's status decides")

    def _describe(self, status: int) -> str:
        """For the others: the chief alone writes it where people look."""
        if status == StepExit.DONE:
            return "done"
        failure = self._program.failure if status == StepExit.FAILED else None
        return failure or f"it exits with status {status}"
