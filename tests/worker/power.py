"""What a power cut leaves of a folder, by a model of the disk that this process keeps beside the real one.

The model: what fsync was called for is on the disk, as it was then; of the rest three extremes are looked at.
`synced`: nothing else is there: a file or name that was not synced does not exist or is as it was before.
`names`: every name is as the last system call left it, and files that were not synced are empty, as on a file system
that writes its journal before the data. `torn`: the same, but of what was written and not synced the first half is
there: the disk is asked to begin before the sync.
It can't show: sectors torn within one write, disks that lie about fsync, and a mixture of these extremes.
Calls of this process only, and only on regular files and folders.
"""

import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.worker import power_calls

Tree = dict[str, Any]  # name -> bytes of a file, or Tree of a folder


@dataclass(frozen=True)
class Cut:
    """What a power cut before one system call would leave."""

    before: str
    synced: Tree
    names: Tree
    torn: Tree


@dataclass
class Disk:
    """Watches a folder, all of which counts as synced at the start. Synced inodes stay open, so none comes twice."""

    root: Path
    cuts: list[Cut] = field(default_factory=list)
    _files: dict[int, bytes] = field(default_factory=dict)
    _folders: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)
    _held: list[int] = field(default_factory=list)

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for folder, _, files in os.walk(self.root):
            for path in (Path(folder), *(Path(folder, name) for name in files)):
                descriptor = os.open(path, os.O_RDONLY)
                self._sync(descriptor)
                os.close(descriptor)
        power_calls.watch(patch, self.root, lambda name, path: self.cuts.append(self.cut(f"{name} {path}")), self._sync)

    def cut(self, before: str) -> Cut:
        names, torn = self._live(self.root, torn=False), self._live(self.root, torn=True)
        return Cut(before, self._durable(self.root.stat().st_ino), names, torn)

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        self._held.append(os.dup(descriptor))
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            self._files[found.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        elif stat.S_ISDIR(found.st_mode):
            with os.scandir(descriptor) as entries:
                self._folders[found.st_ino] = {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}

    def _durable(self, folder: int) -> Tree:
        return {
            name: self._durable(inode) if is_folder else self._files.get(inode, b"")
            for name, (inode, is_folder) in self._folders.get(folder, {}).items()
        }

    def _live(self, folder: Path, torn: bool) -> Tree:
        tree: Tree = {}
        for entry in os.scandir(folder):
            if entry.is_dir():
                tree[entry.name] = self._live(Path(entry.path), torn)
            else:
                written = Path(entry.path).read_bytes()
                half = written[: len(written) // 2] if torn else b""
                tree[entry.name] = self._files.get(entry.inode(), half)
        return tree


def write(tree: Tree, folder: Path) -> Path:
    """Makes a tree real, for the code that selects and verifies."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in tree.items():
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            write(content, folder / name)
    return folder
