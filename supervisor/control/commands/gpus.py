"""The commands `gpus` and `gpu_return`: the GPUs of this host, what is wrong with them, and which are left out."""

import time
from dataclasses import dataclass
from typing import Annotated

from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.core.gpus.decisions import GpuUse
from supervisor.core.gpus.guard import Guard
from supervisor.core.gpus.health import GpuHealth, as_gpu
from supervisor.core.gpus.records import WEEKS_S, GpuRecord, last_fault


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """A GPU. `state`: ok, left out, or in error; `trouble`: why it is not ok.

    `used_by`: jobs that run and may use it, by their CUDA_VISIBLE_DEVICES. `last_fault`: the last one, in words;
    `faults`: their number in four weeks. `left_out`: why no job gets it, and `left_out_wall_at` since when; `action`:
    what the operator has to do about that.
    """

    index: int | None
    uuid: str
    address: str
    name: str
    used_by: tuple[str, ...]
    state: str
    trouble: str | None
    last_fault: str | None
    last_fault_wall_at: float | None
    faults: int
    left_out: str | None
    left_out_wall_at: float | None
    action: str | None


@dataclass(frozen=True, slots=True)
class GpusAnswer:
    """All GPUs that were ever seen here. `is_watched`: whether faults are looked for; `troubles`: what keeps that from
    being done, or all GPUs from being used. `acts`: False if faults are only reported."""

    gpus: tuple[GpuAnswer, ...]
    is_watched: bool
    troubles: tuple[str, ...]
    acts: bool


@dataclass(frozen=True, slots=True)
class GpuReturnRequest:
    """`gpu`: the id of the GPU, or the beginning of one, or its PCI address."""

    gpu: Annotated[str, {"maxLength": 100}]


@dataclass(frozen=True, slots=True)
class GpuReturned:
    """The GPU that may be used again, by its id or else its address."""

    gpu: str


async def gpus(context: CommandContext) -> GpusAnswer:
    """Lists the GPUs of this host, their faults, and which are left out; asks the driver only before the first job."""
    await context.gpus.start_once()
    await context.gpus.await_first_list()
    return answer_of(context)


def answer_of(context: CommandContext) -> GpusAnswer:
    """What is known of all GPUs at this moment."""
    guard, uses = context.gpus.guard, context.gpus.uses()
    listed = {gpu.uuid or gpu.address: gpu for gpu in guard.listed}
    keys = [*listed, *(key for key in guard.records.gpus if key not in listed)]
    sources = context.gpus.sources
    troubles = (guard.host_fault, context.gpus.hangs, sources.kernel_log, sources.nvml)
    return GpusAnswer(
        tuple(_gpu(guard, key, listed.get(key), uses) for key in keys),
        context.gpus.is_started,
        tuple(trouble for trouble in troubles if trouble),
        guard.acts,
    )


def _gpu(guard: Guard, key: str, gpu: GpuHealth | None, uses: list[GpuUse]) -> GpuAnswer:
    record = guard.records.gpus.get(key, GpuRecord(key))
    left_out = record.left_out
    trouble = as_gpu(gpu, None).trouble if gpu is not None else "it is not there"
    last = last_fault(record)
    recent = [past for past in record.faults if time.time() - past.wall_at < WEEKS_S]
    return GpuAnswer(
        index=gpu.index if gpu is not None else record.index,
        uuid=record.uuid,
        address=(gpu.address if gpu is not None else "") or record.address,
        name=(gpu.name if gpu is not None else "") or record.name,
        used_by=tuple(sorted(use.program for use in uses if guard.is_used_by(use, key))),
        state="left out" if left_out is not None else "in error" if trouble is not None else "ok",
        trouble=left_out.text if left_out is not None else trouble,
        last_fault=last[1] if last is not None else None,
        last_fault_wall_at=last[0] if last is not None else None,
        faults=len(recent),
        left_out=left_out.text if left_out is not None else None,
        left_out_wall_at=left_out.since_wall_at if left_out is not None else None,
        action=str(left_out.remedy) if left_out is not None and left_out.remedy is not None else None,
    )


async def gpu_return(context: CommandContext, request: GpuReturnRequest) -> GpuReturned:
    """Lets jobs use a GPU again that was left out; they get it with their next start."""
    records = context.gpus.guard.records.gpus
    wanted = request.gpu
    matches = [
        key for key, record in records.items() if wanted in (key, record.address) or (wanted and key.startswith(wanted))
    ]
    if wanted in records:
        matches = [wanted]
    if not matches:
        raise CommandError(Code.BAD_NAME, f"no GPU {wanted!r:.100} was seen here; `supervisorctl gpus` lists all")
    if len(matches) > 1:
        raise CommandError(
            Code.BAD_ARGUMENTS, f"{wanted!r:.100} is the beginning of {len(matches)} ids; write more of it"
        )
    if not context.gpus.give_back(matches[0]):
        raise CommandError(Code.NOT_RUNNING, f"{matches[0]} is not left out")
    return GpuReturned(matches[0])
