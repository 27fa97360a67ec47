"""What the GPUs of a silent job do, by samples of their load over half a minute.

NVML's numbers are means over at most the last second. Utilization says for how much of it any kernel ran, of memory for
how much of it memory was read or written. A kernel of NCCL's that waits for another rank runs all the time, touches
nearly no memory and draws constant power; one that computes draws more and less as it goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from supervisor.protocol.wire.limits import Range, Text

MIN_SAMPLES = 4
SPINS_FROM = 99  # percent
NO_MEMORY = 1  # percent
STEADY = 0.03  # of the highest power: below what the sensor can tell apart

Percent = Annotated[int, Range(0, 100)]


class GpuActivity(StrEnum):
    """What the GPUs of a job did between the looks."""

    IDLE = "idle"
    BUSY = "busy"
    SPINNING = "spinning"  # one kernel at constant power, without memory traffic: it waits for another rank


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One GPU in the last second. `busy`, `memory_busy`: percent of the time; `power_mw`: milliwatts."""

    uuid: Annotated[str, Text(96)]
    busy: Percent
    memory_busy: Percent
    power_mw: Annotated[int, Range(0, 1 << 31)] | None = None


def judge_activity(looks: Sequence[Sequence[GpuLoad] | None]) -> GpuActivity | None:
    """What the GPUs did, all together, by a sample of each at each look; None if that is not known.

    A GPU that computes makes all of them busy, and one that spins makes idle ones spin.
    """
    samples = [{load.uuid: load for load in look} for look in looks if look]
    if (
        len(samples) < len(looks)
        or len(samples) < MIN_SAMPLES
        or any(look.keys() != samples[0].keys() for look in samples)
    ):
        return None
    activities = {_activity([look[uuid] for look in samples]) for uuid in samples[0]}
    by_rank = (GpuActivity.BUSY, GpuActivity.SPINNING, GpuActivity.IDLE)
    return next(activity for activity in by_rank if activity in activities)


def _activity(loads: Sequence[GpuLoad]) -> GpuActivity:
    if all(load.busy == 0 for load in loads):
        return GpuActivity.IDLE
    powers = [load.power_mw for load in loads if load.power_mw is not None]
    is_steady = len(powers) == len(loads) and max(powers) - min(powers) <= STEADY * max(powers)
    spins = all(load.busy >= SPINS_FROM and load.memory_busy <= NO_MEMORY for load in loads)
    return GpuActivity.SPINNING if spins and is_steady else GpuActivity.BUSY
