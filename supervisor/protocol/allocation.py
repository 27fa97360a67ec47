"""What Slurm, or a JobSet of Kubernetes, gave a job: its nodes, and which of them this is. And with what a daemon tells
who started it how it ended.

Everything is read from environment variables, which a job's user can set as well: numbers have limits, and names are
checked before anything is done with them. The list of nodes is compressed (`gpu[01-04,7]`); `scontrol show hostnames`
writes it out, so nothing here takes it apart.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

MAX_NODES = 1024
MAX_LIST_CHARACTERS = 64 * 1024  # of the compressed list: a thousand names that can't be compressed
MAX_NUMBER = 1 << 40
GENERATION = "STEPKEEPER_GENERATION"
SECRET = "STEPKEEPER_GANG_SECRET"  # noqa: S105 - its name
NODES, RANK, RESTARTS = "STEPKEEPER_NODES", "STEPKEEPER_RANK", "STEPKEEPER_RESTARTS"
"""What the manifest of a JobSet sets: all pods' host names with commas between them, this one's place in the list, and
how often the gang was started again."""
VERDICT = "STEPKEEPER_VERDICT"
"""Where the chief's daemon writes for the batch script how its generation has ended, if there are spare nodes."""
MIN_SECRET_CHARACTERS = 16  # whoever knows it can join the gang
CLUSTER = "TF_CONFIG"  # TensorFlow's variable
OUTPUT_RANKS = 8  # whose daemons write to the job's output
SPACING = 1000
"""Attempts of one run of the batch script: the next run, after a requeue, begins above them."""
MAX_TURNS = 20
"""How often the daemons of one start begin together. Then the batch script looks at it: it pauses, and gives up if
there are no new checkpoints."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
_NUMBER = re.compile(r"[0-9]{1,13}")
_VERDICT = re.compile(r"([0-9]{1,13}) ([0-9]{1,3})\n")


class StepExit(IntEnum):
    """How a daemon ends under Slurm. `srun` gives the highest status of all nodes, so a higher one overrules."""

    DONE = 0  # every program has ended as it should
    SAVED = 42  # told to stop: flushed and left
    NODE_LEAVES = 43  # flushed and left because this node, or the allocation, ends
    AGAIN = 60  # the gang has to begin again, in this allocation
    NODE_MISSING = 61  # the same, and a node did not take part
    STORAGE_AWAY = 62  # the same, once the checkpoint directory can be used
    FAILED = 70  # given up: a person must act


FINAL = frozenset({StepExit.FAILED, 2, 71, 78})
"""After these the same start would fail in the same way: the command line, the host or the configuration is wrong."""


class AllocationError(ValueError):
    """The variables don't describe an allocation; the text names the variable and says why."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The job's nodes in the order of their ranks. `rank`: of this one; 0 is the chief.

    `restarts`: how often Slurm has requeued the job. `generation`: grows with every start of the gang, over requeues.
    """

    job_id: int
    rank: int
    nodes: tuple[str, ...]
    restarts: int
    generation: int

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.nodes)

    def of_turn(self, turn: int, nodes: Sequence[int]) -> "Allocation":
        """This node's place among those that train in a turn: its rank, and their names in the order of ranks."""
        names = tuple(self.nodes[node] for node in nodes)
        return replace(self, rank=nodes.index(self.rank), nodes=names, generation=self.generation + turn)

    @property
    def lowest_attempt(self) -> int:
        """The first attempt's number in this run: above those of the runs before, whose ledgers may be elsewhere."""
        return self.restarts * SPACING + 1

    def describe(self, rank: int) -> str:
        """A node, for people."""
        return f"rank {rank} ({self.nodes[rank]})"


def is_allocation(environment: Mapping[str, str]) -> bool:
    """Whether this process runs under Slurm."""
    return "SLURM_JOB_ID" in environment


def job_id(environment: Mapping[str, str]) -> int:
    """The number of the job. Raises AllocationError."""
    return _number(environment, "SLURM_JOB_ID")


def restart_count(environment: Mapping[str, str]) -> int:
    """How often the job was requeued; Slurm sets no variable the first time. Raises AllocationError."""
    return _number(environment, "SLURM_RESTART_COUNT", 0)


def state_folder(environment: Mapping[str, str], uid: int) -> Path:
    """Where a node's daemon keeps its state: on the node's own disk, as ledgers don't belong on shared ones, and the
    same for every run of the job. Raises AllocationError."""
    return Path(environment.get("TMPDIR") or "/tmp") / f"stepkeeper-{uid}-{job_id(environment)}"  # noqa: S108 - claimed


def log_folder(environment: Mapping[str, str]) -> Path:
    """Where programs' logs go: they are wanted after the job, so not to the node's own disk. Raises AllocationError."""
    name = environment.get("SLURMD_NODENAME", "")
    node = name if _NAME.fullmatch(name) else "node"
    return Path(environment.get("SLURM_SUBMIT_DIR") or ".") / f"stepkeeper-{job_id(environment)}" / node


def output_level(environment: Mapping[str, str]) -> str | None:
    """From which level on this node's daemon writes to the job's output, which all nodes share; None: nothing.

    The chief writes all, a few others what is wrong, the rest nothing: of a thousand nodes each commit would be a
    thousand lines. What ends a generation anywhere reaches the chief, if there is one, and the few others if not. The
    whole log of each node is in its own file.
    """
    text = environment.get("SLURM_PROCID", "")
    rank = int(text) if _NUMBER.fullmatch(text) is not None else 0
    if rank == 0:
        return "debug"
    return "warn" if rank < OUTPUT_RANKS else None


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` less what is between the daemons alone."""
    return {key: value for key, value in environment.items() if key not in (GENERATION, SECRET, VERDICT)}


def compressed_nodes(environment: Mapping[str, str], of_step: bool = False) -> str:
    """The list of nodes as Slurm writes it, for `scontrol show hostnames`. Raises AllocationError.

    `of_step`: of the step in which this process runs, as a job that has lost a node still has that in its own list. In
    a batch script, the variable may be that of the step in which somebody submitted it.
    """
    name = "SLURM_STEP_NODELIST" if of_step and environment.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    text = environment.get(name, "")
    if not text or len(text) > MAX_LIST_CHARACTERS or not text.isascii() or text.startswith("-"):
        raise AllocationError(f"cannot use {name}: it is {text[:80]!r}; start this with sbatch or srun")
    return text


def parse_nodes(output: str) -> tuple[str, ...]:
    """The names that `scontrol show hostnames` printed. Raises AllocationError."""
    return _host_names(output.split(), "SLURM_JOB_NODELIST")


def verdict_text(generation: int, status: int) -> str:
    """What the chief's daemon writes into VERDICT."""
    return f"{generation} {status}\n"


def parse_verdict(text: str, generation: int) -> int | None:
    """The status that the chief's daemon of `generation` has left; None if it has not."""
    match = _VERDICT.fullmatch(text)
    return int(match[2]) if match is not None and int(match[1]) == generation else None


def is_one_node(environment: Mapping[str, str]) -> bool:
    """Whether Slurm says that the job has one task; then nobody asks for names."""
    return environment.get("SLURM_NTASKS") == "1"


def read_allocation(environment: Mapping[str, str], nodes: Sequence[str]) -> Allocation:
    """This node's place among `nodes`. Raises AllocationError."""
    rank, tasks = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NTASKS")
    if tasks != len(nodes):
        raise AllocationError(
            f"cannot train with {tasks} tasks on {len(nodes)} nodes: a daemon runs on each node; "
            f"set --ntasks-per-node=1"
        )
    if rank >= tasks:
        raise AllocationError(f"cannot use SLURM_PROCID: it is {rank}, and there are {tasks} tasks")
    restarts = restart_count(environment)
    generation = _number(environment, GENERATION, restarts * SPACING + 1)
    return Allocation(job_id(environment), rank, tuple(nodes), restarts, generation)


def read_jobset(environment: Mapping[str, str]) -> Allocation:
    """This pod's place in its JobSet, each of whose restarts is a generation. Raises AllocationError."""
    nodes = _host_names([word for word in environment.get(NODES, "").split(",") if word], NODES)
    rank, restarts = _number(environment, RANK, remedy=_MANIFEST), _number(environment, RESTARTS, remedy=_MANIFEST)
    if rank >= len(nodes):
        raise AllocationError(f"cannot use {RANK}: it is {rank}, and {NODES} names {len(nodes)}")
    if len(nodes) > 1 and len(environment.get(SECRET, "")) < MIN_SECRET_CHARACTERS:
        raise AllocationError(
            f"cannot use {SECRET}: whoever guesses it can join the gang; give all pods the same "
            f"{MIN_SECRET_CHARACTERS} random characters or more"
        )
    return Allocation(0, rank, nodes, restarts, restarts * SPACING + 1)


def _host_names(names: Sequence[str], variable: str) -> tuple[str, ...]:
    if not names or len(names) > MAX_NODES:
        raise AllocationError(f"cannot train on {len(names)} nodes: it can be 1 to {MAX_NODES}; see {variable}")
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise AllocationError(f"cannot use the node name {name[:80]!r}: it is no host name; see {variable}")
    if len(set(names)) < len(names):
        raise AllocationError(f"cannot use {variable}: a node is in it twice")
    return tuple(names)


_SLURM = "start this with sbatch or srun"
_MANIFEST = "the manifest of the pod sets it, see deploy/kubernetes/jobset.yaml"


def _number(environment: Mapping[str, str], name: str, default: int | None = None, remedy: str = _SLURM) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or _NUMBER.fullmatch(text) is None or int(text) > MAX_NUMBER:
        raise AllocationError(f"cannot use {name}: it is {text!r:.80}; {remedy}")
    return int(text)
