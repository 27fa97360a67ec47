"""Selects the committed checkpoints that may be deleted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.protocol.layout import CheckpointName

CHECKPOINT_KEEP = 5  # more than one, as the newest may turn out damaged


@dataclass(frozen=True, slots=True)
class RetainedCheckpoint:
    """What retention needs to know of one committed checkpoint."""

    name: CheckpointName
    created_wall_at: float  # Unix time
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The newest `checkpoint_keep` stay, one for every `checkpoint_keep_every` hours, and the best by a metric.

    `checkpoint_keep_best`: "min" or "max", and the name of the metric.
    """

    checkpoint_keep: int = CHECKPOINT_KEEP
    checkpoint_keep_every: float | None = None
    checkpoint_keep_best: tuple[str, str] | None = None


def select_expendable(checkpoints: Iterable[RetainedCheckpoint], policy: RetentionPolicy) -> list[CheckpointName]:
    """The checkpoints that no rule of `policy` keeps, oldest first.

    The newest one always stays, and that of the newest attempt, which may have begun from an older one. A checkpoint
    without the metric is never the best.
    """
    ordered = sorted(checkpoints, key=lambda kept: kept.name)
    keep = {kept.name for kept in ordered[-max(1, policy.checkpoint_keep) :]}
    if ordered:
        keep.add(max((kept.name for kept in ordered), key=lambda name: (name.attempt, name.step)))
    keep |= _one_every(ordered, policy.checkpoint_keep_every)
    keep |= _best(ordered, policy)
    return [kept.name for kept in ordered if kept.name not in keep]


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
