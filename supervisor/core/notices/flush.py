"""When to request the last checkpoint before the host is gone, and how long it is going to take.

The last moment is: deadline - margin - save - one step, because the worker saves only between steps. Where each number
comes from: `gone_at` is the notice's deadline; `step_s` is the slowest of the last few steps, from the worker's
`progress`; `save_s` comes from `committed`: from the decision to the last sync, so it is measured for this job on this
disk; the margin is `notice_margin` of the configuration. Unknown is None; a job that has never measured a save flushes
at once. Between two steps a loop may also evaluate or wait for data; such a pause is the time between two `progress`
messages.

Several jobs may save to one disk at once. A save that was measured beside others is converted to the time it would have
taken alone, and what is expected is extended again by those that must save at the same time (`expected_save_s`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SAVE_SPREAD = 1.2  # the next save may be slower than the slowest of the last few: page cache, other users of the disk
PAUSE_MEMORY_S = 3600.0  # pauses older than that are forgotten; evaluations come at least hourly
RECENT_COUNT = 8  # remembered saves and steps: enough to contain a slow one, few enough to follow a job that changes


@dataclass(frozen=True, slots=True)
class MeasuredSave:
    """One save that reached the disk: when it ended (monotonic seconds; -inf: long ago), and how long it took."""

    ended_at: float
    save_s: float

    @property
    def began_at(self) -> float:
        """When it was decided on (monotonic seconds)."""
        return self.ended_at - self.save_s


def latest_flush_at(gone_at: float, step_s: float, save_s: float, margin_s: float) -> float:
    """The last moment (monotonic seconds) at which a flush can still finish before `gone_at`.

    The worker saves only between steps, so a whole step may pass before it starts.
    Raises ValueError if any duration is negative.
    """
    if min(step_s, save_s, margin_s) < 0:
        raise ValueError(f"cannot plan with a negative time: step {step_s}, save {save_s}, margin {margin_s}")
    return gone_at - margin_s - save_s - step_s


def without_queueing(save: MeasuredSave, before: MeasuredSave | None) -> MeasuredSave:
    """`save` without the time that it waited for the save before it; a job writes its saves one by one.

    That time need not be planned for: if the last flush has to wait for a save that began shortly before, that save
    reaches the disk instead, and little is lost.
    """
    waited_s = 0.0 if before is None else min(max(0.0, before.ended_at - save.began_at), save.save_s)
    return MeasuredSave(save.ended_at, save.save_s - waited_s)


@dataclass(frozen=True, slots=True)
class Pause:
    """A time without a step, which ended at `ended_at` (monotonic seconds) and took `pause_s`."""

    ended_at: float
    pause_s: float


def remember_pause(pauses: Sequence[Pause], pause: Pause) -> tuple[Pause, ...]:
    """The pauses to remember, longest first, so that the longest one of the last hour is known at any later time."""
    since = pause.ended_at - PAUSE_MEMORY_S
    return (*(each for each in pauses if each.ended_at > since and each.pause_s > pause.pause_s), pause)


def unshared_save_s(save: MeasuredSave, others: Iterable[MeasuredSave]) -> float:
    """How long `save` would have taken alone on its disk. `others`: other jobs' saves on that disk.

    Concurrent saves are assumed to share the disk evenly: while n of them write, each gets 1/n.
    """
    among = [each for each in others if each.ended_at > save.began_at and each.began_at < save.ended_at]
    if not among:
        return save.save_s
    edges = sorted({save.began_at, save.ended_at, *(_within(at, save) for each in among for at in _ends(each))})
    total = 0.0
    for begin, end in pairwise(edges):
        middle = (begin + end) / 2
        total += (end - begin) / (1 + sum(each.began_at < middle < each.ended_at for each in among))
    return total


def _others(name: str, saves: Mapping[str, Sequence[MeasuredSave]]) -> list[MeasuredSave]:
    return [each for job, found in saves.items() if job != name for each in found]


def _ends(save: MeasuredSave) -> tuple[float, float]:
    return save.began_at, save.ended_at


def _within(at: float, save: MeasuredSave) -> float:
    return min(max(at, save.began_at), save.ended_at)


def expected_save_s(saves: Mapping[str, Sequence[MeasuredSave]], finishing: Collection[str]) -> dict[str, float]:
    """How long the next save of each job takes if those of `finishing` save at the same time; measured jobs only.

    `saves`: recent saves on one disk by job. With even shares, each other job delays a save by no more than the shorter
    of the two saves.
    """
    alone = {job: max(unshared_save_s(each, _others(job, saves)) for each in own) for job, own in saves.items() if own}
    return {
        name: SAVE_SPREAD * (own_s + sum(min(own_s, alone.get(job, own_s)) for job in set(finishing) - {name}))
        for name, own_s in alone.items()
    }
