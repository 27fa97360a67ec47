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

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

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


def latest_flush_at(gone_at: float, step_s: float, save_s: float, margin_s: float, upload_s: float = 0.0) -> float:
    """The last moment (monotonic seconds) at which a flush can still finish before `gone_at`.

    The worker saves only between steps, so a whole step may pass before it starts.

    `upload_s`: of the mirror; 0 if nobody waits for that.
    Raises ValueError if any duration is negative.
    """
    if min(step_s, save_s, margin_s, upload_s) < 0:
        text = f"step {step_s}, save {save_s}, margin {margin_s}, upload {upload_s}"
        raise ValueError(f"cannot plan with a negative time: {text}")
    return gone_at - margin_s - upload_s - save_s - step_s


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


def unshared_saves_s(saves: Sequence[MeasuredSave]) -> list[float]:
    """How long each of the saves on one disk would have taken alone (s). Saves of one job must not overlap.

    Concurrent saves are assumed to share the disk evenly: while n of them write, each gets 1/n. So each one's time
    alone is the integral of 1/n over its time, and one pass over all begins and ends gives those of all.
    """
    changes = sorted((at, change) for each in saves if each.ended_at > -math.inf for at, change in _changes(each))
    alone_until: dict[float, float] = {}  # by the time of a change: the integral up to it
    alone_s, writing, before = 0.0, 0, -math.inf
    for at, change in changes:
        if writing:
            alone_s += (at - before) / writing
        alone_until[at] = alone_s
        writing, before = writing + change, at
    return [
        alone_until[each.ended_at] - alone_until[each.began_at] if each.ended_at > -math.inf else each.save_s
        for each in saves
    ]


def _changes(save: MeasuredSave) -> tuple[tuple[float, int], tuple[float, int]]:
    """By how much the number of saves that write changes, and when."""
    return (save.began_at, 1), (save.ended_at, -1)


def expected_save_s(saves: Mapping[str, Sequence[MeasuredSave]], finishing: Collection[str]) -> dict[str, float]:
    """How long the next save of each job takes if those of `finishing` save at the same time; measured jobs only.

    `saves`: recent saves on one disk by job. With even shares, each other job delays a save by no more than the shorter
    of the two saves; one that was never measured, by as long as the save itself.
    """
    every = iter(unshared_saves_s([each for own in saves.values() for each in own]))
    alone = {job: max(islice(every, len(own))) for job, own in saves.items() if own}
    beside = sorted(alone[job] for job in set(finishing) if job in alone)
    sums, unmeasured = [0.0, *accumulate(beside)], len(set(finishing)) - len(beside)
    expected = {}
    for name, own_s in alone.items():
        shorter = bisect_right(beside, own_s)
        delay_s = sums[shorter] + own_s * (len(beside) - shorter + unmeasured - (name in finishing))
        expected[name] = SAVE_SPREAD * (own_s + delay_s)
    return expected
