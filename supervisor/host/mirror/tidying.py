"""Deletes from the store what the run has no more use for.

Nothing is deleted because a list names checkpoints that are not there, or leaves out a manifest that is.
"""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from supervisor.host.mirror.epochs import HeldRun
from supervisor.protocol import layout
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint
from supervisor.protocol.mirror.line import KEEP_AT_LEAST, given_up, to_delete
from supervisor.protocol.mirror.remote_run import committed
from supervisor.protocol.mirror.store import StoreError

UNFINISHED_AGE = timedelta(hours=24)  # longer than any upload; files without a manifest may go after that
GIVEN_UP_AGE = timedelta(days=7)  # for people to see that a run was taken over, or taken back, by mistake


def tidy(
    run: HeldRun,
    files: Mapping[RemoteCheckpoint, Mapping[str, datetime]],
    line: tuple[RemoteCheckpoint, ...],
    epochs: Mapping[int, Epoch],
    epoch: int,
    keep: int,
) -> None:
    """Deletes what retention leaves no room for, what was given up long ago, and what was never finished.

    `files`: all that the store has of the run, of which it has just written some. `line`: what counts, newest first, of
    which `keep` stay. `epochs`: all that are known; `epoch`: this host's, the newest. What can't be deleted now stays
    until the next upload.
    """
    now = _least_now(files)
    oldest = now - UNFINISHED_AGE
    unfinished = {checkpoint for checkpoint, names in files.items() if layout.MANIFEST not in names}
    abandoned = {checkpoint for checkpoint in unfinished if max(files[checkpoint].values()) < oldest}
    with contextlib.suppress(StoreError):
        if len(line) > keep:
            line = tuple(checkpoint for checkpoint in line if run.exists(checkpoint))
        of_the_line = {checkpoint: len(line) > keep and run.was_left_in_memory(checkpoint) for checkpoint in line}
        passed_over = _given_up_long_ago(run, files, line, epochs, epoch, now)
        for checkpoint in sorted(abandoned.union(to_delete(of_the_line, epoch, keep), passed_over)):
            if checkpoint not in abandoned or not run.exists(checkpoint):
                run.delete(checkpoint, files.get(checkpoint, ()))


def _given_up_long_ago(
    run: HeldRun,
    files: Mapping[RemoteCheckpoint, Mapping[str, datetime]],
    line: tuple[RemoteCheckpoint, ...],
    epochs: Mapping[int, Epoch],
    epoch: int,
    now: datetime,
) -> set[RemoteCheckpoint]:
    """What was given up long ago; nothing as long as the present epoch has too few checkpoints of its own."""
    own = [checkpoint for checkpoint in line if checkpoint.epoch == epoch]
    if sum(map(run.exists, own[:KEEP_AT_LEAST])) < KEEP_AT_LEAST:
        return set()
    passed_over, oldest = given_up(epochs, committed(files)), now - GIVEN_UP_AGE
    return {checkpoint for checkpoint, by in passed_over.items() if run.epochs_begun.get(by, now) < oldest}


def _least_now(files: Mapping[RemoteCheckpoint, Mapping[str, datetime]]) -> datetime:
    """By the clock that is behind, this host's or the store's: to one that is ahead, all that was written looks old."""
    now = datetime.now(UTC)
    return min(now, max((written_at for names in files.values() for written_at in names.values()), default=now))
