"""`state.json`: the part of a checkpoint that TensorFlow does not save, committed in the same rename as the tensors."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from supervisor.protocol.formats import NewerFormat, check_format
from worker.state.script_conditions import parse_record

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the data training continues: `batch` batches of epoch `epoch` (from 0) are consumed.

    The epoch is the one whose body is not done yet: behind the last step of an epoch `batch` is the number of its
    batches, until the loop's body ends. `begun`: the body of the epoch has begun, although no batch is consumed.
    `ended`: the data have no more batches of it.
    `examples`: the number of examples in those batches, which decides if batches have another size now; None: unknown.
    `share`: examples that only this one of several processes has counted; a checkpoint has the sum in `examples`.
    `workers`: the number of processes that divided the epoch between them; None: unknown.
    """

    epoch: int = 0
    batch: int = 0
    examples: int | None = 0
    share: int = 0
    workers: int | None = 1
    begun: bool = field(default=False, compare=False)
    ended: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class EpochBody:
    """How the body of an epoch began. `step`: how many steps were done then. `made`: digests of numbers and arrays that
    its head, which stands before its batches, made for them, by name."""

    epoch: int
    step: int
    made: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As it stands in `state.json`."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "made": {name: f"{digest:x}" for name, digest in self.made.items()},
        }


def parse_body(content: Any) -> EpochBody | None:
    """Of what `to_json` gives; None for what an earlier version has written. Raises ValueError, KeyError, TypeError."""
    if content is None:
        return None
    made = {str(name): int(digest, 16) for name, digest in content["made"].items()}
    return EpochBody(int(content["epoch"]), int(content["step"]), made)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The content of `state.json`, captured between two steps.

    `seeds` and `generators` are what `extra_state` reads. `replica_metrics`: each replica's value of a metric that the
    script gave per replica. `replicas`: their number, over all processes. `copies`: the number of per-replica tensors
    of the process that wrote the checkpoint; `copies_of`: how many of them each variable has (empty: as many each).
    `passes`: what `PassLog` has to know. `script`: what `ScriptConditions` records. `body`: of the position's epoch.
    """

    step: int
    position: Position
    seeds: tuple[tuple[int, ...], ...] = ()
    generators: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    replica_metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    replicas: int = 1
    copies: int = 0
    copies_of: tuple[int, ...] = ()
    passes: Mapping[str, Any] = field(default_factory=dict)
    script: Mapping[str, Any] = field(default_factory=dict)
    body: EpochBody | None = None

    def to_bytes(self) -> bytes:
        """The file's content. Values that are not finite become null, because JSON can't hold them."""
        body = asdict(self) | {
            "format": FORMAT,
            "body": None if self.body is None else self.body.to_json(),
            "position": {name: value for name, value in asdict(self.position).items() if name != "share"},
            "replica_metrics": {
                name: [value if math.isfinite(value) else None for value in values]
                for name, values in self.replica_metrics.items()
            },
        }
        return (json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n").encode()


def parse_state(content: bytes) -> TrainingState:
    """Parses a file whose hash was verified with the manifest. Raises ValueError for another format."""
    try:
        body = json.loads(content)
    except RecursionError as error:
        raise ValueError("state.json is nested too deeply") from error
    if not isinstance(body, dict):
        raise ValueError("state.json is not a JSON object")
    try:
        check_format(body, FORMAT, "state.json")
    except NewerFormat as error:
        raise ValueError(str(error)) from error
    return TrainingState(
        step=body["step"],
        position=Position(**{"workers": None, **body["position"]}),
        seeds=tuple(tuple(seed) for seed in body["seeds"]),
        generators=body["generators"],
        metrics=body["metrics"],
        replica_metrics={
            name: tuple(math.nan if value is None else value for value in values)
            for name, values in body["replica_metrics"].items()
        },
        replicas=body["replicas"],
        copies=body["copies"],
        copies_of=tuple(body.get("copies_of", ())),
        passes=body["passes"],
        script=parse_record(body.get("script")),
        body=parse_body(body.get("body")),
    )
