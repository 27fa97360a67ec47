"""`state.json`: what TensorFlow does not save, committed in the same rename as the tensors."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where the data goes on: `batch` batches of epoch `epoch` (from 0) are consumed.

    `examples`: how many those were together, which counts if batches have another size now; None: not known.
    `share`: how many this process was given besides, where others train too; a checkpoint has them all in `examples`.
    `workers`: how many processes shared out the epoch; None: not known.
    """

    epoch: int = 0
    batch: int = 0
    examples: int | None = 0
    share: int = 0
    workers: int | None = 1


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The host's part of a checkpoint, taken between two steps.

    `seeds` and `generators` are as `exact` reads them. `replica_metrics`: each replica's own figure where the script
    gave a per-replica value. `replicas`: how many there were. `copies`: how many per-replica tensors lie beside it.
    """

    step: int
    position: Position
    seeds: tuple[tuple[int, ...], ...] = ()
    generators: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    replica_metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    replicas: int = 1
    copies: int = 0

    def to_bytes(self) -> bytes:
        """The file's content. Figures that are not finite, which JSON can't hold, become null."""
        body = asdict(self) | {
            "format": FORMAT,
            "position": {name: value for name, value in asdict(self.position).items() if name != "share"},
            "replica_metrics": {
                name: [figure if math.isfinite(figure) else None for figure in figures]
                for name, figures in self.replica_metrics.items()
            },
        }
        return (json.dumps(body, separators=(",", ":"), allow_nan=False) + "\n").encode()


def parse_state(content: bytes) -> TrainingState:
    """The state in a file's content, whose hash the manifest has proven. Raises ValueError for another format."""
    body = json.loads(content)
    if body.get("format") != FORMAT:
        raise ValueError(f"state.json has format {body.get('format')!r}; this version reads {FORMAT}")
    return TrainingState(
        step=body["step"],
        position=Position(**{"workers": None, **body["position"]}),
        seeds=tuple(tuple(seed) for seed in body["seeds"]),
        generators=body["generators"],
        metrics=body["metrics"],
        replica_metrics={
            name: tuple(math.nan if figure is None else figure for figure in figures)
            for name, figures in body["replica_metrics"].items()
        },
        replicas=body["replicas"],
        copies=body["copies"],
    )
