"""The account of a job's progress in its facts; `protocol/checkpoints/account.py` says what it is for.

`facts.account` changes here only: a commit raises it, and an attempt that has restored an older checkpoint lowers it,
with the reason in `facts.current.older`. An attempt that dies before it has restored anything changes nothing, so the
next one is judged anew. The runner hands each change to the ledger before it carries out what follows from it, and
answers to commands wait until it is on the disk.
"""

from dataclasses import replace

from supervisor.core.program.events import CheckpointMirrored, CheckpointSelected, StorageSeen
from supervisor.core.program.facts import ProgramFacts
from supervisor.core.program.saved_progress import SavedProgress
from supervisor.protocol.checkpoints.account import (
    Decisions,
    Loss,
    Newest,
    Older,
    ReportedCheckpoint,
    SeenDirectory,
    StatedReason,
    Verdict,
    find_loss,
    is_unmounted,
    judge,
    known_mount,
)
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.layout import CheckpointName, own_name, parse_name


def judge_start(facts: ProgramFacts, chosen: CheckpointSelected) -> Verdict:
    """Whether the attempt may begin from what was chosen."""
    place = _place(facts, chosen)
    if place is None:
        return Newest()
    decisions = Decisions(
        facts.begin_at,
        facts.restore_below_step,
        facts.suspects.avoid,
        tuple(dict(facts.suspects.unfit)),
        chosen.stated,
        facts.diverged_attempt,
    )
    refusal, remedy = _words(facts, place)
    is_own = chosen.path is None or own_name(chosen.path, facts.policy.checkpoint_dir) is not None
    return judge(facts.account.newest, chosen.step, place, decisions, refusal, remedy, is_own)


def stated_reason(facts: ProgramFacts, verdict: Verdict) -> StatedReason | None:
    """What the other nodes of a gang are told of a start from an older checkpoint; None: it is the newest."""
    newest = facts.account.newest
    if not isinstance(verdict, Older) or newest is None or not facts.policy.is_gang:
        return None
    return StatedReason(verdict.because, verdict.text, newest.step)


def record_passed_over(facts: ProgramFacts, verdict: Verdict, chosen: CheckpointSelected) -> None:
    """Records that the store may have a newer checkpoint than what was chosen, and why that is so is known.

    The account is lowered for that, and later starts, or the next daemon, would take it for another host's.
    """
    newest, before = facts.account.newest, parse_name(facts.passed_over or "")
    if isinstance(verdict, Older) and newest is not None and verdict.because is not OlderBecause.LEFT_BEHIND:
        names = (before, parse_name(newest.name))
        facts.passed_over = max((str(name) for name in names if name is not None), default=None)
    elif before is not None and (chosen.step or 0) >= before.step:
        facts.passed_over = None


def loss_at(facts: ProgramFacts, seen: StorageSeen) -> Loss | None:
    """What is missing from the job's directory, as a look at it found; None if nothing is, or the next attempt asks the
    store for it."""
    place, newest = _place(facts, seen), facts.account.newest
    if place is None or newest is None:
        return None if seen.store_error is None else Loss(seen.store_error, waits=True)
    answers = seen.has_store and seen.store_error is None
    if answers and newest.mirror is not None and not is_unmounted(newest, place):
        return None
    return find_loss(newest, place, *_words(facts, place))


def record_start(facts: ProgramFacts) -> None:
    """Records where the attempt has begun: the account is never behind that, and falls to it for a reason.

    A worker reports this again, to a daemon that adopts it or with more to say. What it has committed since stays.
    """
    if facts.current.saved_step is not None or _is_own_commit(facts):
        return
    directory, before, chosen = directory_of_attempt(facts), facts.account.newest, facts.current.checkpoint
    own = None if chosen is None else own_name(chosen.path, directory)
    if own is not None and directory is not None:
        if before is not None and own.step < before.step and facts.current.older is None:
            return
        name = str(own)
        known = before if before is not None and before.name == name else ReportedCheckpoint(own.step, name, directory)
        # other ranks of a gang have other attempts than the one in the name
        since = None if facts.policy.is_gang else facts.attempt
        mount = known_mount(facts.mount, directory, before)
        restored = replace(known, directory=directory, mount=mount, attempt=own.attempt, since=since)
        facts.account = facts.account.changed_to(restored)
    elif facts.current.older is not None:
        facts.account = facts.account.changed_to(None)  # anew, or from a checkpoint that is not the job's own


def record_begun(facts: ProgramFacts) -> None:
    """Records that the present attempt has begun to train, which carries out what an operator chose before it was
    launched: a later start that did it again would give up what was trained since.
    """
    if facts.begin_since is not None and facts.begin_since <= facts.attempt:
        facts.begin_at = facts.begin_since = facts.set_aside = None


def record_restored(facts: ProgramFacts) -> None:
    """Records that the present attempt has restored something, perhaps under an earlier daemon: what was decided about
    its start is done, though the ledger may not say so. What an operator has chosen since is for the next one."""
    record_begun(facts)
    facts.restore_below_step = None


def is_to_begin_again(facts: ProgramFacts) -> bool:
    """Whether an operator has chosen where the next attempt begins, and the present one was not launched for that: then
    it follows also where training is complete. The ranks of a gang begin and end together."""
    is_order = facts.begin_at is not None and (facts.begin_since is None or facts.begin_since > facts.attempt)
    return is_order and facts.wanted and not (facts.closing or facts.policy.is_gang)


def _is_own_commit(facts: ProgramFacts) -> bool:
    """Whether the newest checkpoint is of the present attempt, also if what an earlier daemon knew of it is lost.

    In a gang no daemon adopts a worker, and checkpoints have the chief's attempt, which was another one before.
    """
    newest = facts.account.newest
    return newest is not None and newest.attempt == facts.attempt and not facts.policy.is_gang


def directory_of_attempt(facts: ProgramFacts) -> str | None:
    """Where the worker of the present attempt, or of the last one, saves; None for a plain program.

    It may have been started by an earlier daemon, and its section names another directory since. The account says where
    a checkpoint is, so that the next start waits instead of taking it for deleted from the new one.
    """
    return facts.current.checkpoint_dir if facts.current.checkpoint_dir is not None else facts.policy.checkpoint_dir


def record_commit(facts: ProgramFacts, step: int, wall_at: float | None = None, name: str | None = None) -> None:
    """Records a commit of the present attempt. `name`: of the checkpoint, where that is not the attempt's own."""
    _record_commit_in(directory_of_attempt(facts), facts, step, wall_at, name)


def record_salvaged(facts: ProgramFacts, step: int, wall_at: float, name: str) -> None:
    """Records a checkpoint that the daemon had written of what a worker left in memory: into the present directory."""
    _record_commit_in(facts.policy.checkpoint_dir, facts, step, wall_at, name)


def _record_commit_in(
    directory: str | None, facts: ProgramFacts, step: int, wall_at: float | None, name: str | None
) -> None:
    before = facts.account.newest
    if directory is None or (before is not None and before.step > step):
        return
    stated = None if name is None else parse_name(name)
    own = stated if stated is not None and stated.step == step else CheckpointName(step, facts.attempt)
    mount = known_mount(facts.mount, directory, before)
    committed = ReportedCheckpoint(step, str(own), directory, mount, own.attempt, wall_at, since=own.attempt)
    if before is not None and before.name == committed.name:  # the mirror had it first, or it is repeated
        since = committed.since if before.since is None else before.since
        wall_at = committed.wall_at if before.wall_at is None else before.wall_at
        committed = replace(committed, mirror=before.mirror, epoch=before.epoch, since=since, wall_at=wall_at)
    facts.account = facts.account.changed_to(committed)


def record_mirrored(facts: ProgramFacts, mirrored: CheckpointMirrored) -> None:
    """Records what the mirror has: a later start has to begin from that, also if this host never had it."""
    directory, before, name = facts.policy.checkpoint_dir, facts.account.newest, parse_name(mirrored.name)
    if directory is None or name is None or (before is not None and before.step > name.step):
        return
    known = before
    if known is None or known.name != mirrored.name:
        mount = known_mount(None, directory, before)
        known = ReportedCheckpoint(name.step, mirrored.name, directory, mount, name.attempt)
    facts.account = facts.account.changed_to(replace(known, mirror=mirrored.url, epoch=mirrored.epoch))


def saved_progress(facts: ProgramFacts, ended_by: str | None = None) -> SavedProgress | None:
    """The progress of the present attempt, or of the last one; None for a plain program.

    `ended_by`: how its process ended, in words, if that is known; it is the reason where nothing else is.
    """
    if not facts.policy.is_job:
        return None
    current, newest, set_aside = facts.current, facts.account.newest, facts.set_aside
    if set_aside is not None and (newest is None or not set_aside or newest.step > set_aside):  # it is in abandoned/
        safe_step, checkpoint = set_aside, None
    elif newest is not None:
        safe_step, checkpoint = newest.step, newest.name
    elif current.saved_step is not None:
        safe_step, checkpoint = current.saved_step, str(CheckpointName(current.saved_step, facts.attempt))
    else:
        safe_step, checkpoint = current.start_step or 0, None
    why = current.flush_failure
    if why is None and current.save_error is not None:
        why = f"the save failed: {current.save_error}"
    is_known = current.step is not None or current.flush_failure is None
    known = (step for step in (current.step, current.saved_step) if step is not None and is_known)
    step = max(known, default=None)
    return SavedProgress(facts.attempt, step, safe_step, checkpoint, why or ended_by, is_known)


def _place(facts: ProgramFacts, seen: CheckpointSelected | StorageSeen) -> SeenDirectory | None:
    directory = facts.policy.checkpoint_dir
    return None if directory is None else SeenDirectory(directory, seen.highest_step, seen.mount, seen.passed_over)


def _words(facts: ProgramFacts, place: SeenDirectory) -> tuple[str, str]:
    """How a text about a loss begins and ends."""
    name = facts.policy.name
    left, newest = place.highest_step, facts.account.newest
    onward = "" if left is None else f"to go on from what is left, supervisorctl start --from-step {left} {name}; "
    if newest is not None and newest.mirror is not None and is_unmounted(newest, place):
        start = f"supervisorctl start --from-step {newest.step} {name}"
        onward = f"to have it fetched from its mirror to where the folder is now, {start}; "
    is_moved = newest is not None and newest.directory != place.directory  # then the text has a remedy of its own
    back = "" if is_moved else "mount the disk or put the folder back, and it goes on by itself; "
    remedy = f"{back}{onward}to give up what was trained, supervisorctl start --from-scratch {name}"
    return f"cannot train {name}", remedy
