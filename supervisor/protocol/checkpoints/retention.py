"""Selects the committed checkpoints that may be deleted. Whoever deletes one asks here. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from supervisor.protocol.layout import CheckpointName

CHECKPOINT_KEEP = 5  # more than one, as the newest may turn out damaged


class _Name(Protocol):
    """Of a checkpoint, on a disk or in a store. The newest is the highest."""

    def __lt__(self, other: Any, /) -> bool: ...

    @property
    def by_attempt(self) -> tuple[int, ...]:
        """The highest is the newest of the newest attempt."""


Name = TypeVar("Name", bound=_Name)


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """What retention needs to know of one committed checkpoint. `was_left`: by a dead worker, in memory."""

    name: CheckpointName
    created_wall_at: float  # Unix time
    metrics: Mapping[str, float] = field(default_factory=dict)
    was_left: bool = False


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The newest `checkpoint_keep` stay, one for every `checkpoint_keep_every` hours, and the best by a metric.

    `checkpoint_keep_best`: "min" or "max", and the name of the metric.
    """

    checkpoint_keep: int = CHECKPOINT_KEEP
    checkpoint_keep_every: float | None = None
    checkpoint_keep_best: tuple[str, str] | None = None


def select_expendable(checkpoints: Iterable[RetainedCheckpoint], policy: RetentionPolicy) -> list[CheckpointName]:
    """The checkpoints that no rule of `policy` keeps, oldest first, and never one that is indispensable.

    A checkpoint without the metric is never the best.
    """
    ordered = sorted(checkpoints, key=lambda kept: kept.name)
    keep = {kept.name for kept in ordered[-max(1, policy.checkpoint_keep) :]}
    keep |= select_indispensable({kept.name: kept.was_left for kept in ordered})
    keep |= _one_every(ordered, policy.checkpoint_keep_every)
    keep |= _best(ordered, policy)
    return [kept.name for kept in ordered if kept.name not in keep]


def select_for_room(
    checkpoints: Mapping[CheckpointName, bool], spared: Collection[CheckpointName] = ()
) -> CheckpointName | None:
    """The oldest checkpoint that may go if a disk is full, whatever a policy promises; None: none may.

    `checkpoints`: as for `select_indispensable`. `spared`: what has to stay besides.
    """
    kept = {*select_indispensable(checkpoints), *spared}
    return min((name for name in checkpoints if name not in kept), default=None)


def select_indispensable(checkpoints: Mapping[Name, bool]) -> set[Name]:
    """The checkpoints that are never deleted; each of them with whether it was left in memory by a dead worker.

    The newest one, and that of the newest attempt, which may have begun from an older one, as newer ones may be
    suspect. And the same of those that were saved by workers that lived: nobody has looked for NaN in the others, and
    the next attempt may refuse one, or die of it.
    """
    saved = [name for name, was_left in checkpoints.items() if not was_left]
    groups = [group for group in (list(checkpoints), saved) if group]
    latest = {max(group, key=lambda name: name.by_attempt) for group in groups}
    return latest | {max(group) for group in groups}


def _one_every(ordered: list[RetainedCheckpoint], hours: float | None) -> set[CheckpointName]:
    """The first checkpoint of each window of `hours`, counted from the one kept before it.

    One that says it is older than an earlier step was written after the clock was set back: a window begins there.
    """
    chosen: set[CheckpointName] = set()
    if hours is None:
        return chosen
    last: float | None = None
    for kept in ordered:
        if last is None or not 0 <= kept.created_wall_at - last < hours * 3600:
            chosen.add(kept.name)
            last = kept.created_wall_at
    return chosen


def _best(ordered: list[RetainedCheckpoint], policy: RetentionPolicy) -> set[CheckpointName]:
    if policy.checkpoint_keep_best is None:
        return set()
    mode, metric = policy.checkpoint_keep_best
    scored = [kept for kept in ordered if metric in kept.metrics]
    if not scored:
        return set()
    pick = min if mode == "min" else max
    return {pick(scored, key=lambda kept: kept.metrics[metric]).name}
