"""Reads the files of the notice folder, trusting neither their names, nor their types, nor their sizes."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 4096
MAX_FILES = 100  # each is read every few seconds
MAX_NAME = 100
FOLDER_MODE = 0o750


@dataclass(frozen=True, slots=True)
class NoticeFileRead:
    """The content of one file. `written_wall_at`: Unix seconds."""

    name: str
    body: bytes
    written_wall_at: float


@dataclass(frozen=True, slots=True)
class FolderContents:
    """The notice files in the folder. `refused`: by file name, why and what to do. `inode`: of the folder itself."""

    files: tuple[NoticeFileRead, ...]
    refused: dict[str, str]
    inode: int


class FolderError(Exception):
    """The folder can't be read, or can't be trusted; the text says why and what to do."""


class _FileRefused(Exception):
    """A file that must not be read; the text says why and what to do."""


def read_folder(path: Path, owners: frozenset[int]) -> FolderContents:
    """Reads every notice file in the folder; creates the folder if it is missing. Raises FolderError.

    Names that begin with a dot are skipped: writers rename their finished files into place.
    """
    try:
        path.mkdir(mode=FOLDER_MODE, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(
            f"cannot read the notice folder {path}: {error.strerror or error}; create it, owned by root, mode 0750"
        ) from error
    try:
        inode = _check_folder(path, os.fstat(folder), owners)
        return _read_files(folder, sorted(os.listdir(folder)), owners, inode)  # noqa: PTH208 - of the folder checked, not of its name
    except OSError as error:
        raise FolderError(f"cannot read the notice folder {path}: {error.strerror or error}; check its disk") from error
    finally:
        os.close(folder)


def _check_folder(path: Path, status: os.stat_result, owners: frozenset[int]) -> int:
    if status.st_uid not in owners:
        raise FolderError(
            f"cannot trust the notice folder {path}: it belongs to uid {status.st_uid}; chown root {path}"
        )
    if status.st_mode & 0o022:
        raise FolderError(f"cannot trust the notice folder {path}: others may write in it; chmod go-w {path}")
    return status.st_ino


def _read_files(folder: int, names: list[str], owners: frozenset[int], inode: int) -> FolderContents:
    names = [name for name in names if not name.startswith(".")]
    files, refused = [], {}
    for name in names[:MAX_FILES]:
        try:
            files.append(_read_file(folder, name, owners))
        except FileNotFoundError:
            continue  # removed meanwhile: withdrawn
        except _FileRefused as reason:
            refused[name] = str(reason)
        except OSError as error:
            refused[name] = f"{error.strerror or error}; let root write it"
    for name in names[MAX_FILES:]:
        refused[name] = f"the folder has more than {MAX_FILES} files; remove some"
    return FolderContents(tuple(files), refused, inode)


def _read_file(folder: int, name: str, owners: frozenset[int]) -> NoticeFileRead:
    if len(name) > MAX_NAME or not (name.isascii() and name.isprintable()):
        raise _FileRefused(f"its name is not allowed; use up to {MAX_NAME} printable ASCII characters")
    # checked before it is opened too: opening a device may have effects
    _check_file(os.stat(name, dir_fd=folder, follow_symlinks=False), owners)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        _check_file(status, owners)
        body = os.read(descriptor, MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(body) > MAX_BYTES:
        raise _FileRefused(f"it is longer than {MAX_BYTES} bytes; shorten it")
    return NoticeFileRead(name, body, status.st_mtime)


def _check_file(status: os.stat_result, owners: frozenset[int]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _FileRefused("it is not a regular file; links, pipes and devices are not followed")
    if status.st_uid not in owners:
        raise _FileRefused(f"it belongs to uid {status.st_uid}, who is not in notice_owners; let root write it")
    if status.st_mode & 0o022:
        raise _FileRefused("others may write to it; chmod go-w it")
    if status.st_nlink > 1:
        raise _FileRefused("it has a second hard link; write a separate file")
    if status.st_size > MAX_BYTES:
        raise _FileRefused(f"it is {status.st_size} bytes long, more than {MAX_BYTES}; shorten it")
