"""Training of a gang has diverged: whichever ranks see it, all go back to before it.

Each worker looks at its own losses, so one rank may see what the others don't. Its own daemon learns of that, and
where training has to begin; but the chief's daemon selects the checkpoint, and the chief's worker has saved what it
took for sound. So no turn begins before the chief has heard what each node knows: a daemon says it as it joins, and
whenever it is ready for the next turn, until its worker has restored something. The lowest step counts.

A node may have been away meanwhile, and the others have gone back without it and trained on. So what it says counts
for checkpoints of the attempt that diverged and of earlier ones: a later attempt that has saved is proof of that.
"""

from collections.abc import Iterable

from supervisor.protocol.gang import SeenDivergence


def restore_below(own: int | None, said: Iterable[SeenDivergence], newest_attempt: int | None) -> int | None:
    """Below which step all begin; None: from the newest.

    `own`: what the chief's node itself knows; `newest_attempt`: that of the newest checkpoint, None if it isn't known.
    """
    steps = [divergence.below_step for divergence in said if (newest_attempt or 0) <= divergence.attempt]
    return min([*steps, *([] if own is None else [own])], default=None)
