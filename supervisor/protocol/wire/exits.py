"""The exit statuses of a worker. Every other one is the user's own and counts as a crash."""

from enum import IntEnum


class WorkerExit(IntEnum):
    """Why a worker left.

    Numbers follow sysexits.h where it has the meaning, and the shell's 128 + signal for a stop on request.
    """

    DONE = 0  # finished; only counts as success together with a `done` message
    USER_ERROR = 1  # an exception left the training script (Python's own code for it)
    CHECKPOINT_UNFIT = 65  # EX_DATAERR: the checkpoint is whole but does not fit this program; an older one may
    INCOMPLETE = 70  # EX_SOFTWARE: strict, and the checkpoints would not hold all that training uses
    DIRECTORY_UNUSABLE = 73  # EX_CANTCREAT: checkpoint_dir can't be created or written
    SAVE_FAILED = 74  # EX_IOERR: the last save of the run failed (disk full, I/O error)
    LOCKED = 75  # EX_TEMPFAIL: another live worker holds the checkpoint directory
    BAD_LAUNCH = 78  # EX_CONFIG: entry point missing, launch environment wrong
    DIVERGED = 80  # past sysexits.h: training diverged, and the job must not train on
    NOT_REPEATABLE = 81  # steps that were trained a second time gave other bits, and on_replay_difference is stop
    STOPPED = 143  # 128 + SIGTERM: asked to stop; flushed and left


PERMANENT_EXITS = frozenset(
    {WorkerExit.INCOMPLETE, WorkerExit.DIRECTORY_UNUSABLE, WorkerExit.BAD_LAUNCH, WorkerExit.NOT_REPEATABLE}
)
"""Codes after which a person must change something first: the same start would fail in the same way, or go wrong."""
