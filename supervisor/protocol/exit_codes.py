"""The exit codes a worker uses to say why it left.

Numbers follow sysexits.h where it has the meaning, and the shell's 128 + signal for a stop on request.
Every other code is the user's own and counts as a crash.
"""

from enum import IntEnum


class WorkerExit(IntEnum):
    """Why a worker left."""

    DONE = 0  # finished; only counts as success together with a `done` message
    USER_ERROR = 1  # an exception left the training script (Python's own code for it)
    CHECKPOINT_UNFIT = 65  # EX_DATAERR: whole, but it does not fit this program; an older one may
    INCOMPLETE = 70  # EX_SOFTWARE: strict, and the checkpoints would not hold all that training uses
    DIRECTORY_UNUSABLE = 73  # EX_CANTCREAT: checkpoint_dir can't be created or written
    SAVE_FAILED = 74  # EX_IOERR: the last save of the run failed (disk full, I/O error)
    LOCKED = 75  # EX_TEMPFAIL: another live worker holds the checkpoint directory
    BAD_LAUNCH = 78  # EX_CONFIG: entry point missing, launch environment wrong
    DIVERGED = 80  # past sysexits.h: training diverged, and the job is told not to train on
    STOPPED = 143  # 128 + SIGTERM: told to stop; flushed what it could and left


PERMANENT = frozenset({WorkerExit.INCOMPLETE, WorkerExit.DIRECTORY_UNUSABLE, WorkerExit.BAD_LAUNCH})
"""Codes after which the same start would fail the same way: a person has to change something first."""
