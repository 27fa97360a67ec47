"""Where a checkpoint has the values of each replica: those of the process that wrote it, and of the others.

The process that writes a checkpoint (the chief, if several train together) puts the values of its own replicas into a
second bundle, its metrics into `run.state` and the state of `fit`. What another process holds for itself is in a file
of its own, `worker-N.npz`: the values of its replicas in the same order, its metrics, its random generators.
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from supervisor.protocol.checkpoints import manifest
from worker.state import extra_state
from worker.state.replica_values import MetricState, TrackedMetrics, is_distributed, replica_copies
from worker.state.run_state import RunState
from worker.state.state_file import TrainingState

COPIES = "replicas"  # prefix of the second bundle: the values of its replicas, variable by variable
PART = "worker-{}.npz"  # the file for the state that only that worker holds
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_FIT = "fit"
_Array = np.ndarray[Any, Any]
Metric = tuple[str, int]
"""What keeps a metric (`fit`, or a name in `run.state`), and the number of a variable in it."""


def name_in_state(name: str) -> str:
    """What keeps the metric that `run.state` has under a name."""
    return f"state/{name}"


def metrics_of(tracked: tf.train.Checkpoint, state: RunState) -> dict[Metric, Any]:
    """The variables of the metrics that checkpoints hold."""
    keepers: dict[str, Sequence[Any]] = {
        name_in_state(name): keeper.variables
        for name, keeper in state.keepers().items()
        if isinstance(keeper, MetricState)
    }
    for tracked_object in extra_state.tracked_objects(tracked, TrackedMetrics):
        keepers[_FIT] = tracked_object.metric_variables
    return {
        (name, number): variable for name, variables in keepers.items() for number, variable in enumerate(variables)
    }


def part_of_process(
    variables: Iterable[Any], metrics: Mapping[Metric, Any], own: Sequence[extra_state.OwnGenerator]
) -> bytes:
    """The content of the file of this process. `variables`: those whose values are saved for each replica."""
    copies = [copy.numpy() for variable in variables for copy in replica_copies(variable)]
    arrays = {f"copy-{number}": value for number, value in enumerate(copies)}
    listed = []
    for number, ((name, variable_number), variable) in enumerate(metrics.items()):
        values = [copy.numpy() for copy in replica_copies(variable)]
        listed.append([name, variable_number, len(values), is_distributed(variable)])
        arrays |= {f"metric-{number}-{place}": value for place, value in enumerate(values)}
    buffer = io.BytesIO()
    np.savez(
        buffer, allow_pickle=False, state=_as_array(extra_state.read_generators(own)), metrics=_as_array(listed),
        copies=np.array(len(copies)), **arrays,
    )  # fmt: skip
    return buffer.getvalue()


def _as_array(value: Any) -> _Array:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


class ProcessPart:
    """What one process other than the chief held for itself. Reads of its file only what is asked for."""

    def __init__(self, path: Path) -> None:
        self._stored = np.load(path, allow_pickle=False)
        listed = json.loads(self._stored["metrics"].tobytes()) if "metrics" in self._stored.files else []
        self._metrics = {(name, number): (place, *rest) for place, (name, number, *rest) in enumerate(listed)}

    @property
    def generators(self) -> Mapping[str, Any]:
        """The state of its random generators, as `extra_state` reads it."""
        state: Mapping[str, Any] = json.loads(self._stored["state"].tobytes())
        return state

    @property
    def count(self) -> int:
        """The number of values of its replicas."""
        return int(self._stored["copies"])

    def value(self, number: int) -> _Array:
        """The value with a number, in the order of variables and replicas."""
        array: _Array = self._stored[f"copy-{number}"]
        return array

    def metric(self, metric: Metric) -> tuple[list[_Array], bool] | None:
        """The values of a variable of a metric, and whether a strategy made it; None if they were not saved."""
        if metric not in self._metrics:
            return None
        number, count, distributed = self._metrics[metric]
        return [self._stored[f"metric-{number}-{place}"] for place in range(count)], distributed


class _Lazy(Sequence[_Array]):
    """The values of one variable, by replica over all processes. Reads what is asked for."""

    def __init__(self, count: int, read: Callable[[int], _Array]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self._read(index) for index in range(self._count)[number]]
        return self._read(range(self._count)[number])


class ReplicaParts:
    """The values of all replicas in a committed checkpoint. `processes`: how many trained together."""

    def __init__(self, folder: Path) -> None:
        names = {file.name for file in manifest.read_manifest(folder).files}
        others = takewhile(names.__contains__, (PART.format(rank) for rank in range(1, len(names) + 1)))
        self._parts = [ProcessPart(folder / name) for name in others]
        self._folder = folder
        self.processes = 1 + len(self._parts)

    def part(self, rank: int) -> ProcessPart | None:
        """That of a process other than the chief; None if it is the chief's, or no such process trained."""
        return self._parts[rank - 1] if 0 < rank < self.processes else None

    def values_of(self, state: TrainingState, variables: int) -> list[Sequence[_Array]] | None:
        """For each of so many variables the values of all replicas, process by process; None if others were saved."""
        replicas = state.replicas // self.processes
        counts = state.copies_of or (replicas,) * variables
        is_whole = all(part.count == state.copies for part in self._parts)
        if len(counts) != variables or sum(counts) != state.copies or not is_whole:
            return None
        bundle = tf.train.load_checkpoint(str(self._folder / COPIES))

        def lazy(first: int, count: int) -> Sequence[_Array]:
            def read(replica: int) -> _Array:
                rank, place = divmod(replica, count)
                if (part := self.part(rank)) is not None:
                    return part.value(first + place)
                value: _Array = bundle.get_tensor(f"copies/{first + place}{_VALUE}")
                return value

            return _Lazy(self.processes * count, read)

        return [lazy(sum(counts[:number]), count) for number, count in enumerate(counts)]

    def complete_metric(self, name: str, number: int, of_chief: Sequence[_Array], now: int) -> Sequence[_Array]:
        """The values of a variable of a metric for all replicas of the `now` processes, or to be merged for them.

        Those of a variable that no strategy made are not merged: another number of processes gets the chief's.
        """
        parts = [part.metric((name, number)) for part in self._parts]
        saved = [part for part in parts if part is not None]
        is_common = any(not distributed for _, distributed in saved)
        if len(saved) < len(parts) or (saved and is_common and now != self.processes):
            return [*of_chief] * now
        return [*of_chief, *(value for values, _ in saved for value in values)]

    def complete_state(self, name: str, of_chief: Any, now: int) -> Any:
        """What a metric in `run.state` is given to restore. Other values are the chief's, for all processes."""
        kept = name_in_state(name)
        if not any(part.metric((kept, 0)) for part in self._parts):
            return of_chief
        return [self.complete_metric(kept, number, values, now) for number, values in enumerate(of_chief)]

    def complete_fit(self, tracked: tf.train.Checkpoint, place: Any) -> None:
        """Gives the metrics of `fit` the values of all processes."""
        for tracked_object in extra_state.tracked_objects(tracked, TrackedMetrics):
            tracked_object.complete_metrics(
                lambda number, of_chief: self.complete_metric(_FIT, number, of_chief, place.processes), place
            )
