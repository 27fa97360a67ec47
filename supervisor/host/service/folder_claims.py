"""Whose runtime_dir is, and that the folders of a daemon stay its own while it lives."""

import asyncio
import contextlib
import fcntl
import os
from functools import partial
from pathlib import Path

import structlog

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.processes import marks
from supervisor.host.service.single_instance import LOCK, AlreadyRunning, StateFolder
from supervisor.host.user_folders.guarded_open import open_guarded
from supervisor.protocol import durable

OWNER = ".used-by"  # in runtime_dir: which folder that is, and the state folder of its daemon
MAX_OWNER_BYTES = 8192
CLAIMED_EVERY_S = 30.0  # what empties the folder does so once a day, and another daemon is seldom started just then

log = structlog.get_logger()


def claim_runtime_dir(runtime_dir: Path, state_dir: Path) -> None:
    """Notes in the folder of the control pipes whose it is: attempts of two daemons have the same numbers there, and
    each would take the other's for left over.

    Call it with the state folder locked. Raises AlreadyRunning if another live daemon has it. Where the folder can't be
    made, or written, whatever needs it says so.
    """
    with contextlib.suppress(OSError):
        if not runtime_dir.exists():
            runtime_dir.mkdir(parents=True)
            runtime_dir.chmod(0o711)  # despite the umask: the users of jobs have to reach their pipes
        status, path = runtime_dir.stat(), runtime_dir / OWNER
        identity = f"{status.st_dev:x}-{status.st_ino:x}"
        other = _owner_of(path, identity)
        if other is not None and _is_of_another(other, state_dir):
            raise AlreadyRunning(
                f"cannot start: another supervisord, with the state folder {other}, uses runtime_dir {runtime_dir}; "
                "give this one a runtime_dir of its own, or delete that line"
            )
        if other == (own := state_dir.resolve()):
            return
        descriptor = open_guarded(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, os.fsencode(f"{identity} {own}"))
        finally:
            os.close(descriptor)


async def keep_folders(
    state: StateFolder, runtime_dir: Path, calls: BlockingCalls, every_s: float = CLAIMED_EVERY_S
) -> None:
    """Claims both folders again where one is emptied or replaced, as by systemd-tmpfiles; until it is cancelled.

    The key of the state folder comes back too, by which the next daemon knows the workers of this one.
    """
    taken = {runtime_dir: False, state.path: False}
    looks = {
        runtime_dir: partial(_is_runtime_dir_taken, runtime_dir, state.path),
        state.path: partial(_is_taken, state),
    }
    while True:
        await asyncio.sleep(every_s)
        for path, look in looks.items():
            was_taken = taken[path]
            try:
                taken[path] = await calls.run_for_folder(path, look)
            except (OSError, RuntimeError):  # RuntimeError: the host has no thread to spare
                continue
            if taken[path] and not was_taken:
                effect = "each of the two may delete what the other one needs"
                remedy = "stop the other one, and give it folders of its own"
                log.error("folder.taken", path=str(path), by="another supervisord", effect=effect, remedy=remedy)


def _is_taken(state: StateFolder) -> bool:
    """Locks the state folder again; whether another live daemon has it meanwhile. Raises OSError."""
    if state.lock_again():
        return True
    if state.path.exists():
        marks.keep_key(state.path)
    return False


def _is_runtime_dir_taken(runtime_dir: Path, state_dir: Path) -> bool:
    """Claims the folder; whether another live daemon has claimed it meanwhile."""
    if not runtime_dir.parent.exists():  # as `run` in a state folder that was deleted
        return False
    try:
        claim_runtime_dir(runtime_dir, state_dir)
    except AlreadyRunning:
        return True
    return False


def _owner_of(path: Path, identity: str) -> Path | None:
    """The state folder that is noted in the folder with this identity; a note that came with a copy has another one."""
    try:
        noted, _, owner = os.fsdecode(durable.read_file(path, MAX_OWNER_BYTES)).partition(" ")
    except OSError:
        return None
    return Path(owner) if noted == identity and owner else None


def _is_of_another(other: Path, state_dir: Path) -> bool:
    """Whether it is the state folder of another live daemon."""
    try:
        if other.samefile(state_dir):  # perhaps by another path
            return False
        descriptor = os.open(other / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
