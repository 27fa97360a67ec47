"""The account of a job's progress: the newest checkpoint that anybody was told of, and whether a start may begin from
another one. Pure.

Why there is one account
------------------------
Many parts choose where a start begins: the selection in the directory, a rollback, suspects, an operator's request, the
mirror, `initial_checkpoint`. Each may choose an older checkpoint for a good reason, and each could do so by mistake, as
when a disk is not mounted, a folder was moved, or `checkpoint_dir` has another letter. So none of them decides alone.
A job has one record of the newest checkpoint that was ever reported as committed (`ReportedCheckpoint`). It belongs to
the job, not to a directory, and whatever was chosen is held against it, in `judge`:

    as new as the newest, or newer          Newest: the start goes on
    older, for one of OlderBecause          Older: it goes on, the reason is said, and the account is what was chosen
    older, and nothing explains it          Unexplained: nothing trains before the storage is back or a person decides

A reason needs evidence. *operator*: a start request named the step. *rolled-back*, *does-not-fit*, *damaged* and
*left-behind*: the newest checkpoint, or one that took its place, is in quarantine, which says why.
*unreadable*: it is there, and was waited for.
*suspect*: it, or one that took its place, is there, and attempts keep dying from it; a suspect from before it was saved
says nothing of it. *deleted*: the same directory on the same file system holds older ones only, so somebody deleted the
newest, or moved it; an unmounted disk, or a copy, is on another file system.

Nothing else compares the step of a start with earlier ones.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.layout import CheckpointName, checkpoint_name_in, parse_name


@dataclass(frozen=True, slots=True)
class ReportedCheckpoint:
    """The newest checkpoint of a job that was reported as committed.

    `mount`: the file system that `directory` was on, in words. `mirror`: the URL of the run in the store that has it,
    and `epoch` under which. `wall_at`: when it was committed, in Unix seconds. `since`: the attempt with which it
    became the newest, as that committed it, or began from it. What is not known is None.
    """

    step: int
    name: str
    directory: str
    mount: str | None = None
    attempt: int | None = None
    wall_at: float | None = None
    mirror: str | None = None
    epoch: int | None = None
    since: int | None = None

    def __str__(self) -> str:
        was_on = f" ({self.mount})" if self.mount is not None else ""
        return f"step {self.step} ({self.name}) was committed in {self.directory}{was_on}"


def known_mount(mount: str | None, directory: str, before: ReportedCheckpoint | None) -> str | None:
    """The file system that a directory is on: what the newest checkpoint `before` says of the same one, where a look
    could not tell. Without it, an unmounted disk would be taken for a folder from which somebody deleted."""
    return before.mount if mount is None and before is not None and before.directory == directory else mount


@dataclass(frozen=True, slots=True)
class ProgressAccount:
    """The account of one job. `newest`: None if nothing was committed yet, or an operator began anew since.

    `revision`: grows with every change, so that of two copies the newer one is known.
    """

    newest: ReportedCheckpoint | None = None
    revision: int = 0

    def changed_to(self, newest: ReportedCheckpoint | None) -> "ProgressAccount":
        """The account with another newest checkpoint; this one if that is the same."""
        return self if newest == self.newest else ProgressAccount(newest, self.revision + 1)


@dataclass(frozen=True, slots=True)
class SeenDirectory:
    """What a look at a job's directory found. `highest_step`: of the committed checkpoints, None: there are none.

    `passed_over`: why the newest reported one, or one as new, is not restored, if it is in quarantine or was refused
    now. `mount`: the file system, in words, None if that is not known.
    """

    directory: str
    highest_step: int | None
    mount: str | None = None
    passed_over: RejectedCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """The newest checkpoint is gone, in words. `waits`: whether nothing may train before it is back or a person has
    said that it is given up. `is_in_mirror`: it is, and only not here.
    """

    text: str
    waits: bool
    is_in_mirror: bool = False


@dataclass(frozen=True, slots=True)
class Newest:
    """The start begins from the newest checkpoint, or there never was one."""


@dataclass(frozen=True, slots=True)
class Older:
    """The start begins from an older checkpoint than the newest; the reason, and the same in words."""

    because: OlderBecause
    text: str


@dataclass(frozen=True, slots=True)
class Unexplained:
    """The start would begin from an older checkpoint, and nothing says why: what is known, and what to do."""

    text: str


Verdict = Newest | Older | Unexplained


@dataclass(frozen=True, slots=True)
class StatedReason:
    """Why a start begins from an older checkpoint, as the chief's node of a gang says, which decides for all.

    `newest_step`: of the newest checkpoint that it knew of; a newer one is not explained by it.
    """

    because: OlderBecause
    text: str
    newest_step: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was decided about the next start before the selection.

    `begin_at`: an operator named this step, 0: begin anew. `restore_below_step`: training diverged there. `suspects`,
    `unfit`: names of checkpoints to pass over, as attempts keep dying from them, or as they do not fit the program.
    `stated`: what the chief's node says, on the other nodes of a gang that have folders of their own.
    `diverged_attempt`: in which training did; what a later one has saved is not given up for that. None: not known.
    """

    begin_at: int | None = None
    restore_below_step: int | None = None
    suspects: Collection[str] = ()
    unfit: Collection[str] = ()
    stated: StatedReason | None = None
    diverged_attempt: int | None = None


def find_loss(newest: ReportedCheckpoint | None, place: SeenDirectory, refusal: str, remedy: str) -> Loss | None:
    """Whether the newest checkpoint is missing from where the next start looks for it; None if nothing is.

    `refusal`, `remedy`: how the text begins and ends if nothing may train.
    """
    if newest is None or find_explanation(newest, place) is not None or is_as_new(place.highest_step, newest):
        return None
    left = place.highest_step
    holds = "holds no checkpoint" if left is None else f"its newest checkpoint is of step {left}"
    if place.directory != newest.directory:
        move = f"set checkpoint_dir back to {newest.directory}, or move what is in it to {place.directory}"
        text = f"{refusal}: {newest}; checkpoint_dir is now {place.directory}, which {_which(left)}; {move}; {remedy}"
        return Loss(text, waits=True)
    if _is_moved(newest, place):
        text = f"{refusal}: {newest}, but the folder is now on {place.mount} and {holds}; {remedy}"
        return Loss(text, waits=True)
    if newest.mirror is not None:
        where = f"its mirror {newest.mirror} has it, but it is not here"
        text = f"{refusal}: {newest}, and {where}; make the store reachable, or {remedy}"
        return Loss(text, waits=True, is_in_mirror=True)
    if left is None:
        return Loss(f"{refusal}: {newest}, and no checkpoint is there now; {remedy}", waits=True)
    return Loss(f"{newest} and it is gone; the newest one that is left is of step {left}", waits=False)


def is_unmounted(newest: ReportedCheckpoint, place: SeenDirectory) -> bool:
    """Whether checkpoints are missing as the directory's disk is not mounted: nothing is to be fetched to there."""
    if newest.directory != place.directory or not _is_moved(newest, place):
        return False
    loss = find_loss(newest, place, "", "")
    return loss is not None and loss.waits


def _is_moved(newest: ReportedCheckpoint, place: SeenDirectory) -> bool:
    """Whether the directory is on another file system now."""
    return newest.mount is not None and place.mount is not None and newest.mount != place.mount


def _which(left: int | None) -> str:
    return "holds no checkpoint" if left is None else f"has step {left} as its newest"


def is_as_new(step: int | None, newest: ReportedCheckpoint) -> bool:
    """Whether a step is at least that of the newest checkpoint."""
    return step is not None and step >= newest.step


def judge(
    newest: ReportedCheckpoint | None,
    chosen_step: int | None,
    place: SeenDirectory,
    decisions: Decisions,
    refusal: str,
    remedy: str,
    is_own: bool = True,
) -> Verdict:
    """Whether a start may begin from the chosen step (None: from nothing), and why it may if that is not the newest.

    `is_own`: whether it is of a checkpoint in the job's own directory. The step of another program's, or of
    `initial_checkpoint`, says nothing about what this job has trained, however high it is.
    """
    if newest is None or (is_own and is_as_new(chosen_step, newest)):
        return Newest()
    relation = "without" if is_as_new(chosen_step, newest) else "behind"
    behind = f"begins at step {chosen_step or 0}, {relation} step {newest.step} ({newest.name})"
    if decisions.begin_at is not None and decisions.begin_at in (0, chosen_step):
        how = f"--from-step {decisions.begin_at}" if decisions.begin_at else "--from-scratch"
        return Older(OlderBecause.OPERATOR, f"{behind}, as an operator said (start {how})")
    stated = decisions.stated
    if stated is not None and stated.newest_step >= newest.step:
        return Older(stated.because, f"{behind}, as the chief's node decided: {stated.text}")
    place = _without_suspects_from_before(place, newest, decisions, chosen_step)
    loss, because = find_loss(newest, place, refusal, remedy), _reason_of(newest, place, decisions)
    if loss is not None and loss.is_in_mirror and because is not None and chosen_step is not None:
        loss = None  # it is there, and was passed over there
    if loss is not None and (loss.waits or chosen_step is None):
        return Unexplained(loss.text)
    if chosen_step is None or not is_own:
        return Unexplained(f"{refusal}: {newest}, and nothing was chosen to begin from; {remedy}")
    if loss is not None:
        return Older(OlderBecause.DELETED, loss.text)
    if because is None:
        return Unexplained(f"{refusal}: {newest}, and step {chosen_step} was chosen without a reason; {remedy}")
    return Older(because, f"{behind}, which is {_describe(because, find_explanation(newest, place))}")


def _describe(because: OlderBecause, explanation: RejectedCheckpoint | None) -> str:
    """Why the newest is not chosen, in words; with what is said of it in quarantine, if it is there."""
    if explanation is None or explanation.is_recorded:
        return _WORDS[because] + ("" if explanation is None else f": {explanation.reason}")
    return _WORDS[because] if because is not explanation.because else f"in quarantine: {explanation.reason}"


_WORDS = {
    OlderBecause.ROLLED_BACK: "given up, as training diverged",
    OlderBecause.UNFIT: "of no use to this program",
    OlderBecause.SUSPECT: "suspect, as attempts keep dying right after restoring it",
    OlderBecause.DAMAGED: "damaged",
    OlderBecause.UNREADABLE: "not readable",
    OlderBecause.LEFT_BEHIND: "left behind, as another host has gone on with this run",
}


def _reason_of(newest: ReportedCheckpoint, place: SeenDirectory, decisions: Decisions) -> OlderBecause | None:
    """Why the newest checkpoint, which is there, was not chosen; None if nothing says so."""
    explanation = find_explanation(newest, place)
    if explanation is not None and explanation.is_recorded:
        because = explanation.because  # whoever writes into quarantine may write any reason there
        return because if because in _WORDS else OlderBecause.DAMAGED
    if _has_as_new(decisions.unfit, newest):
        return OlderBecause.UNFIT
    if _has_as_new(decisions.suspects, newest):
        return OlderBecause.SUSPECT
    below, diverged = decisions.restore_below_step, decisions.diverged_attempt
    is_later = diverged is not None and newest.attempt is not None and newest.attempt > diverged
    if below is not None and below <= newest.step and not is_later:
        return OlderBecause.ROLLED_BACK
    return None if explanation is None else explanation.because


def _has_as_new(names: Iterable[str], newest: ReportedCheckpoint) -> bool:
    """Whether the newest is among them, or one that took its place."""
    parsed_names = (parse_name(name) for name in names)
    return any(
        name is not None and (str(name) == newest.name or (name.step >= newest.step and _may_replace(name, newest)))
        for name in parsed_names
    )


def _without_suspects_from_before(
    place: SeenDirectory, newest: ReportedCheckpoint, decisions: Decisions, chosen_step: int | None
) -> SeenDirectory:
    """The directory without a checkpoint ahead of the newest that was passed over before that was saved, as it is
    suspect or does not fit: that it is there says nothing of what became of the newest. Then the chosen one is the
    highest.
    """
    passed_over = [name for text in (*decisions.suspects, *decisions.unfit) if (name := parse_name(text)) is not None]
    is_from_before = any(
        name.step == place.highest_step and name.step >= newest.step and not _may_replace(name, newest)
        for name in passed_over
        if str(name) != newest.name
    )
    return replace(place, highest_step=chosen_step) if is_from_before else place


def _may_replace(name: CheckpointName, newest: ReportedCheckpoint) -> bool:
    """Whether a checkpoint may have taken the place of the newest: the same attempt or a later one saved it than that
    with which the newest became the newest."""
    since = newest.attempt if newest.since is None else newest.since
    return since is None or name.attempt >= since


def find_explanation(newest: ReportedCheckpoint, place: SeenDirectory) -> RejectedCheckpoint | None:
    """The refused checkpoint that explains why the newest is not there: it is that one, or one that took its place.

    A later one takes the place of the newest, and has it deleted, only if the same attempt or a later one saved it than
    that with which the newest became the newest. What was given up before that, as in a rollback behind which the
    newest was restored, says nothing of what became of the newest since. Nor does what an earlier run has left in
    another directory, or on a disk that was mounted over this one.
    """
    passed_over = place.passed_over
    if passed_over is None or passed_over.name == newest.name:
        return passed_over
    name = checkpoint_name_in(passed_over.name)
    if name is None or str(name) == newest.name:
        return None if name is None else passed_over
    is_here = place.directory == newest.directory and not _is_moved(newest, place)
    return passed_over if is_here and _may_replace(name, newest) else None


def find_passed_over(expected: CheckpointName, rejected: Iterable[RejectedCheckpoint]) -> RejectedCheckpoint | None:
    """Of refused checkpoints, `expected` or else, of those as new and not of an earlier attempt, that of the latest.

    One of an earlier attempt is from before a rollback, so it does not explain why a later one is missing.
    """
    named = [(name, checkpoint) for checkpoint in rejected if (name := checkpoint_name_in(checkpoint.name)) is not None]
    as_new = [pair for pair in named if pair[0].step >= expected.step and pair[0].attempt >= expected.attempt]
    latest = max(as_new, key=lambda pair: (pair[0] == expected, pair[0].attempt, pair[0].step), default=(None, None))
    return latest[1]
