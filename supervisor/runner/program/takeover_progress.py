"""How far a program of an earlier daemon is taken over, and how its first start under this one counts."""

from enum import IntEnum

from supervisor.runner.program.changes import ChangeWaiters


class TakeoverStage(IntEnum):
    """What is settled; each stage includes those before it."""

    LOOKING = 0  # whether a worker of an earlier daemon runs is not known yet
    ADOPTION_SETTLED = 1  # such a worker is adopted, or its end known; its other processes may still be ending
    STARTABLE = 2  # nothing of an earlier daemon stands in the way of a start


class TakeoverProgress:
    """The stage of one program, which only advances. `changes`: those who wait for something of it."""

    __slots__ = ("_changes", "has_leftovers", "is_resuming", "left_alone", "stage", "was_done")

    def __init__(self, changes: ChangeWaiters) -> None:
        self.stage = TakeoverStage.LOOKING
        self.was_done = False
        """Whether it had ended as it should before this daemon came; until its first start here."""
        self.is_resuming = False
        """Whether the first start goes on where an earlier daemon stopped; after an operator's it is one anew."""
        self.has_leftovers = False
        """Whether processes of an earlier daemon were found: until it is startable they may have to end, which may take
        long."""
        self.left_alone: frozenset[int] = frozenset()
        """Pids of workers of the program whose state folder was where this daemon's is, and was deleted or replaced
        since."""
        self._changes = changes

    @property
    def is_adoption_settled(self) -> bool:
        """Whether a worker of an earlier daemon, if there is one, is taken over."""
        return self.stage >= TakeoverStage.ADOPTION_SETTLED

    @property
    def is_startable(self) -> bool:
        """Whether nothing of an earlier daemon stands in the way of a start."""
        return self.stage >= TakeoverStage.STARTABLE

    def advance(self, stage: TakeoverStage) -> None:
        """The takeover has come so far, if it was not farther before."""
        if stage > self.stage:
            self.stage = stage
            self._changes.wake()

    async def until(self, stage: TakeoverStage) -> None:
        """Returns once the takeover has come so far."""
        await self._changes.wait_until(lambda: True if self.stage >= stage else None)

    def note_start(self) -> None:
        """It was started: how an earlier daemon left it matters no more."""
        self.was_done = self.is_resuming = False
