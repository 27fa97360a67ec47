"""The commands about what a job has written: `checkpoint`, `checkpoints` and `export`."""

import time
from dataclasses import dataclass

from supervisor.control.base.context import CommandContext, ProgramName, find_job
from supervisor.control.base.errors import Code, CommandError
from supervisor.core.program import events
from supervisor.core.program.facts import UP
from supervisor.protocol.checkpoints.listing import ListedCheckpoint
from supervisor.protocol.wire.messages import Committed, SaveFailed
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.saving import flush_answer


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """The checkpoint that `checkpoint` asked for. `save_s`: how long writing it took.

    `upload_s`: with `durable = remote`, how long it then took until it was in the mirror; null where nobody waits.
    """

    checkpoint: str
    step: int
    size_bytes: int
    save_s: float
    upload_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelExported:
    """The model that `export` asked for, as it was at `step`."""

    path: str
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointsRequest:
    """`verify`: read every byte of every checkpoint and compare it with its manifest."""

    name: str
    verify: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointList:
    """A job's checkpoints, newest first, then those in quarantine.

    `mirror`: the names of those in its mirror, newest first, as far as the daemon knows; null without a mirror.
    """

    checkpoints: tuple[ListedCheckpoint, ...]
    mirror: tuple[str, ...] | None


async def checkpoint(context: CommandContext, request: ProgramName) -> CheckpointWritten:
    """Makes a job write a checkpoint now and train on; returns when it is on the disk.

    With `durable = remote`, when it is in the mirror as well.
    """
    runner, _ = find_job(context, request.name)
    await context.programs.until_adoption_settled(runner)
    runner.post(events.FlushRequested("operator"))
    if runner.flush is None:
        raise _not_training(runner)
    flush_id = runner.flush.id
    answer: Committed | SaveFailed = await runner.wait_until(lambda: flush_answer(runner, flush_id))
    if isinstance(answer, SaveFailed):
        raise CommandError(Code.FAILED, answer.error)
    upload_s = await _wait_for_mirror(runner, answer.checkpoint)
    await context.ledger.wanted.until_recorded()  # so that also the next daemon knows that it has to be there
    return CheckpointWritten(answer.checkpoint, answer.step, answer.size_bytes, answer.save_s, upload_s)


async def _wait_for_mirror(runner: Runner, name: str) -> float | None:
    """How long it took until the job's mirror had a checkpoint (s); None if nobody waits for that."""
    mirror, began_at = runner.mirror, time.monotonic()
    if mirror is None or not mirror.is_awaited:
        return None
    failures = mirror.failures
    mirror.retry_now()
    await runner.wait_until(
        lambda: True if mirror.has(name) or not mirror.waits or mirror.failures > failures else None
    )
    if not mirror.has(name):
        why = mirror.error or "it was deleted before it was uploaded"
        raise CommandError(Code.FAILED, f"{name} is on this host's disk but not in the mirror: {why}")
    return time.monotonic() - began_at


async def export(context: CommandContext, request: ProgramName) -> ModelExported:
    """Makes a job export its model, as it is now, to export_dir and train on; returns when it is there."""
    runner, job = find_job(context, request.name)
    if job.export_dir is None:
        text = f"{runner.name} has no folder to export to; set export_dir in its section"
        raise CommandError(Code.FAILED, text)
    await context.programs.until_adoption_settled(runner)
    answer = await runner.current.export() if runner.state in UP else None
    if answer is None:
        raise _not_training(runner)
    if answer.path is None:
        raise CommandError(Code.FAILED, answer.error or "the worker gave no reason")
    return ModelExported(answer.path, answer.step)


def _not_training(runner: Runner) -> CommandError:
    return CommandError(Code.NOT_RUNNING, f"{runner.name} is not training now (its state is {runner.state})")


async def checkpoints(context: CommandContext, request: CheckpointsRequest) -> CheckpointList:
    """Lists a job's checkpoints, newest first, each verified unless told otherwise; then those in quarantine."""
    runner, job = find_job(context, request.name)
    user = runner.config.user
    try:
        listed = await context.checkpoints.list_checkpoints(job.checkpoint_dir, verify=request.verify, user=user)
    except OSError as error:
        raise CommandError(Code.FAILED, f"cannot list {job.checkpoint_dir}: {error.strerror}") from error
    mirror = runner.mirror
    return CheckpointList(tuple(listed), None if mirror is None else mirror.names)
