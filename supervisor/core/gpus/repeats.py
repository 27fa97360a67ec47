"""What a fault means where there was one before: of the same GPU, or of the same program on another one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from supervisor.core.gpus.faults import Fault, Follows, Remedy
from supervisor.core.gpus.records import GpuRecord, LeftOut, PastFault

DAY_S = 86400.0
SUSPECT_STEPS = 3  # a program's own kind of fault at so many steps, on one GPU of several, is the GPU's
MAX_TEXT = 500  # characters of why a GPU is left out
_RANKS = (None, Remedy.INSPECT, Remedy.RESET, Remedy.REBOOT, Remedy.REPLACE)


def is_within(limit_s: float, before: float, now: float) -> bool:
    """Whether something was so lately. What lies farther ahead was noted while the clock was wrong."""
    return abs(now - before) < limit_s


def what_follows(
    fault: Fault, record: GpuRecord, past: PastFault, others: Sequence[GpuRecord] | None
) -> tuple[Follows, Remedy | None]:
    """What follows, as what was seen of this GPU before may say more than the table.

    `others`: the other GPUs of the program that has the fault; None if no program is known.
    """
    lately = [old for old in record.faults if old.fault == fault.key and is_within(DAY_S, old.wall_at, past.wall_at)]
    if fault.retries is not None and len(lately) >= fault.retries:
        return Follows.LEAVE_OUT, Remedy.RESET
    if not (fault.is_programs and others):
        return fault.follows, fault.remedy
    steps = {old.step for old in (*lately, past) if old.program == past.program and old.step is not None}
    is_elsewhere = any(
        old.fault == fault.key and old.program == past.program for other in others for old in other.faults
    )
    if not is_elsewhere and len(steps) >= SUSPECT_STEPS:
        return Follows.LEAVE_OUT, Remedy.INSPECT
    return fault.follows, fault.remedy


def is_repeated_elsewhere(others: Iterable[GpuRecord], past: PastFault) -> bool:
    """Whether the program had the same fault at the same step on another GPU; steps are reported one late."""
    if past.step is None or past.program is None:
        return False
    return any(
        old.fault == past.fault
        and old.program == past.program
        and old.step is not None
        and abs(old.step - past.step) <= 1
        and is_within(DAY_S, old.wall_at, past.wall_at)
        for record in others
        for old in record.faults
    )


def worse_of(before: LeftOut | None, now: LeftOut) -> LeftOut:
    """Why a GPU is left out, if it was before: a state says more than a line, and the hook is asked for more only."""
    if before is None:
        return now
    remedy = max(before.remedy, now.remedy, key=_RANKS.index)
    is_asked = before.is_asked and remedy is before.remedy
    more = now if now.is_state or remedy is not before.remedy else before
    text = now.text if before.text in now.text else f"{before.text}; {now.text}" if more is now else before.text
    return replace(
        more,
        text=text[:MAX_TEXT],
        since_wall_at=before.since_wall_at,
        remedy=remedy,
        is_urgent=before.is_urgent or now.is_urgent,
        is_asked=is_asked,
        programs=tuple(sorted({*before.programs, *now.programs})),
    )
