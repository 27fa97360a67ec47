"""Every call by which this process changes a folder on the disk, told before it is made.

Calls of Python's `os`, and what goes through `open`: a file made, and each piece of it that goes to the kernel. What
TensorFlow's own code writes is not seen; it shows in what the next call finds.
"""

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

CALLS = ("mkdir", "pwrite", "fsync", "rename", "replace", "unlink", "rmdir")
Before = Callable[[str, Path], None]
"""Told the call's name, and the file or folder it is about. What it raises is the call's error."""


class Patch(Protocol):
    """What puts a function in the place of another: as pytest's MonkeyPatch, which scripts do better without."""

    def setattr(self, target: Any, name: str, value: Any, /) -> None: ...


def watch(patch: Patch, root: Path, before: Before, synced: Callable[[int], None] = lambda descriptor: None) -> None:
    """Until `patch` is undone. `synced`: called with the descriptor after each fsync."""
    root = root.resolve()

    def told(name: str, path: Path) -> None:
        if path.is_relative_to(root):
            before(name, path)

    for name in CALLS:
        patch.setattr(os, name, _call(name, getattr(os, name), told, synced))
    patch.setattr(os, "open", _os_open(os.open, told))
    opened = _open(io.open, root, told)
    patch.setattr(io, "open", opened)
    patch.setattr(builtins, "open", opened)


def _call(name: str, real: Callable[..., Any], told: Before, synced: Callable[[int], None]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        told(name, _path(arguments[0], named.get("dir_fd", named.get("src_dir_fd"))))
        result = real(*arguments, **named)
        if name == "fsync":
            synced(arguments[0])
        return result

    return call


def _path(given: Any, folder: int | None) -> Path:
    if isinstance(given, int):
        return _of_descriptor(given)
    return Path(os.fsdecode(given)) if folder is None else _of_descriptor(folder) / os.fsdecode(given)


def _of_descriptor(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


def _os_open(real: Callable[..., int], told: Before) -> Callable[..., int]:
    def call(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            told("create", _path(path, named.get("dir_fd")))
        return real(path, flags, *rest, **named)

    return call


def _open(real: Callable[..., Any], root: Path, told: Before) -> Callable[..., Any]:
    def call(
        file: Any, mode: str = "r", buffering: int = -1, *texts: Any, encoding: str | None = None, **named: Any
    ) -> Any:
        is_path = isinstance(file, str | os.PathLike)
        if not is_path or not set(mode) & set("wxa") or not Path(file).is_relative_to(root):
            return real(file, mode, buffering, *texts, **({"encoding": encoding} if encoding else {}), **named)
        assert "+" not in mode and buffering == -1, "no code under test asks for that"
        told("create", Path(file))
        buffered = io.BufferedWriter(_Written(Path(file), mode, told))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8")

    return call


class _Written(io.FileIO):
    def __init__(self, path: Path, mode: str, told: Before) -> None:
        super().__init__(path, mode.replace("b", "").replace("t", ""))
        self._path, self._told = path, told

    def write(self, piece: Any) -> int:
        self._told("write", self._path)
        return super().write(piece)
