"""A checkpoint directory at the start of a run: made, locked, swept, and what to restore from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.exit_codes import WorkerExit
from worker.process.attempt import Attempt
from worker.saving.directory_lock import DirectoryLock, DirectoryLocked


class WriterLock(Protocol):
    """What keeps others from writing into a directory."""

    def check_not_superseded(self) -> None:
        """Raises AttemptSuperseded where a newer attempt has begun."""

    def release(self) -> None:
        """Lets the next one in."""


@dataclass(frozen=True, slots=True)
class OpenedDirectory:
    """A directory that is ours, and the checkpoint to restore (None: begin at step 0).

    `restore`: the folder of one of ours, in this directory or another one's; or the prefix of another program's.
    """

    directory: Path
    lock: WriterLock
    restore: Path | None


def open_checkpoint_directory(attempt: Attempt, directory: Path) -> OpenedDirectory:
    """Waits for the daemon's word where there is a daemon, else chooses the newest checkpoint that is whole; so it does
    where a script trains a second time.

    Leaves the process with LOCKED, DIRECTORY_UNUSABLE, or, where it chooses and nothing in the directory is whole,
    CHECKPOINT_UNFIT.
    """
    go = attempt.channel.wait_for_go() if attempt.channel is not None and not attempt.has_begun_run else None
    attempt.has_begun_run = True
    try:
        durable.make_folder(directory)
        if attempt.channel is None:
            attempt.number = 1 + selection.highest_attempt(directory)
        lock = DirectoryLock(directory, attempt.number)
        selection.sweep_partials(directory)
        if go is None:
            return OpenedDirectory(directory, lock, _select_checkpoint(attempt, directory))
    except DirectoryLocked as error:
        attempt.exit_with_error(WorkerExit.LOCKED, str(error))
    except OSError as error:
        attempt.exit_with_error(
            WorkerExit.DIRECTORY_UNUSABLE,
            f"cannot use checkpoint directory {directory}: {error}; make it a folder that this user may write",
        )
    return OpenedDirectory(directory, lock, Path(go.restore) if go.restore is not None else None)


def _select_checkpoint(attempt: Attempt, directory: Path) -> Path | None:
    try:
        chosen = selection.select(directory, attempt.launch.initial_checkpoint)
    except NoValidCheckpoint as error:
        attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, str(error))
    for refused in chosen.refused:
        moved = (directory / layout.QUARANTINE / refused.name).exists()
        where = f"; it lies in {layout.QUARANTINE}/ now" if moved else ""
        attempt.reporter.show_message(f"refused {refused.name}: {refused.reason}{where}")
    return chosen.path
