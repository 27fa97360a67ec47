"""The program of a gang on this node: where it stands, and what the end of its worker means for the gang."""

from collections.abc import Mapping
from enum import Enum, auto

from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.runner.program.runner import Runner

ENDED_BY_GANG = (State.STARTING, State.RUNNING, State.FLUSHING, State.ADOPTING)


class WorkerEnd(Enum):
    """Why no worker runs here, although one did in this turn, or would by now."""

    STORAGE_AWAY = auto()
    HOST_LEAVES = auto()
    STOPPED_WITH_OTHERS = auto()  # it has saved and stopped as the worker of another rank was told to
    STOPPED = auto()
    FAILED = auto()


class GangProgram:
    """All nodes of a gang train one program: the first of `runners`, which an update replaces and `remove` takes away.

    `has_spares`: whether there are nodes that can take over a rank. `can_leave_alone`: whether this one's.
    """

    def __init__(self, runners: Mapping[str, Runner], *, has_spares: bool, can_leave_alone: bool) -> None:
        self._runners = runners
        self._has_spares = has_spares
        self._can_leave_alone = can_leave_alone
        self.has_started = False
        """Whether it was taken up: from then on, a turn begins with an event."""
        self._last_attempt: int | None = None  # of the turn before
        self._recalled: SeenDivergence | None = None  # what an earlier daemon of this node has learned

    @property
    def runner(self) -> Runner | None:
        """None: there is none, or not yet."""
        return next(iter(self._runners.values()), None)

    def is_in(self, state: State) -> bool:
        """Whether it is in a state."""
        return self.runner is not None and self.runner.state is state

    @property
    def waits_for_turn(self) -> bool:
        """Whether its worker has ended, or none was started yet."""
        runner = self.runner
        return not self.has_started or runner is None or (runner.facts.launched and runner.state is State.STOPPED)

    @property
    def failure(self) -> str | None:
        """Why it was given up; None if it was not."""
        if (runner := self.runner) is None or runner.state is not State.FAILED:
            return None
        return f"{runner.name} was given up: {runner.reason or 'see its log'}"

    @property
    def divergence(self) -> SeenDivergence | None:
        """What this node knows of, and the chief has to know before the next turn begins."""
        if not self.has_started:
            return self._recalled
        return None if self.runner is None else self.runner.divergence

    async def recall_divergence(self) -> None:
        """As an earlier daemon knew it, until the program is taken up."""
        if self.runner is not None:
            self._recalled = await self.runner.recall_divergence()

    def expect_start(self) -> None:
        """The next turn is about to begin: a standby gets ready."""
        if self.runner is not None and self.runner.standby is not None:
            self.runner.standby.expect_start()

    def begin_turn(self) -> None:
        """Starts the next worker."""
        if self.runner is not None:
            self._last_attempt = self.runner.attempt
            self.runner.post(events.GangBegins())

    def end_turn(self, text: str) -> None:
        """Ends its worker."""
        if self.runner is not None:
            self.runner.post(events.GangBroken(text))

    def find_end(self) -> WorkerEnd | None:
        """Why no worker runs here; None if one does, or the next one is about to be launched."""
        runner = self.runner
        if runner is None or runner.state not in (State.BACKOFF, State.STOPPED):
            return None
        facts, last = runner.facts, runner.records.process.last_exit
        if not facts.launched and not (facts.waits_for_host and self._can_leave_alone):
            return None
        if facts.waits_for_storage:
            return WorkerEnd.STORAGE_AWAY
        if facts.waits_for_host:
            return WorkerEnd.HOST_LEAVES
        if runner.attempt == self._last_attempt:
            return None
        is_stop = last is not None and last.code == WorkerExit.STOPPED
        if runner.wanted and is_stop and self._has_spares and facts.current.decided_end is None:
            return WorkerEnd.STOPPED_WITH_OTHERS
        return WorkerEnd.STOPPED if is_stop or not runner.wanted else WorkerEnd.FAILED
