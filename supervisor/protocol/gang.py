"""The messages between the daemons of a gang, and the proofs that they belong together.

A gang's daemons meet over TCP before anything is started: the chief (rank 0) sends a challenge, each other daemon joins
with its rank, its generation and the address of its worker, and once all have joined the chief names the cluster.
As all know the nodes, and where a worker listens if nothing hinders it (`worker_ports`), it names only the others: what
goes out from the chief grows with the number of ranks, and not with its square.
Afterwards both sides say that they are alive, and how they leave. Whoever does not know the allocation's secret, or
belongs to another generation, is refused. The lines themselves are not encrypted: TensorFlow's own traffic between the
same hosts is not either.

Daemons that stay connected can begin again together (`core/gang/view.py`). Each such start is a *turn* of the
generation that the daemons were started with; workers know the sum of both as their generation.
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from supervisor.protocol.allocation import Allocation
from supervisor.protocol.checkpoints.manifest import StoredFile
from supervisor.protocol.ports import LOWEST_WORKER_PORT, WORKER_PORTS
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.lines import LineCodec

LOWEST_PORT, PORTS = 20000, 10000  # below those that Linux gives to clients


@dataclass(frozen=True, slots=True)
class Challenge:
    """From the chief, first: what a proof has to hold."""

    nonce: str


@dataclass(frozen=True, slots=True)
class SeenDivergence:
    """A worker of that node has seen training diverge in `attempt` (the chief's): all begin below `below_step`."""

    below_step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Join:
    """A daemon wants to take part. `address`: where its worker will listen; `nonce`: what the chief's proof holds.

    `turn`: the one that it knows of. `diverged`: what has to be known before the next one begins. `own_folders`: true
    if its configuration says that nodes have folders of their own.
    """

    rank: int
    generation: int
    address: str
    nonce: str
    proof: str
    turn: int = 0
    diverged: SeenDivergence | None = None
    own_folders: bool | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """All have joined. `others`: nodes whose worker listens elsewhere than in `worker_ports`, with its port.

    `nodes`: those that train, by rank; empty: all, in their order.
    """

    others: tuple[tuple[int, int], ...]
    proof: str
    turn: int = 0
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """The chief does not take this daemon. `is_out`: its node has failed too often, and the others go on without it.

    `proof`: as in Alive.
    """

    reason: str
    is_out: bool = False
    proof: str = ""


@dataclass(frozen=True, slots=True)
class Alive:
    """Said every second, so that silence means something.

    `proof`: in the chief's answer to a join, which is this or Refused: that it knows the secret. Who has only taken the
    chief's port could otherwise end the daemons of the others.
    """

    proof: str = ""


@dataclass(frozen=True, slots=True)
class Broken:
    """To the chief: the worker here has ended, so nobody can train on. `saved`: as that of another rank was told to
    stop, and all have saved first."""

    turn: int
    text: str
    saved: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """From the chief: end the worker, if there is one, and be ready for `turn`."""

    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class WithoutWorker:
    """To the chief: no worker runs here. The next one will listen at `address`. `diverged`: as in Join."""

    turn: int
    address: str
    diverged: SeenDivergence | None = None


@dataclass(frozen=True, slots=True)
class Restore:
    """From the chief, where nodes have folders of their own: what the workers of `generation` begin from.

    `name`: of a checkpoint in the mirror, under `epoch`, whose manifest has the SHA-256 `manifest`; None: from step 0.
    `older`: why it is not the newest that the chief knows of, which has `newest_step`: an `OlderBecause`, and in words.
    """

    generation: int
    name: str | None = None
    epoch: int = 0
    manifest: str = ""
    older: str | None = None
    older_text: str = ""
    newest_step: int = 0


@dataclass(frozen=True, slots=True)
class UploadPart:
    """From the chief: upload this node's files of the checkpoint `name`, under `epoch`.

    `is_limited`: at mirror_rate_limit, as no deadline waits for it.
    """

    id: int
    name: str
    epoch: int
    is_limited: bool = True


@dataclass(frozen=True, slots=True)
class PartUploaded:
    """To the chief: the answer to UploadPart. `is_gone`: the files are not there, or not whole. `files`: what was sent,
    and is in the store."""

    id: int
    error: str | None = None
    is_gone: bool = False
    files: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class PartCommitted:
    """From the chief: the mirror has the checkpoint `name` under `epoch`, with the files of all nodes."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The daemon ends. `status`: what it will exit with; `text`: why, for people. `alone`: only its node goes away, so
    the others go on if a spare one can take its rank."""

    status: int
    text: str
    alone: bool = False


PartMessage = Restore | UploadPart | PartUploaded | PartCommitted
"""What daemons say of checkpoints, where nodes have folders of their own."""
GangMessage = Challenge | Join | Begin | Refused | Alive | Broken | Over | WithoutWorker | PartMessage | Leave
MESSAGES: LineCodec[GangMessage] = LineCodec({kind.__name__.lower(): kind for kind in get_args(GangMessage)})
"""Encodes and decodes them; a line has room for a thousand ranks that listen elsewhere."""


def proof_of_join(secret: str, challenge: Challenge, joins: Join) -> str:
    """What only a daemon of this allocation can say to this challenge, and only of itself."""
    said = (joins.rank, joins.generation, joins.address, joins.nonce, joins.turn)
    diverged = () if joins.diverged is None else (joins.diverged.below_step, joins.diverged.attempt)
    return _sign(secret, "join", challenge.nonce, *said, *diverged, *(["own folders"] if joins.own_folders else []))


def proof_of_answer(secret: str, joins: Join, answer: Alive | Refused) -> str:
    """What only the chief can answer to this join."""
    said = (answer.reason, answer.is_out) if isinstance(answer, Refused) else ()
    return _sign(secret, "answer", joins.nonce, joins.rank, type(answer).__name__, *said)


def proven_answer(secret: str, joins: Join, answer: Alive | Refused) -> Alive | Refused:
    """The answer with its proof."""
    return replace(answer, proof=proof_of_answer(secret, joins, answer))


def proof_of_begin(secret: str, joins: Join, cluster: str) -> str:
    """What only the chief of this allocation can say to the daemon that joined so. `cluster`: `cluster_digest`."""
    return _sign(secret, "begin", joins.nonce, joins.rank, joins.generation, cluster)


def cluster_digest(turn: int, addresses: Sequence[str]) -> str:
    """What all have to agree in: formed once by the chief, as forming it takes longer the more ranks there are."""
    return hashlib.sha256(json.dumps([turn, *addresses], allow_nan=False).encode()).hexdigest()


def is_proof(proof: str, expected: str) -> bool:
    """Compares in a time that tells nothing."""
    return hmac.compare_digest(proof.encode(), expected.encode())


def link_port(allocation: Allocation) -> int:
    """Where the chief of this generation listens: another port for each generation, and for each job of a node."""
    return LOWEST_PORT + (allocation.job_id * 31 + allocation.generation) % PORTS


def worker_ports(secret: str, allocation: Allocation, turn: int = 0) -> range:
    """Where each node's worker listens if that port is free: others in each generation, and not known to whoever does
    not know the secret. Nodes that share a host don't meet there."""
    chosen = int(_sign(secret, "ports", allocation.job_id, allocation.generation + turn), 16)
    first = LOWEST_WORKER_PORT + chosen % (WORKER_PORTS - allocation.size)
    return range(first, first + allocation.size)


def begin_of(ports: Sequence[int], nodes: Sequence[int], addresses: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """`others` of a Begin. `ports`: `worker_ports`; `nodes`: those that train, by rank, with their `addresses`."""
    real = (int(address.rpartition(":")[2]) for address in addresses)
    return tuple((node, port) for node, port in zip(nodes, real, strict=True) if port != ports[node])


def addresses_of(names: Sequence[str], ports: Sequence[int], begin: Begin) -> tuple[str, ...]:
    """The addresses of all workers, by rank. Raises ProtocolError if there is no such node."""
    nodes = begin.nodes or tuple(range(len(names)))
    if len(set(nodes)) < len(nodes) or not all(0 <= node < len(names) for node in nodes):
        raise ProtocolError(f"there are no such nodes: {nodes[:10]}")
    real = dict(enumerate(ports))
    for node, port in begin.others:
        if node not in real or not 0 < port < 1 << 16:
            raise ProtocolError(f"there is no node {node} with port {port}")
        real[node] = port
    return tuple(f"{names[node]}:{real[node]}" for node in nodes)


def cluster_text(addresses: Sequence[str], rank: int) -> str:
    """TF_CONFIG for one rank."""
    return json.dumps(
        {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}, allow_nan=False
    )


def _sign(secret: str, *words: object) -> str:
    return hmac.new(
        secret.encode(), json.dumps([str(word) for word in words], allow_nan=False).encode(), hashlib.sha256
    ).hexdigest()
