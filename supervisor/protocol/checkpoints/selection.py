"""Finds the newest checkpoint that is proven whole, and sets aside the ones that are not.

Used by the daemon before every attempt, and by a worker that runs without a daemon. TensorFlow's own `checkpoint`
pointer is never read: a damaged pointer must not hide good checkpoints.
"""

import errno
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import foreign, manifest
from supervisor.protocol.checkpoints.account import find_passed_over
from supervisor.protocol.checkpoints.directory import UNSEEN, DirectoryView, view_directory
from supervisor.protocol.checkpoints.directory import committed_checkpoints as committed_checkpoints
from supervisor.protocol.checkpoints.foreign import ForeignCheckpoint
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError
from supervisor.protocol.checkpoints.quarantine import list_quarantined, move_to_quarantine
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint, UnreadableCheckpoint
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.plurals import listed

MAX_STATE_BYTES = 4 << 20  # of a longer one the position is not shown; the worker reads up to 64 MiB
BEGIN_AGAIN = f"move {layout.QUARANTINE}/ away to begin again at step 0"


@dataclass(frozen=True, slots=True)
class Selection:
    """The checkpoint to restore (None: begin at step 0, there never was one), and those refused on the way to it.

    `path`: the folder of one of ours, which has a `manifest`; the prefix of another program's, which is `foreign`.
    `data_position`: where its data stand, in words; None if that is not known. `seen`: the directory as it was found.
    """

    path: Path | None
    manifest: Manifest | None
    rejected: tuple[RejectedCheckpoint, ...] = ()
    foreign: ForeignCheckpoint | None = None
    data_position: str | None = None
    seen: DirectoryView = UNSEEN

    @property
    def step(self) -> int | None:
        """The step it was taken at; None if there is none."""
        if self.manifest is not None:
            return self.manifest.step
        return self.foreign.step if self.foreign is not None else None


class NoValidCheckpoint(Exception):
    """Checkpoints exist, or existed, and none is whole: beginning again at step 0 is a decision for a person."""

    def __init__(
        self,
        directory: Path,
        rejected: tuple[RejectedCheckpoint, ...],
        quarantined: tuple[RejectedCheckpoint, ...] = (),
        what_else: str = BEGIN_AGAIN,
    ) -> None:
        """`rejected`: those refused now; `quarantined`: those refused earlier, which the message lists as well.
        `what_else`: what a person can do instead of restoring one from a copy.
        """
        self.rejected = rejected
        every = listed([f"{checkpoint.name}: {checkpoint.reason}" for checkpoint in (*rejected, *quarantined)])
        super().__init__(
            f"cannot restore from {directory}: no checkpoint in it is whole ({every}); "
            f"restore one from a copy, or {what_else}"
        )

    @classmethod
    def from_text(cls, text: str, rejected: tuple[RejectedCheckpoint, ...]) -> "NoValidCheckpoint":
        """The error that another process met."""
        error = cls(Path(), rejected)
        error.args = (text,)
        return error


class OtherJobsCheckpoint(NoValidCheckpoint):
    """The newest whole checkpoint was saved by another job, and nobody said that it may be restored."""

    def __init__(self, directory: Path, name: str, job: str, jobs: Collection[str]) -> None:
        super().__init__(directory, ())
        mine = " or ".join(jobs)
        self.args = (
            f"cannot restore {name} in {directory}: job {job!r} saved it, and this is {mine}; give each job a "
            f"checkpoint_dir of its own, or set restore_from_jobs = {job} if this job is to continue from it",
        )


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """Which checkpoints may be chosen.

    `initial`: where to begin from while the directory has none. `avoid`: names to pass over, and leave as they are,
    while an older one is whole. `jobs`: the jobs whose checkpoints are restored, None: anybody's.
    `pass_over_unreadable`: choose an older one where the newest can't be read. `begin_again`: what a person can do if
    none is whole. `expected`: the name of the checkpoint that should be the newest, if that is known. `reads`: False
    looks at sizes alone, where somebody else reads and proves what is restored.
    """

    initial: Path | None = None
    avoid: tuple[str, ...] = ()
    jobs: tuple[str, ...] | None = None
    pass_over_unreadable: bool = False
    begin_again: str = BEGIN_AGAIN
    expected: str | None = None
    reads: bool = True


ANY = SelectionRules()
"""The newest whole one, whoever saved it."""


def select_checkpoint(directory: Path, rules: SelectionRules = ANY) -> Selection:
    """Verifies newest first and returns the first whole checkpoint; the bad ones before it go to quarantine.

    Reads every byte of what it verifies. A bad one that can't be moved (disk full, read-only) is passed over and says
    so in its reason. Where there never was a checkpoint of ours, another program's is chosen: at `initial`, or else in
    the directory; bad ones of those stay where they are. Raises NoValidCheckpoint if there is nothing whole but
    something was, now or earlier, or `initial` is nothing; OtherJobsCheckpoint; UnreadableCheckpoint; OSError if the
    directory can't be read.
    """
    seen = view_directory(directory, rules.expected)
    selection = _select_own(directory, rules)
    if selection is None and rules.initial is not None:
        selection = _select_initial(rules.initial)
    elif selection is None:
        selection = _select_foreign(directory, foreign.prefixes_in(directory))
    expected = None if rules.expected is None else layout.parse_name(rules.expected)
    if seen.passed_over is None and expected is not None:
        seen = replace(seen, passed_over=find_passed_over(expected, selection.rejected))
    return replace(selection, seen=seen)


def _select_own(directory: Path, rules: SelectionRules) -> Selection | None:
    """From the job's own directory; None if there never was a checkpoint in it."""
    refused: list[RejectedCheckpoint] = []
    unreadable: UnreadableCheckpoint | None = None
    names = committed_checkpoints(directory)
    names.sort(key=lambda name: str(name) in rules.avoid)  # stable: newest first, then those to avoid
    for place, name in enumerate(names, 1):
        folder = directory / str(name)
        try:
            proven = manifest.verify_checkpoint(folder, rules.reads)
        except ManifestError as error:
            if name not in committed_checkpoints(directory):
                continue  # retention of a worker that is still leaving took it
            refused.append(RejectedCheckpoint(str(name), _set_aside(directory, name, str(error))))
        except OSError as error:
            committed_checkpoints(directory)  # raises if it is the whole directory that can't be read
            unreadable = unreadable or _unreadable(name, error, has_older=place < len(names))
            if not rules.pass_over_unreadable or not unreadable.has_older:
                raise unreadable from error
            text = f"cannot be read: {error.strerror}; an older one is used, and this one stays where it is"
            refused.append(RejectedCheckpoint(str(name), text, OlderBecause.UNREADABLE))
        else:
            if rules.jobs is not None and proven.job not in (*rules.jobs, layout.UNNAMED_JOB):
                raise OtherJobsCheckpoint(directory, str(name), proven.job, rules.jobs)
            return Selection(folder, proven, tuple(refused), data_position=read_data_position(folder))
    if unreadable is not None:
        raise unreadable
    names_refused = {checkpoint.name for checkpoint in refused}
    quarantined = tuple(
        checkpoint for checkpoint in list_quarantined(directory) if checkpoint.name not in names_refused
    )
    if refused or quarantined:
        raise NoValidCheckpoint(directory, tuple(refused), quarantined, rules.begin_again)
    return None


def _unreadable(name: CheckpointName, error: OSError, has_older: bool) -> UnreadableCheckpoint:
    return UnreadableCheckpoint(error.errno or errno.EIO, error.strerror or str(error), str(name), has_older)


def read_data_position(folder: Path) -> str | None:
    """Where the data of a checkpoint stand, in words, as its `state.json` says; None if it does not."""
    try:
        content = durable.read_file(folder / layout.STATE, MAX_STATE_BYTES + 1)
        if len(content) > MAX_STATE_BYTES:
            return None
        state = json.loads(content.decode())
        position = state.get("position", state)  # runs without TensorFlow have it at the top
        epoch, batch = position["epoch"], position["batch"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_position = all(isinstance(number, int) and 0 <= number < 1 << 63 for number in (epoch, batch))
    return f"epoch {epoch}, batch {batch}" if is_position else None


def _select_foreign(place: Path, candidates: Iterable[Path]) -> Selection:
    """From what another program left at a place, if it did."""
    checkpoint, refused = foreign.select_newest_whole(candidates)
    if checkpoint is not None:
        return Selection(checkpoint.bundle.prefix, None, refused, checkpoint)
    if refused:
        raise NoValidCheckpoint(place, refused, what_else="move them away to begin at step 0")
    return Selection(None, None)


def _select_initial(initial: Path) -> Selection:
    """From where the operator said: ours or another program's, a folder of several or one. Nothing there is moved."""
    refused: list[RejectedCheckpoint] = []
    named = own_checkpoint_at(initial)
    own = [initial / str(name) for name in committed_checkpoints(initial)] if named is None else [named]
    for folder in own:
        try:
            proven = manifest.verify_checkpoint(folder)
            return Selection(folder, proven, tuple(refused), data_position=read_data_position(folder))
        except ManifestError as error:
            refused.append(RejectedCheckpoint(folder.name, str(error)))
    if not own:
        chosen = _select_foreign(initial, foreign.prefixes_at(initial))
        if chosen.path is not None:
            return chosen
    nothing = "there is no checkpoint of this name, nor a folder with any"
    if (initial / "saved_model.pb").is_file():
        nothing = "it is a SavedModel, an export: the optimizer's state and the place in the data are not in it"
    why = tuple(refused) or (RejectedCheckpoint(initial.name, nothing),)
    what_else = "set initial_checkpoint to one that is whole, or take the line out"
    raise NoValidCheckpoint(initial, why, what_else=what_else)


def own_checkpoint_at(place: Path) -> Path | None:
    """The folder of the one checkpoint of ours that a person named; None if the place is anything else.

    By its own path, also of a copy under another name, or by TensorFlow's prefix in it, which has less than the folder.
    It need not be whole, nor exist: who verifies it says so. Raises OSError if it can't be looked at.
    """
    if layout.parse_name(place.name) is not None:
        return place
    if place.is_dir():
        is_ours = layout.is_unfinished(place.name) or (place / layout.MANIFEST).exists()
        return place if is_ours else None
    return place.parent if (place.parent / layout.MANIFEST).exists() and foreign.prefixes_at(place) else None


def _set_aside(directory: Path, name: CheckpointName, reason: str) -> str:
    try:
        move_to_quarantine(directory, name, reason)
    except OSError as error:
        return f"{reason} (could not be set aside: {error.strerror})"
    return reason
