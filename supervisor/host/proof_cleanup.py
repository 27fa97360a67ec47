"""What is left of a proof is ended and removed by a process of the user that it ran as: with that user's rights alone.

It ends the user's processes that have the scratch folder in their environment or their arguments, as all that a proof
starts has, and removes the folder, however deep or large: both may have been made to cost.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from supervisor.host.processes.environments import EXECVE_LIMIT_S, look_at_all, read_beginning, read_environment
from supervisor.host.proof_process import ScratchFolder
from supervisor.host.user_folders.folder_removal import empty_removed
from supervisor.protocol.wire.codec import decode_record, parse_object

MAX_ROUNDS = 50  # over /proc: a process can start another one between two looks
ROUND_S = 0.01  # between two of them: what was killed ends
PASSES = 3


def main() -> None:
    """Cleans up after the proof of the argument; exit status 1 if something is left."""
    scratch = decode_record(parse_object(sys.argv[1]), ScratchFolder, "scratch")
    if scratch.identity is not None:
        scratch.identity.assume()
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    places = [folder / scratch.name for folder in scratch.folders]
    kill_all_of(places)
    left = [place for place in places if not remove(place)]
    sys.exit(1 if left else 0)


def _end_with_daemon() -> None:
    os.read(0, 1)
    os._exit(1)


def kill_all_of(places: list[Path]) -> int:
    """Kills the processes of this user that name one of these folders in environment or arguments; returns how many."""
    words = [os.fsencode(str(place)) for place in places]
    until = time.monotonic() + EXECVE_LIMIT_S  # for all rounds together: there may always be one in execve(2)
    killed = set[int]()
    for _ in range(MAX_ROUNDS):
        is_over = True
        for pid in look_at_all(_pids(), lambda pid: pid if _names_one(pid, words) else None, until):
            if pid is None:
                continue
            is_over = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        if is_over:
            break
        time.sleep(ROUND_S)
    return len(killed)


def _pids() -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and int(entry.name) != os.getpid()
    ]


def _names_one(pid: int, words: list[bytes]) -> bool:
    """Whether a process of this user has one of the words in its environment, or, as a private daemon's logger does,
    in its arguments; a zombie has neither. Raises InExecve."""
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return False
        said = read_environment(pid) + b"\0" + read_beginning(pid, "cmdline")
    except OSError:  # it is gone
        return False
    return any(word in said for word in words)


def remove(place: Path) -> bool:
    """Removes a folder with all that is in it; whether nothing is left. Follows no links."""
    if place.is_symlink():  # no proof makes one
        return True
    for _ in range(PASSES):
        with contextlib.suppress(OSError):
            empty_removed(place)
        if not place.exists():
            return True
    return False
