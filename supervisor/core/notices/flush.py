"""When to ask for a checkpoint that has to be on the disk before the host is gone, and how long it is going to take.

Where each number comes from: `gone_at` is the notice's deadline; `step_s` is what the worker says in `progress`, the
slowest of the last few; a save's time is `save_s` of `committed`, from the decision to the last sync, so what it
measures is this job on this disk; the margin is `notice_margin` of the configuration. Unknown is None, and whoever
does not know how long a save takes asks at once. Between two steps a loop may also evaluate or wait for data: its
pauses are what passes between two words of progress.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SAVE_SPREAD = (
    1.2  # the next save may be slower than the slowest of the last few: page cache, neighbours on the same disk
)
PAUSE_MEMORY_S = (
    3600.0  # for so long a pause is remembered: evaluations come every few minutes, seldom less than hourly
)
RECENT_COUNT = (
    8  # saves and steps that are remembered: enough to meet a slow one, few enough to follow a job that changes
)


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
    """`save` without the time it waited for the one before it of the same job: those are written one by one.

    So much need not be planned for. Where the last flush has to wait for a save that began shortly before, that save is
    on the disk in its place, and little is lost.
    """
    waited_s = 0.0 if before is None else min(max(0.0, before.ended_at - save.began_at), save.save_s)
    return MeasuredSave(save.ended_at, save.save_s - waited_s)


@dataclass(frozen=True, slots=True)
class Pause:
    """A time without a step: it ended at `ended_at` (monotonic seconds) and took `pause_s`."""

    ended_at: float
    pause_s: float


def remember_pause(pauses: Sequence[Pause], pause: Pause) -> tuple[Pause, ...]:
    """What has to be remembered to know the longest pause of the last hour, at any later time: longest first."""
    since = pause.ended_at - PAUSE_MEMORY_S
    return (*(each for each in pauses if each.ended_at > since and each.pause_s > pause.pause_s), pause)


def unshared_save_s(save: MeasuredSave, others: Iterable[MeasuredSave]) -> float:
    """How long `save` had taken with the disk to itself. `others`: other jobs' saves on that disk.

    Saves that go on at the same time are taken to share the disk evenly: while n of them write, each gets 1/n.
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

    `saves`: recent saves on one disk by job. With even shares a job waits for each other one no longer than that
    one's save takes, nor longer than its own.
    """
    alone = {job: max(unshared_save_s(each, _others(job, saves)) for each in own) for job, own in saves.items() if own}
    return {
        name: SAVE_SPREAD * (own_s + sum(min(own_s, alone.get(job, own_s)) for job in set(finishing) - {name}))
        for name, own_s in alone.items()
    }
