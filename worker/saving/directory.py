"""A checkpoint directory at the start of a run: created, locked, swept, and which checkpoint to restore."""

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import removal, selection
from supervisor.protocol.checkpoints.account import SeenDirectory, find_loss, is_as_new
from supervisor.protocol.checkpoints.directory import check_mounted, highest_attempt, view_directory
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.disk_space import DISK_FULL
from supervisor.protocol.installation import install_extra
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import MIRROR
from worker.process.attempt import Attempt
from worker.saving.commit_record import CommitRecord
from worker.saving.directory_lock import DirectoryLock, DirectoryLocked, WriterLock
from worker.saving.memory_checkpoint import MemoryCheckpoint, open_memory

if TYPE_CHECKING:
    from worker.saving.mirror_restore import MirrorSource


UNFIT_REMEDY = "restore it with the program that wrote it, or give this one a checkpoint_dir of its own"


class Unfit(Exception):
    """A whole checkpoint does not fit this program; the text names what differs."""


@dataclass(frozen=True, slots=True)
class OpenedDirectory:
    """A locked directory, and the checkpoint to restore (None: begin at step 0).

    `restore`: the folder of a stepkeeper checkpoint, in this directory or another job's; or the prefix of a checkpoint
    that another program wrote; `memory`: instead of that, what a dead worker left in memory. `record`: what is
    remembered of the directory without a daemon.
    """

    directory: Path
    lock: WriterLock
    restore: Path | None
    record: CommitRecord | None = None
    memory: MemoryCheckpoint | None = None

    @property
    def restored_here(self) -> CheckpointName | None:
        """The checkpoint to restore, if it is one of this directory."""
        return layout.own_name(self.restore, self.directory)

    def remember_commit(self, name: str, step: int) -> None:
        """Remembers that a checkpoint was committed, where no daemon does."""
        if self.record is not None:
            self.record.remember(name, step)


_NEEDS_SHARED_FOLDER = (
    "cannot train with checkpoint_dir_shared = false: only worker.Run and worker.keras.fit on several workers save so; "
    "delete that line and use a folder that all nodes see"
)


def open_checkpoint_directory(
    attempt: Attempt, directory: Path, *, restores_memory: bool = False, has_parts: bool = False
) -> OpenedDirectory:
    """Opens the directory for this attempt. The daemon says which checkpoint to restore.

    `restores_memory`: instead of that, what a dead worker left in memory, if the daemon has it and it is newer.
    `has_parts`: whoever calls this saves as it must where the nodes of a gang have folders of their own.

    Without a daemon, and for the second run of a script, this selects the newest checkpoint that verifies; without a
    daemon also of the run's mirror, if it was told of one. Exits with LOCKED, DIRECTORY_UNUSABLE, or, if it selects and
    no checkpoint verifies, CHECKPOINT_UNFIT.
    """
    if attempt.launch.generation is not None and not attempt.launch.checkpoint_dir_shared and not has_parts:
        attempt.exit_with_error(WorkerExit.BAD_LAUNCH, _NEEDS_SHARED_FOLDER)
    go = attempt.channel.wait_for_go() if attempt.channel is not None and not attempt.has_begun_run else None
    attempt.has_begun_run = True
    record = source = memory = None
    try:
        if attempt.channel is None:
            record = _check_not_lost(attempt, directory)
            source = _look_at_mirror(attempt, directory)
        durable.make_folder(directory)
        if attempt.channel is None:
            attempt.number = 1 + max(highest_attempt(directory), source.attempt if source is not None else 0)
        is_settled = attempt.launch.generation is None  # else the other ranks' chief may save
        chosen_below = go.highest_step if is_settled and go is not None and go.memory is None else None
        lock = DirectoryLock(directory, attempt.number, chosen_below)
        if go is not None:
            attempt.no_copies = go.no_copies
            lock.check_place(go.mount, go.device)
        if go is not None and restores_memory:
            memory = open_memory(attempt, go)
        removal.delete_partials(directory, None if memory is None else memory.name.partial)
        if go is None:
            return OpenedDirectory(directory, lock, _select_checkpoint(attempt, directory, source), record)
    except DirectoryLocked as error:
        attempt.exit_with_error(WorkerExit.LOCKED, str(error))
    except OSError as error:
        known = {
            errno.ENODEV: "mount it, and start again",
            errno.EROFS: "mount it for writing",
            **dict.fromkeys(DISK_FULL, "free space there"),
            errno.EBUSY: "if it never trains, another job or host saves there: give each a directory of its own",
        }
        remedy = known.get(error.errno or 0, "make it a folder that this user may write")
        text = f"cannot use checkpoint directory {directory}: {error}; {remedy}"
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, text, errno=error.errno)
    return OpenedDirectory(directory, lock, Path(go.restore) if go.restore is not None else None, memory=memory)


def _check_not_lost(attempt: Attempt, directory: Path) -> CommitRecord | None:
    """Refuses a directory that has lost its checkpoints, before anything is created there; says what is doubtful.

    Raises OSError if the directory can't be read, or the volume that belongs there is not mounted.
    """
    record = None if attempt.state_home is None else CommitRecord(attempt.state_home, directory)
    newest = None if record is None else record.load()
    check_mounted(directory, None if newest is None else newest.name)
    seen = view_directory(directory, None if newest is None else newest.name)
    for remark in seen.remarks:
        attempt.reporter.show_message(f"checkpoint directory {directory} is on {remark}")
    if record is None:
        return None
    record.mount = seen.mount
    remedy = f"mount the disk or put the folder back, and start again; to begin anew, delete {record.path}"
    place = SeenDirectory(str(directory.absolute()), seen.highest_step, seen.mount, seen.passed_over)
    lost = find_loss(newest, place, f"cannot train in {directory}", remedy)
    if lost is not None and lost.waits:
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, lost.text)
    if lost is not None:
        attempt.reporter.show_message(lost.text)
    elif newest is not None and place.passed_over is not None and not is_as_new(place.highest_step, newest):
        attempt.reporter.show_message(f"{newest}, and is in {layout.QUARANTINE} now: {place.passed_over.reason}")
    return record


def _look_at_mirror(attempt: Attempt, directory: Path) -> "MirrorSource | None":
    """The run's mirror; None without one. Raises OSError if the directory can't be read."""
    if attempt.mirror_url is None:
        return None
    try:
        # only here: most workers have none, and not the library for it either
        from worker.saving.mirror_restore import MirrorSource, MirrorUnusable
    except ModuleNotFoundError as error:
        remedy = f"install it with: {install_extra('mirror')}"
        attempt.exit_with_error(WorkerExit.BAD_LAUNCH, f"{MIRROR} needs the package {error.name}; {remedy}")
    try:
        return MirrorSource(attempt.mirror_url, directory)
    except MirrorUnusable as error:
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, str(error))


def _select_checkpoint(attempt: Attempt, directory: Path, source: "MirrorSource | None") -> Path | None:
    rules = selection.SelectionRules(initial=attempt.launch.initial_checkpoint)
    try:
        chosen = _select_here_or_there(attempt, directory, rules, source)
    except NoValidCheckpoint as error:
        attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, str(error))
    for text in source.messages if source is not None else ():
        attempt.reporter.show_message(text)
    for refused in chosen.rejected:
        moved = (directory / layout.QUARANTINE / refused.name).exists()
        where = f"; it was moved to {layout.QUARANTINE}/" if moved else ""
        attempt.reporter.show_message(f"refused {refused.name}: {refused.reason}{where}")
    return chosen.path


def _select_here_or_there(
    attempt: Attempt, directory: Path, rules: selection.SelectionRules, source: "MirrorSource | None"
) -> selection.Selection:
    """The newest whole checkpoint of the directory and of the run's mirror. Raises NoValidCheckpoint, OSError."""
    if source is None:
        return selection.select_checkpoint(directory, rules)
    source.set_aside_left_behind()
    try:
        here = selection.select_checkpoint(directory, rules)
    except NoValidCheckpoint:
        if not _fetch_newer(attempt, source, None):
            raise
        return selection.select_checkpoint(directory, rules)
    newest = layout.own_name(here.path, directory)  # initial_checkpoint says nothing of this run
    return selection.select_checkpoint(directory, rules) if _fetch_newer(attempt, source, newest) else here


def _fetch_newer(attempt: Attempt, source: "MirrorSource", than: layout.CheckpointName | None) -> bool:
    from worker.saving.mirror_restore import MirrorUnusable

    try:
        return source.fetch_newer(than)
    except MirrorUnusable as error:
        attempt.exit_with_error(WorkerExit.DIRECTORY_UNUSABLE, str(error))
