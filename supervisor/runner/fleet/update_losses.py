"""Whether applying a new configuration would lose steps of a job, or end it for good. Jobs that train save before, and
train on.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.program.facts import ALIVE
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.processes import credentials
from supervisor.protocol.checkpoints.account import ReportedCheckpoint, SeenDirectory, find_loss
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.starting import start_obstacle
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.saving import save_and_train_on

LOOK_TIMEOUT_S = 10.0  # at a directory of a new section; a file system that is away may never answer


async def find_losses(
    runners: Iterable[Runner], configured: Mapping[str, ProgramConfig], services: Services
) -> dict[str, str]:
    """Why applying `configured` to these programs would lose steps, or end training for good, by job."""
    jobs = list(runners)
    losses = await asyncio.gather(*(_find_loss(runner, configured.get(runner.name), services) for runner in jobs))
    return {runner.name: loss for runner, loss in zip(jobs, losses, strict=True) if loss is not None}


async def _find_loss(runner: Runner, new: ProgramConfig | None, services: Services) -> str | None:
    stays = f"{runner.name} goes on under its old section"
    if new is not None and runner.config.job is not None and runner.state in ALIVE:
        obstacle = await _find_obstacle(new, services)
        if obstacle is not None:
            remedy = f"update --discard {runner.name} applies it as it is"
            return f"cannot apply the section of {runner.name}: {obstacle}; {remedy}; {stays}"
    if new is not None and new.job is not None:
        missing = await _find_missing_newest(runner, new, new.job, services.checkpoints)
        if missing is not None:
            return f"{missing}; {stays}"
    if (why := await save_and_train_on(runner, "update")) is None:
        return None
    begins = 0 if runner.progress is None else runner.progress.safe_step
    remedy = f"update --discard {runner.name} applies it and goes on from step {begins}"
    return f"{why}; {stays}; {remedy}"


async def _find_obstacle(program: ProgramConfig, services: Services) -> str | None:
    """Why a job that is stopped for its new section could not be started again; None if nothing is seen."""
    folder = program.directory or Path(program.command[0]).parent
    look = partial(start_obstacle, program, services.environment)
    try:
        return await asyncio.wait_for(services.log_reads.run_for_folder(folder, look), LOOK_TIMEOUT_S)
    except TimeoutError:
        return f"{folder} did not answer within {LOOK_TIMEOUT_S:g} s"
    except RuntimeError as failure:  # the host has no thread to spare
        return f"cannot look at {folder}: {failure}"


async def _find_missing_newest(
    runner: Runner, program: ProgramConfig, job: JobConfig, store: CheckpointStore
) -> str | None:
    """Why the job could not go on from its newest checkpoint in its new checkpoint_dir; None if it can."""
    newest, directory, old = runner.facts.account.newest, str(job.checkpoint_dir), runner.config.job
    if newest is None or newest.directory == directory or _has_mirrored(runner, job, newest):
        return None
    if old is not None and old.checkpoint_dir == job.checkpoint_dir:
        return None  # whatever is missing there is not for this update to say
    if program.user is not None:
        await credentials.look_up(program.user)
    refusal = f"cannot apply the section of {runner.name}"
    try:
        look = store.look(job.checkpoint_dir, user=program.user, expected=newest.name)
        seen = await asyncio.wait_for(look, LOOK_TIMEOUT_S)
    except TimeoutError:
        return f"{refusal}: checkpoint_dir {directory} did not answer within {LOOK_TIMEOUT_S:g} s"
    except (OSError, RuntimeError) as error:
        return f"{refusal}: cannot look at checkpoint_dir {directory}: {getattr(error, 'strerror', None) or error}"
    place = SeenDirectory(directory, seen.highest_step, seen.mount, seen.passed_over)
    loss = find_loss(newest, place, refusal, f"update --discard {runner.name} applies it as it is")
    return None if loss is None else loss.text


def _has_mirrored(runner: Runner, job: JobConfig, newest: ReportedCheckpoint) -> bool:
    """Whether the job's mirror, which its new section names too, has the newest checkpoint."""
    mirror, old = runner.mirror, runner.config.job
    is_same = old is not None and old.mirror == job.mirror
    return is_same and mirror is not None and mirror.newest is not None and mirror.newest.step >= newest.step
