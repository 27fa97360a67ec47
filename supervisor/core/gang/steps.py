"""What follows under Slurm when the daemons of a job have ended: the batch script's decisions, and only they restart a
gang.

A daemon says how it ended by its exit status (`protocol.allocation.StepExit`); `srun` gives the highest of all nodes.
What is counted here is what no daemon can count: daemons that were killed. Failures of workers are counted by the
daemon of each node for its own, under their causes as everywhere, and it ends with FAILED once a budget is spent.
"""

from dataclasses import dataclass
from enum import Enum

from supervisor.core.gang.roster import MAX_FAILURES
from supervisor.protocol.allocation import FINAL, StepExit

MAX_LOST = 5  # daemons killed in a row without a new checkpoint
MAX_AGAIN = 20  # generations in a row without one; that daemons can't reach each other counts against no worker
MAX_MISSING = 2  # rendezvous in a row without a node: it may be gone, and only Slurm can give another
MAX_RUNS_MISSING = 10  # after so many requeues it is no accident that nodes don't reach each other
STORAGE_PAUSE_S = 30.0  # between two looks at storage that is away; it is waited for as long as the allocation goes on
PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
MAX_RESTARTS = MAX_FAILURES  # of one node's daemon in a step; the last one learns that its node is not taken again
_IN_ORDER = frozenset({StepExit.DONE, StepExit.SAVED, StepExit.NODE_LEAVES})
LEAVES_WITH = FINAL | _IN_ORDER
"""Statuses of a daemon after which its node has nothing left to do in this step."""


class AfterStep(Enum):
    """What the batch script does next."""

    LEAVE = "leave"  # exit with the status
    AGAIN = "again"  # a new step in this allocation
    REQUEUE = "requeue"  # give the allocation back, and ask for another run


def daemon_status(requested: int, are_done: bool, node_leaves: bool, gang_ends_with: StepExit | None) -> int:
    """How a node's daemon ends once it has stopped everything.

    `requested`: the status that it would end with elsewhere; `are_done`: every program has ended as it should;
    `node_leaves`: Slurm said that the allocation ends; `gang_ends_with`: why the gang has to begin again, if it has to.
    """
    if requested != 0:
        return requested
    if are_done:
        return StepExit.DONE
    if gang_ends_with is not None:
        return gang_ends_with
    return StepExit.NODE_LEAVES if node_leaves else StepExit.SAVED


def step_status(verdict: int | None, highest: int) -> int:
    """The status of a step with spare nodes, of which some may be lost.

    `verdict`: what the chief's daemon left, None if it was killed; `highest`: of all nodes, as `srun` gives it. A node
    may leave with a notice just after the chief has saved, so among ends in order the highest counts.
    """
    if verdict is None or {verdict, highest} <= _IN_ORDER:
        return max(verdict or 0, highest)
    return verdict


class ChiefSeen(Enum):
    """What another node sees of the chief."""

    LISTENS = "listens"  # its daemon lives, and so does the generation
    NO_DAEMON = "no daemon"  # its host answers: the batch script decides what follows
    SILENT = "silent"  # its host is gone, or the link to it
    NO_NODE = "no node"  # the same, and Slurm has taken it out of the job, and the batch script with it


class AfterDaemon(Enum):
    """What a node of a gang with spare nodes does after its daemon has ended."""

    LEAVE = "leave"  # with the daemon's status
    START = "start"  # another daemon, which joins the generation as a spare node
    LOOK = "look"  # at the chief again, in a while
    REQUEUE = "requeue"  # the job, as nobody else is there to do it


def after_daemon(restarts: int, chief: ChiefSeen) -> AfterDaemon:
    """What follows on a node other than the chief's whose daemon ended with a status that is not in LEAVES_WITH.

    `restarts`: how often it was started again.
    """
    match chief:
        case ChiefSeen.LISTENS:
            return AfterDaemon.START if restarts < MAX_RESTARTS else AfterDaemon.LEAVE
        case ChiefSeen.NO_DAEMON:
            return AfterDaemon.LEAVE
        case ChiefSeen.SILENT:
            return AfterDaemon.LOOK
        case ChiefSeen.NO_NODE:
            return AfterDaemon.REQUEUE


@dataclass(frozen=True, slots=True)
class Next:
    """What follows. `pause_s`: before a new step. `why`: for people."""

    verdict: AfterStep
    why: str
    pause_s: float = 0.0


@dataclass(slots=True)
class StepHistory:
    """What the steps of this allocation ended with. `newest`: the newest checkpoint, whatever names it; `restarts`: how
    often the job was queued again."""

    newest: object = None
    restarts: int = 0
    _has_progressed: bool = False
    _lost: int = 0
    _again: int = 0
    _missing: int = 0

    def after(self, status: int, newest: object, is_ending: bool, lacks_nodes: bool = False) -> Next:
        """What follows a step that ended with `status`. `is_ending`: the allocation ends, or the job was told to;
        `lacks_nodes`: it has fewer nodes left than train."""
        if newest != self.newest:
            self._lost = self._again = 0
            self._has_progressed = True
        self.newest = newest
        self._missing = self._missing + 1 if status == StepExit.NODE_MISSING else 0
        if status == StepExit.DONE:
            return Next(AfterStep.LEAVE, "done")
        if status in FINAL:
            text = (
                f"given up (status {status}); the reason stands above, or in supervisord.log of the node that gave up"
            )
            return Next(AfterStep.LEAVE, text)
        if status == StepExit.NODE_LEAVES:
            return Next(AfterStep.REQUEUE, "saved, because the allocation or a node ends")
        if is_ending:
            return Next(AfterStep.REQUEUE, "the allocation ends")
        if lacks_nodes:
            return Next(AfterStep.REQUEUE, "nodes were lost, and those that are left are too few")
        if status == StepExit.SAVED:
            return Next(AfterStep.AGAIN, "saved and stopped, and the allocation goes on")
        if status == StepExit.STORAGE_AWAY:
            return Next(
                AfterStep.AGAIN, "the checkpoint directory can't be used; the reason stands above", STORAGE_PAUSE_S
            )
        if self._missing >= MAX_MISSING:
            return self._after_missing()
        if status in (StepExit.AGAIN, StepExit.NODE_MISSING):
            self._again += 1
            if self._again > MAX_AGAIN:
                text = f"the gang began {self._again} times without a new checkpoint; the reasons stand above"
                return Next(AfterStep.LEAVE, text)
            return Next(AfterStep.AGAIN, "a worker or a node was lost", _pause_s(self._again - 1))
        self._lost += 1
        if self._lost > MAX_LOST:
            return Next(
                AfterStep.LEAVE, f"daemons were lost {self._lost} times without a new checkpoint (status {status})"
            )
        return Next(AfterStep.AGAIN, f"a daemon was lost (status {status})", _pause_s(self._lost - 1))

    def _after_missing(self) -> Next:
        if self.restarts >= MAX_RUNS_MISSING and not self._has_progressed:
            text = f"nodes did not reach each other, also after {self.restarts} requeues; check ports 20000 to 29999"
            return Next(AfterStep.LEAVE, text)
        return Next(AfterStep.REQUEUE, f"a node was missing {self._missing} times in a row")


def _pause_s(count: int) -> float:
    return PAUSES_S[min(count, len(PAUSES_S) - 1)]
