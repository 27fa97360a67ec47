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
SLOWEST_BYTES_A_SECOND = 1e6  # to a disk that is worth training on
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
    return (*(earlier for earlier in pauses if earlier.ended_at > since and earlier.pause_s > pause.pause_s), pause)


def unshared_saves_s(saves: Sequence[MeasuredSave], credited_s: Sequence[float] | None = None) -> list[float]:
    """How long each of the saves on one disk would have taken alone (s). Saves of one job must not overlap.

    Concurrent saves are assumed to share the disk evenly: while n of them write, each gets 1/n. So each one's time
    alone is the integral of 1/n over its time, and one pass over all begins and ends gives those of all.

    `credited_s`: for how long, up to its end, each is believed to have written beside the others; None: all the time.
    """
    credited = [save.save_s for save in saves] if credited_s is None else credited_s
    spans = [
        (save.began_at, max(save.began_at, save.ended_at - span_s), save.ended_at)
        for save, span_s in zip(saves, credited, strict=True)
        if save.ended_at > -math.inf
    ]
    changes = sorted(
        [
            *((credited_at, 1) for _, credited_at, ended_at in spans if credited_at < ended_at),
            *((ended_at, -1) for _, credited_at, ended_at in spans if credited_at < ended_at),
            *((at, 0) for span in spans for at in span),
        ]
    )
    among_until: dict[float, float] = {}  # by the time of a change: the integral up to it for one that is counted
    beside_until: dict[float, float] = {}  # and for one that is not
    among_s = beside_s = 0.0
    writing, before = 0, changes[0][0] if changes else 0.0
    for at, change in changes:
        among_s += (at - before) / max(1, writing)
        beside_s += (at - before) / (writing + 1)
        among_until[at], beside_until[at] = among_s, beside_s
        writing, before = writing + change, at
    alone = iter(
        beside_until[credited_at] - beside_until[began_at] + among_until[ended_at] - among_until[credited_at]
        for began_at, credited_at, ended_at in spans
    )
    return [next(alone) if save.ended_at > -math.inf else save.save_s for save in saves]


def expected_save_s(saves: Mapping[str, Sequence[MeasuredSave]], finishing: Collection[str]) -> dict[str, float]:
    """How long the next save of each job takes if those of `finishing` save at the same time; measured jobs only.

    `saves`: recent saves on one disk by job. With even shares, each other job delays a save by no more than the shorter
    of the two saves; one that was never measured, by as long as the save itself.
    """
    every = iter(unshared_saves_s([save for own in saves.values() for save in own]))
    alone = {job: max(islice(every, len(own))) for job, own in saves.items() if own}
    beside = sorted(alone[job] for job in set(finishing) if job in alone)
    sums, unmeasured = [0.0, *accumulate(beside)], len(set(finishing)) - len(beside)
    expected = {}
    for name, own_s in alone.items():
        shorter = bisect_right(beside, own_s)
        delay_s = sums[shorter] + own_s * (len(beside) - shorter + unmeasured - (name in finishing))
        expected[name] = SAVE_SPREAD * (own_s + delay_s)
    return expected


def expected_claimed_save_s(
    saves: Mapping[str, Sequence[MeasuredSave]], sizes: Mapping[str, float], finishing: Collection[str]
) -> dict[str, float]:
    """The same where the times are the jobs' own words, which may be lies, and only `sizes` was measured.

    `sizes`: bytes of each job's recent checkpoints on the disk. A job's time then counts for itself alone. What it does
    to another follows from the bytes of both: with even shares, while that one writes its bytes, this one writes no
    more than as many, and no more than its own. A job whose bytes are not known (it never saved, or its disk does not
    answer) delays a save by as long as the save itself.

    A job's saves took longer while others wrote, too; but a lie must not make that appear larger than it was, or the
    job would be asked to save too late. So others are believed to have written for no longer than their bytes take on a
    very slow disk, and a save alone is taken to need no less than its share by bytes would say.
    """
    every = [(job, save) for job, own in saves.items() for save in own]
    believed = [min(save.save_s, sizes.get(job, 0.0) / SLOWEST_BYTES_A_SECOND) for job, save in every]
    unshared = iter(unshared_saves_s([save for _, save in every], believed))
    on_disk = _Shares([size for job, size in sizes.items() if saves.get(job)])
    ends = set(finishing)
    beside = _Shares([sizes[job] for job in ends if job in sizes])
    unmeasured = len(ends) - len(beside)
    expected = {}
    for name, own in saves.items():
        if not own:
            continue
        size = sizes.get(name)
        others = on_disk.sum_for(size) - 1.0 if size is not None else 0.0
        own_s = max(max(alone_s, save.save_s / (1.0 + others)) for save, alone_s in zip(own, unshared, strict=False))
        delays = beside.sum_for(size) + unmeasured - (name in ends)
        expected[name] = SAVE_SPREAD * own_s * (1.0 + delays)
    return expected


class _Shares:
    """By how much jobs with these sizes delay a save, as parts of its own time."""

    def __init__(self, sizes: Sequence[float]) -> None:
        self._sizes = sorted(sizes)
        self._sums = [0.0, *accumulate(self._sizes)]

    def __len__(self) -> int:
        return len(self._sizes)

    def sum_for(self, size: float | None) -> float:
        """The sum of min(1, theirs / `size`), itself included if it is one of them; 1 for each if that is not known."""
        if not size:
            return float(len(self._sizes))
        smaller = bisect_right(self._sizes, size)
        return self._sums[smaller] / size + len(self._sizes) - smaller
