"""Whether a job's GPUs can take its next attempt: free of the last one, all there, or enough of them, none in error."""

from collections.abc import Iterable
from dataclasses import dataclass

RECHECK_S = 60.0  # until it is looked at again; a GPU comes back by a reset or a reboot, which take about as long


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its driver reports it. `pids`: processes that hold its memory; `trouble`: what is wrong, or None.

    `uuid` is "" if the driver cannot even name it.
    """

    index: int
    uuid: str
    pids: frozenset[int] = frozenset()
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class GpuVerdict:
    """Whether an attempt may start. `unusable_because`: a GPU is broken; `waits_because`: one is not free.

    `without`: what is wrong with GPUs that the job can do without; `visible` is its CUDA_VISIBLE_DEVICES then.
    """

    unusable_because: str | None = None
    waits_because: str | None = None
    without: str | None = None
    visible: str | None = None


def judge_gpus(
    gpus: Iterable[Gpu], known: Iterable[str], visible: str | None, mine: Iterable[int], least: int | None = None
) -> GpuVerdict:
    """Whether the GPUs of a job allow a start. `known`: the ids of all that were ever seen here; `visible`: the job's
    CUDA_VISIBLE_DEVICES; `mine`: processes of its earlier attempts, dead or dying; `least`: with how many of its GPUs
    it trains if others are missing or broken, None: only with all.
    """
    devices = list(gpus)
    missing = set(known) - {gpu.uuid for gpu in devices}
    chosen = _chosen(visible)
    if chosen is not None:
        devices = [gpu for gpu in devices if _is_in(gpu, chosen)]
        missing = {uuid for uuid in missing if any(_names(word, uuid) for word in chosen)}
    ill = [f"GPU {gpu.index} ({gpu.uuid or 'no id'}): {gpu.trouble}" for gpu in devices if gpu.trouble is not None]
    ill += [f"GPU {uuid} is gone" for uuid in sorted(missing)]
    without = visible_then = None
    sound = [gpu for gpu in devices if gpu.trouble is None]
    if ill and least is not None and len(sound) >= least and not _has_parts(chosen):
        devices, without, visible_then = sound, "; ".join(ill), ",".join(gpu.uuid for gpu in sound)
    elif ill:
        if least is not None:
            ill.append(f"{len(sound)} left, and replicas_min is {least}")
        remedy = "reset it (nvidia-smi --gpu-reset) or restart the host; if it comes back, have it replaced"
        return GpuVerdict(unusable_because=f"{'; '.join(ill)}; {remedy}, or leave it out with CUDA_VISIBLE_DEVICES")
    held = {gpu.index: sorted(gpu.pids & frozenset(mine)) for gpu in devices if gpu.pids & frozenset(mine)}
    if held:
        words = ", ".join(f"GPU {index} by pid {', '.join(map(str, pids))}" for index, pids in held.items())
        why = f"memory of the last attempt is still held: {words}"
        return GpuVerdict(waits_because=why, without=without, visible=visible_then)
    return GpuVerdict(without=without, visible=visible_then)


def chosen_gpus(gpus: Iterable[Gpu], visible: str | None) -> list[Gpu]:
    """Those of them that a job may use, by its CUDA_VISIBLE_DEVICES."""
    chosen = _chosen(visible)
    return [gpu for gpu in gpus if chosen is None or _is_in(gpu, chosen)]


def _has_parts(chosen: list[str] | None) -> bool:
    """Whether the job was given parts of GPUs (MIG), whose ids the driver doesn't list here."""
    return any(word.startswith("MIG-") for word in chosen or ())


def _chosen(visible: str | None) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES up to the first invalid one, as CUDA reads it; None for all GPUs."""
    if visible is None:
        return None
    chosen = []
    for word in (part.strip() for part in visible.split(",")):
        if not (word.isascii() and word.isdecimal()) and not word.startswith(("GPU-", "MIG-")):
            break
        chosen.append(word)
    return chosen


def _is_in(gpu: Gpu, chosen: list[str]) -> bool:
    return str(gpu.index) in chosen or any(_names(word, gpu.uuid) for word in chosen)


def _names(word: str, uuid: str) -> bool:
    """Whether `word` is a prefix of the id, which CUDA accepts."""
    return word.startswith("GPU-") and uuid.startswith(word)
