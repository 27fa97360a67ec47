"""Opens files in folders that other users can write, so that no link of theirs leads a root daemon elsewhere.

A path is walked from the root by descriptors. A symbolic link that root made is followed, as an administrator's. One
that a user made, or could have moved, is followed only to what is that user's own: folder and file. A terminal never
becomes the daemon's own.

In a folder that others than root can write, only a regular file or a named pipe is used, and only one that could not be
brought there from elsewhere:

- It belongs to the folder's owner, to root, or to one of the users that the caller names: not to a third one.
- It has no other name, since a hard link may lead to anybody's file. The owner of a folder that nobody else can write
  may have made one of their own file.
- To be read, a file of root's in a user's folder must be readable by everybody: a hard link's other name may be gone.
- A new file belongs to the folder's owner, as if that user had made it.

This is what opening it as that user would give, without another process for each log.

A daemon that is not root has only its own rights to lose: there, paths are opened as they are.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_LINKS = 40  # as the kernel
OPEN_FLAGS = os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_guarded(path: Path, flags: int, mode: int = 0o644, users: Collection[int] = ()) -> int:
    """A descriptor of the file at `path`, also for a new one. `users`: uids whose files it may be, besides the usual.

    Raises OSError, EPERM if it is not to be trusted.
    """
    if os.geteuid() != 0:
        return os.open(path, flags | OPEN_FLAGS, mode)
    walk = _Walk(path)
    try:
        name = walk.go_to_file()
        if walk.is_magic:  # /proc/self/fd/1, which root asked for: a pipe may have no name
            return os.open(name, flags | OPEN_FLAGS, dir_fd=walk.folder)
        walk.check_folder()
        descriptor = _open_or_create(name, flags, mode, walk)
        try:
            walk.check_file(os.fstat(descriptor), flags & os.O_ACCMODE == os.O_RDONLY, users)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    except OSError as error:
        error.filename = str(path)  # not the part of it that was opened last
        raise
    finally:
        walk.close()


@contextmanager
def guarded_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder `path`, in which names may be changed. Raises OSError as `open_guarded`."""
    if os.geteuid() != 0:
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        walk = _Walk(path)
        try:
            walk.go_to_end()
            walk.check_folder()
            descriptor = os.dup(walk.folder)
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            walk.close()
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Walk:
    """One way from the root to a file. `folder`: the descriptor of where it has come to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ahead = _parts(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow links
        self._links = 0
        self._linkers: set[int] = set()  # users whose links were followed
        self.is_magic = False
        self.folder = os.open("/", _FOLDER)

    def close(self) -> None:
        os.close(self.folder)

    def go_to_file(self) -> str:
        """Goes to the folder that the file is in, through links in its own place too; the file's name there."""
        while len(self._ahead) > 1 or (self._ahead and self._followed_link(self._ahead[-1])):
            if len(self._ahead) > 1:
                self._step()
        if not self._ahead or self._ahead[0] == "..":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self._path))
        return self._ahead[0]

    def go_to_end(self) -> None:
        """Goes into the folder that the path names."""
        while self._ahead:
            self._step()

    def check_folder(self) -> None:
        """Raises OSError if somebody's link led to a folder that is not their own."""
        for user in self._linkers:
            owner = os.fstat(self.folder).st_uid
            if owner != user:
                raise self._refusal(f"a link of uid {user} leads to a folder of uid {owner}")

    def check_file(self, status: os.stat_result, is_read: bool, users: Collection[int]) -> None:
        """Raises OSError if this may be another file than its name says."""
        for user in self._linkers:
            if status.st_uid != user:
                raise self._refusal(f"a link of uid {user} leads to a file of uid {status.st_uid}")
        folder = os.fstat(self.folder)
        if folder.st_uid == 0 and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise self._refusal("it is neither a file nor a named pipe, in a folder that others can write")
        is_shared = bool(folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if status.st_nlink > 1 and (is_shared or status.st_uid == 0 or status.st_uid != folder.st_uid):
            raise self._refusal(f"it is a file of uid {status.st_uid} with other names elsewhere")
        if not is_read and status.st_uid not in (0, folder.st_uid, *users):
            raise self._refusal(f"it is a file of uid {status.st_uid} in a folder of uid {folder.st_uid}")
        if is_read and status.st_uid == 0 != folder.st_uid and not status.st_mode & stat.S_IROTH:
            raise self._refusal("it is a private file of root's in a folder of another user")

    def creator(self) -> tuple[int, int] | None:
        """Uid and gid that a new file belongs to; None: to the daemon, as in root's folders."""
        status = os.fstat(self.folder)
        return (status.st_uid, status.st_gid) if status.st_uid else None

    def _step(self) -> None:
        name = self._ahead[-1]
        if self._followed_link(name):
            return
        inner = os.open(name, _FOLDER, dir_fd=self.folder)
        os.close(self.folder)
        self.folder = inner
        self._ahead.pop()

    def _followed_link(self, name: str) -> bool:
        """Replaces a link by what it says; False if `name` is none."""
        try:
            link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.folder)
        except FileNotFoundError:
            return False
        try:
            status = os.fstat(link)
            if not stat.S_ISLNK(status.st_mode):
                return False
            if len(self._ahead) == 1 and not self._linkers and status.st_dev == Path("/proc").stat().st_dev:
                self.is_magic = True
                return False
            self._links += 1
            if self._links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(self._path))
            self._linkers |= {status.st_uid, os.fstat(self.folder).st_uid} - {0}
            target = os.readlink("", dir_fd=link)
        finally:
            os.close(link)
        self._ahead.pop()
        self._ahead += _parts(target)
        if target.startswith("/"):
            os.close(self.folder)
            self.folder = os.open("/", _FOLDER)
        return True

    def _refusal(self, why: str) -> PermissionError:
        text = f"{why}; a root daemon uses it only if nobody else can put it there"
        return PermissionError(errno.EPERM, text, str(self._path))


def _open_or_create(name: str, flags: int, mode: int, walk: _Walk) -> int:
    flags |= OPEN_FLAGS | os.O_NOFOLLOW
    creator = walk.creator() if flags & os.O_CREAT else None
    if creator is None:
        return os.open(name, flags, mode, dir_fd=walk.folder)
    try:
        return os.open(name, flags & ~os.O_CREAT, dir_fd=walk.folder)
    except FileNotFoundError:
        descriptor = os.open(name, flags | os.O_EXCL, mode, dir_fd=walk.folder)
        with contextlib.suppress(OSError):  # a file system without owners
            os.fchown(descriptor, *creator)
        return descriptor


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
