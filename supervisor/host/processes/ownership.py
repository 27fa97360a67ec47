"""Proves that a process which the ledger names was started from this very state folder, not from one it is a copy of.

A folder that is copied while its daemon runs (`cp -a`, a snapshot, a volume that two containers mount) brings the whole
ledger with it, pids included. A daemon in the copy must leave those processes alone, whereas one whose folder was only
renamed, or mounted elsewhere, has to go on with them. What tells the two apart is the identity of folders and pipes,
which a copy never has:

    its mark names this folder by device and inode, signed with the folder's key    ours
    its mark names another folder                                                   not ours
    it holds a pipe that is in this daemon's runtime folder (the very inode)        ours; also without a mark
    it is a child of this process, which has executed itself anew (`reload`)        ours
    it is a zombie                                                                  ours: nothing is left to look at
    it has no mark, and no pipe of anybody's                                        ours if the ledger was written here

A folder that a backup was restored into, at the path it was saved from, has the key of what was there, and is another
folder. Its predecessor's workers would hold their checkpoint directories for ever, with no daemon that could end them.
They are ours too if no process but they and their children has their pipes open, which a live daemon always has. A
folder that was deleted has taken the key with it: nothing proves whose they are, and a person has to end them.

For the last row of the table, which is about programs that cleared their environment and their standard input, or whom
this user may not look at, the daemon notes in the folder which folder it is (`FOLDER_FILE`).
"""

import contextlib
import os
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from supervisor.host.blocking_calls import run_within
from supervisor.host.processes import marks
from supervisor.host.processes.marks import FolderIdentity
from supervisor.host.user_folders.mounted_over import folder_of_user, open_in
from supervisor.protocol import layout

ANSWER_S = 2.0  # of what a process has open; in memory it is there at once
FOLDER_FILE = "folder"  # in the state folder: its own device and inode
_PIPES = (layout.TO_WORKER, layout.FROM_WORKER, layout.STDIN)
_DELETED = " (deleted)"  # what readlink(2) of a descriptor appends to the path of a file without a name


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whether a process is this daemon's. `whose`: if not, the state folder it belongs to, as far as it says."""

    is_ours: bool
    whose: str | None = None


def judge(pid: int, state_dir: Path, attempt_folder: Path) -> Ownership:
    """Whether the live process `pid` was started from this state folder. `attempt_folder`: where its pipes are.

    Reads /proc and the folders: call it from a thread.
    """
    if _parent(pid) == os.getpid() or _is_zombie(pid):
        return Ownership(True)
    mark = marks.read_mark(pid)
    if mark is not None:
        if marks.is_of_daemon(mark, state_dir):
            return Ownership(True)
        named = marks.folder_of(mark)
        if named is not None and named != marks.identity_of_folder(state_dir):
            return Ownership(False, marks.state_dir_of(mark))
    holds_ours = _holds_pipe_of(pid, attempt_folder)
    if holds_ours:
        return Ownership(True)
    if mark is not None:
        return Ownership(False, marks.state_dir_of(mark))
    noted = _noted_folder(state_dir)
    if noted is None:
        # of an earlier version, which noted nothing: what can't be looked at is believed
        return Ownership(holds_ours is None)
    return Ownership(noted == marks.identity_of_folder(state_dir))


def has_pipes(pid: int, attempt_folder: Path) -> bool:
    """Whether a process has a pipe of this folder open, by which it can be reached. In a thread."""
    return _holds_pipe_of(pid, attempt_folder) is True


def is_of_another(pid: int, state_dir: Path) -> bool:
    """Whether a process says that another state folder's daemon started it. May wait: call it from a thread."""
    mark = marks.await_mark(pid)
    named = None if mark is None else marks.folder_of(mark)
    return named is not None and named != marks.identity_of_folder(state_dir)


@dataclass(frozen=True, slots=True)
class OfReplacedFolder:
    """Processes whose state folder was at the path of ours, and was deleted or replaced since, by mark.

    `abandoned`: signed with the key that ours has too, as it came from a backup, and no daemon has them. `others`: of
    those no live daemon is known.
    """

    abandoned: dict[str, list[psutil.Process]] = field(default_factory=dict)
    others: dict[str, list[psutil.Process]] = field(default_factory=dict)


def processes_of_replaced_folder(state_dir: Path) -> OfReplacedFolder:
    """What the daemons of the folder that was at this path before have left. Reads /proc: call it from a thread."""
    found = OfReplacedFolder()
    for mark, processes in marks.processes_at_path(state_dir).items():
        are_held = _are_held({process.pid for process in processes})
        if are_held is False and marks.is_signed_here(mark, state_dir):
            found.abandoned[mark] = processes
        elif not are_held:
            found.others[mark] = processes
    return found


def _are_held(pids: set[int]) -> bool | None:
    """Whether a daemon has these processes of one attempt: as long as it lives it has the pipes of its workers open,
    whatever became of its folders. None if that is not known, as another user's processes can't be looked at.
    """
    pipes = set[tuple[int, int]]().union(*(_held_within(pid) or set() for pid in pids))
    if not pipes:
        return None
    is_known = True
    for pid in psutil.pids():
        if pid in pids or pid == os.getpid() or _is_zombie(pid):
            continue
        held = _held_within(pid)
        if held is None:
            is_known = is_known and _stat(pid) is None  # gone meanwhile
        elif held & pipes:
            return True
    return False if is_known else None


def note_folder(state_dir: Path) -> None:
    """Notes in the state folder which folder it is; once nothing in the ledger is a copied folder's. Raises OSError."""
    identity = marks.identity_of_folder(state_dir)
    if identity is None or _noted_folder(state_dir) == identity:
        return
    path, temporary = state_dir / FOLDER_FILE, state_dir / f".{FOLDER_FILE}.{os.getpid()}"
    temporary.write_text(f"{identity}\n")
    temporary.chmod(0o600)
    temporary.rename(path)


def is_copy(state_dir: Path) -> bool:
    """Whether another folder's daemon wrote the ledger in this one last, as far as is known. Reads it: in a thread."""
    noted = _noted_folder(state_dir)
    return noted is not None and noted != marks.identity_of_folder(state_dir)


def _noted_folder(state_dir: Path) -> FolderIdentity | None:
    try:
        return FolderIdentity.parse((state_dir / FOLDER_FILE).read_text().strip())
    except (OSError, ValueError):
        return None


def _parent(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def _is_zombie(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _holds_pipe_of(pid: int, attempt_folder: Path) -> bool | None:
    """Whether a process has a pipe of this folder open; None if that can't be told."""
    ours, held = _inodes_in(attempt_folder), _held_within(pid)
    return None if held is None else bool(held & ours)


def _held_within(pid: int) -> set[tuple[int, int]] | None:
    """What `_held_pipes` gives; None also if a file system of the process's user does not answer: it may have a file
    of such a name open there."""
    try:
        return run_within(ANSWER_S, ("pipes", pid), partial(_held_pipes, pid))
    except TimeoutError:
        return None


def _inodes_in(folder: Path) -> set[tuple[int, int]]:
    inodes: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError), folder_of_user(folder) as descriptor:
        for name in _PIPES:
            with contextlib.suppress(OSError):
                pipe = open_in(descriptor, name, os.O_PATH)
                try:
                    inodes |= _inode_of_pipe(os.fstat(pipe))
                finally:
                    os.close(pipe)
    return inodes


def _inode_of_pipe(status: os.stat_result) -> set[tuple[int, int]]:
    return {(status.st_dev, status.st_ino)} if stat.S_ISFIFO(status.st_mode) else set()


def _held_pipes(pid: int) -> set[tuple[int, int]] | None:
    """Device and inode of the named pipes that a process has open under our names; None if this user may not look.

    Only what bears such a name is looked at more closely: a descriptor may lead to a file system that does not answer.
    """
    held: set[tuple[int, int]] = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as links:  # one after the other: a user may have a million
            for link in links:
                with contextlib.suppress(OSError):  # closed meanwhile
                    name = os.readlink(link.path).rpartition("/")[2]  # noqa: PTH115 - as above
                    if name.removesuffix(_DELETED) in _PIPES:
                        held |= _inode_of_pipe(os.stat(link.path))  # noqa: PTH116
    except OSError:
        return None
    return held
