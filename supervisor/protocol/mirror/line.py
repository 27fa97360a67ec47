"""Which checkpoints of a run count: those on the line of its newest epoch.

A host that was taken for dead may go on writing after another has taken over. It must not win, and clocks can't
decide. So every host that takes a run over begins an *epoch*: one object, created only if it does not exist, that
also names the checkpoint from which the host goes on, its *parent*. The line is read backwards: all checkpoints of
the newest epoch; before them its parent, and what precedes that in the parent's own epoch; then that epoch's parent,
and so on. What an older epoch wrote behind its successor's parent is on no such line, whenever it arrives. An epoch
that began anew has no parent, and the line ends there.

A checkpoint on a host's own disk counts by an epoch too (`folder_epochs.py`): one that was fetched by the epoch that it
was fetched from, one that was written here by the newest epoch that this host held, or saw the run have, when the
attempt that wrote it began. Those that a later epoch left behind are off the line as well.
"""

from collections.abc import Collection, Mapping

from supervisor.protocol.checkpoints.retention import select_indispensable
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint

KEEP_AT_LEAST = 2
"""A parent may go once the epoch has this many of its own: one of them may prove bad."""


def epoch_limits(epochs: Mapping[int, Epoch]) -> dict[int, CheckpointName | None]:
    """For each epoch on the line, newest first: its last checkpoint that counts; None: all of them."""
    return _limits(epochs, goes_beyond=False)


def _limits(epochs: Mapping[int, Epoch], *, goes_beyond: bool) -> dict[int, CheckpointName | None]:
    """`goes_beyond`: also beyond an epoch of which the store had not what it began from, nor anything older: nothing
    counts there, and it was not begun anew."""
    limits: dict[int, CheckpointName | None] = {}
    if not epochs:
        return limits
    number, limit = max(epochs), None
    while number not in limits:
        limits[number] = limit
        epoch = epochs.get(number)
        if epoch is not None and epoch.parent is not None:
            number, limit = epoch.parent.epoch, epoch.parent.name
        elif goes_beyond and epoch is not None and epoch.start is not None:
            number, limit = max((earlier for earlier in epochs if earlier < number), default=number), epoch.start
    return limits


def checkpoints_on_line(
    epochs: Mapping[int, Epoch], committed: Collection[RemoteCheckpoint]
) -> tuple[RemoteCheckpoint, ...]:
    """Those of the committed checkpoints that count, newest first."""
    limits = epoch_limits(epochs)
    checkpoints = [
        checkpoint
        for checkpoint in committed
        if checkpoint.epoch in limits and _is_within(checkpoint.name, limits[checkpoint.epoch])
    ]
    return tuple(sorted(checkpoints, reverse=True))


def given_up(epochs: Mapping[int, Epoch], committed: Collection[RemoteCheckpoint]) -> Mapping[RemoteCheckpoint, int]:
    """The committed checkpoints that the line has passed over, each with the epoch that has left it behind.

    None of them ever counts again: an epoch's parent is chosen from the line, and never changes. What is older than
    the line is not among them: an operator began anew, and may want to look at what there was.
    """
    limits = _limits(epochs, goes_beyond=True)
    first, newest = min(limits, default=0), max(limits, default=0)
    return {
        checkpoint: min(number for number in limits if number > checkpoint.epoch)
        for checkpoint in committed
        if first <= checkpoint.epoch < newest
        and not (checkpoint.epoch in limits and _is_within(checkpoint.name, limits[checkpoint.epoch]))
    }


def left_behind(local: Mapping[CheckpointName, int | None], epochs: Mapping[int, Epoch]) -> tuple[CheckpointName, ...]:
    """The local checkpoints that a later epoch left behind. `local`: each with the epoch by which it counts.

    None: this host knew of no epoch when it wrote that one, so the newest of both places counts.
    """
    limits = epoch_limits(epochs)
    newest = max(limits, default=0)
    return tuple(
        sorted(
            name
            for name, epoch in local.items()
            if epoch is not None and epoch < newest and not (epoch in limits and _is_within(name, limits[epoch]))
        )
    )


def _is_within(name: CheckpointName, limit: CheckpointName | None) -> bool:
    return limit is None or name <= limit


def newest_at_or_before(line: Collection[RemoteCheckpoint], start: CheckpointName | None) -> RemoteCheckpoint | None:
    """The parent of an epoch that goes on from `start` (None: from step 0): the newest remote one not after it."""
    return None if start is None else max((checkpoint for checkpoint in line if checkpoint.name <= start), default=None)


def to_delete(line: Mapping[RemoteCheckpoint, bool], epoch: int, keep: int) -> tuple[RemoteCheckpoint, ...]:
    """What `mirror_keep` leaves no room for, oldest first; never all that an unproven epoch stands on.

    `line`: each with whether it was left in memory by a dead worker. Nor what is indispensable on a disk: nobody has
    looked for NaN in those, so if all that is kept are such, something else stays to go back to.
    """
    newest_first = sorted(line, reverse=True)
    own = sum(checkpoint.epoch == epoch for checkpoint in newest_first)
    kept = max(keep, KEEP_AT_LEAST if own >= KEEP_AT_LEAST else own + KEEP_AT_LEAST)
    indispensable = select_indispensable(line)
    return tuple(checkpoint for checkpoint in reversed(newest_first[kept:]) if checkpoint not in indispensable)
