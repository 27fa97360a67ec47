"""Whether applying a new configuration would lose steps of a job, or end a program for good. Jobs that train save
before, and train on.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.program.facts import ALIVE
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.mirror.client import MirrorError
from supervisor.host.processes import credentials
from supervisor.protocol.checkpoints.account import ReportedCheckpoint, SeenDirectory, find_loss
from supervisor.runner.attempt.services import Services
from supervisor.runner.attempt.starting import LOOK_TIMEOUT_S, find_restart_obstacle
from supervisor.runner.mirror.asking import find_other_run
from supervisor.runner.program.retiring import until_memory_is_written
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.saving import save_and_train_on


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a new configuration would do to programs, by name. `losses`: why applying it would lose steps, or end the
    program for good, and what follows. `remarks`: of others, what could not be found out.
    """

    losses: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)


async def foresee(
    runners: Iterable[Runner],
    configured: Mapping[str, ProgramConfig],
    services: Services,
    *,
    by_next_daemon: bool = False,
) -> Foreseen:
    """What applying `configured` to programs would do. `by_next_daemon`: it is applied nevertheless, after a reload."""
    programs, remarks = list(runners), dict[str, str]()
    losses = await asyncio.gather(
        *(_find_loss(runner, configured, services, by_next_daemon, remarks) for runner in programs)
    )
    found = {runner.name: loss for runner, loss in zip(programs, losses, strict=True) if loss is not None}
    return Foreseen(found, remarks)


async def _find_loss(
    runner: Runner,
    configured: Mapping[str, ProgramConfig],
    services: Services,
    by_next_daemon: bool,
    remarks: dict[str, str],
) -> str | None:
    """Why it would be one; None if it would not. `remarks`: gets what could not be found out."""
    new = configured.get(runner.name)
    follows = "the next daemon applies its section"
    if not by_next_daemon:
        follows = f"{runner.name} goes on under its old section; update --discard {runner.name} applies it"
    if not by_next_daemon and services.gang is not None and services.gang.nodes > 1 and runner.state not in ALIVE:
        alone = "no worker of it runs on this node now, and the others of the gang would train on with their section"
        remedy = "run update on a node that trains, and all begin again with the file as it is then"
        return f"cannot apply the section of {runner.name}: {alone}; {remedy}; {follows}"
    obstacle = None if new is None or runner.state not in ALIVE else await find_restart_obstacle(new, services)
    if obstacle is not None:
        return f"cannot apply the section of {runner.name}: {obstacle}; {follows} as it is"
    if new is None and (heir := _find_barred_heir(runner, configured)) is not None:
        return f"cannot remove {runner.name}: {heir}; {follows} as it is"
    if new is not None and new.job is not None:
        missing = await _find_missing_newest(runner, new, new.job, services.checkpoints, f"{follows} as it is")
        if missing is not None:
            return missing
    if not keeps_memory(runner.config, new) and (left := await left_in_memory(runner)) is not None:
        return f"cannot apply the section of {runner.name}: {left}; {follows} as it is, without them"
    if (why := await save_and_train_on(runner, "update")) is None:
        other = None if new is None else await _find_other_run(runner, new, services, remarks)
        return None if other is None else f"cannot apply the section of {runner.name}: {other}; {follows} as it is"
    if new is None and by_next_daemon:
        return f"{why}; the next daemon ends it"
    begins = 0 if runner.progress is None else runner.progress.safe_step
    return f"{why}; {follows} and goes on from step {begins}"


async def _find_other_run(
    runner: Runner, new: ProgramConfig, services: Services, remarks: dict[str, str]
) -> str | None:
    """Why a job that runs would fail once it is stopped, as the mirror of its new section may be of another training.

    None if nothing is seen: one that can't be reached is no reason not to train, but a remark.
    """
    before, after = runner.config.job, new.job
    if before is None or after is None or after.mirror is None or runner.state not in ALIVE or not services.is_chief:
        return None
    if (before.mirror, before.checkpoint_dir) == (after.mirror, after.checkpoint_dir):
        return None
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await find_other_run(new, services.environment)
    except (TimeoutError, MirrorError) as error:
        why = f"did not answer within {LOOK_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else f"failed: {error}"
        remarks[runner.name] = (
            f"{runner.name}: its mirror {after.mirror} {why}, so nobody knows whether it has another training's "
            f"checkpoints; the start asks it once more, for two minutes if it is silent, and then the job trains on "
            f"from its own, and nothing is uploaded until the store answers. If it has others, status says so, and the "
            f"job is FAILED at its next start until you choose"
        )
        return None


def _find_barred_heir(runner: Runner, configured: Mapping[str, ProgramConfig]) -> str | None:
    """Why nothing could go on where a job that trains stops, as that got another name; None if nobody is to, or can."""
    if runner.config.job is None or runner.state not in ALIVE:
        return None
    directory = runner.config.job.checkpoint_dir
    heirs = [program for program in configured.values() if program.job and program.job.checkpoint_dir == directory]
    for program in heirs:
        if program.job is not None and {runner.name, "*"}.isdisjoint(program.job.restore_from_jobs):
            return (
                f"{program.name} has its checkpoint_dir, and may not restore its checkpoints; set restore_from_jobs = "
                f"{runner.name} in the section of {program.name}, or give that a checkpoint_dir of its own"
            )
    return None


def keeps_memory(before: ProgramConfig, after: ProgramConfig | None) -> bool:
    """Whether what a worker of a job left in memory is of use to the job with its new section."""
    if before.job is None or after is None or after.job is None:
        return False
    return (before.job.checkpoint_dir, before.user) == (after.job.checkpoint_dir, after.user)


async def left_in_memory(runner: Runner) -> str | None:
    """What a dead worker left in memory and no disk takes, also if it is tried once more; None if there is nothing."""
    memory, job = runner.memory, runner.config.job
    if memory is None or job is None or memory.unwritten is None:
        return None
    memory.try_again()
    await until_memory_is_written(runner, LOOK_TIMEOUT_S)
    attempt = memory.unwritten
    return None if attempt is None else f"no disk has taken the steps that attempt {attempt} left in memory"


async def _find_missing_newest(
    runner: Runner, program: ProgramConfig, job: JobConfig, store: CheckpointStore, follows: str
) -> str | None:
    """Why the job could not go on from its newest checkpoint in its new checkpoint_dir; None if it can.

    `follows`: what the text ends with.
    """
    newest, directory, old = runner.facts.account.newest, str(job.checkpoint_dir), runner.config.job
    has_new_user = runner.config.user != program.user
    if newest is None or (newest.directory == directory and not has_new_user) or _has_mirrored(runner, job, newest):
        return None
    if old is not None and old.checkpoint_dir == job.checkpoint_dir and not has_new_user:
        return None  # whatever is missing there is not for this update to say
    if program.user is not None:
        await credentials.look_up(program.user)
    refusal = f"cannot apply the section of {runner.name}"
    try:
        look = store.look(job.checkpoint_dir, has_new_user, user=program.user, expected=newest.name)
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            seen = await look
    except TimeoutError:
        return f"{refusal}: checkpoint_dir {directory} did not answer within {LOOK_TIMEOUT_S:g} s; {follows}"
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        who = "" if program.user is None else f" as {program.user}"
        return f"{refusal}: cannot use checkpoint_dir {directory}{who}: {why}; {follows}"
    place = SeenDirectory(directory, seen.highest_step, seen.mount, seen.passed_over)
    loss = find_loss(newest, place, refusal, follows)
    return None if loss is None else loss.text


def _has_mirrored(runner: Runner, job: JobConfig, newest: ReportedCheckpoint) -> bool:
    """Whether the job's mirror, which its new section names too, has the newest checkpoint."""
    mirror, old = runner.mirror, runner.config.job
    is_same = old is not None and old.mirror == job.mirror
    return is_same and mirror is not None and mirror.newest is not None and mirror.newest.step >= newest.step
