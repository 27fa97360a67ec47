"""The daemon's pipes for what programs print: their reading ends, kept here too whoever reads them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.logs.messages import CapturePipe


@dataclass(slots=True)
class Pipe:
    """The reading end of a pipe: as long as it is open here, a log keeper that dies takes no program with it."""

    descriptor: int
    take: CapturePipe
    is_handed_over: bool = False


class Pipes:
    """All pipes into which somebody may still print, by inode. Belongs to one thread, but for `paths` and `len`."""

    def __init__(self) -> None:
        self._pipes: dict[int, Pipe] = {}

    def __len__(self) -> int:
        return len(self._pipes)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._pipes

    @property
    def paths(self) -> set[Path]:
        """Where they lead."""
        takes = [each.take for each in list(self._pipes.values())]
        return {Path(each) for take in takes for each in (take.path, take.syslog, take.journal) if each}

    def add(self, descriptor: int, take: CapturePipe) -> None:
        """A new pipe, which no keeper knows."""
        self._pipes[take.id] = Pipe(descriptor, take)

    def adopt(self, descriptor: int, take: CapturePipe) -> None:
        """A duplicate of one that the keeper reads."""
        if take.id in self._pipes:
            os.close(descriptor)
        else:
            self._pipes[take.id] = Pipe(descriptor, take)
        self._pipes[take.id].is_handed_over = True

    def forget(self, id_: int) -> None:
        """Nobody can print into it any more, and all has been read."""
        pipe = self._pipes.pop(id_, None)
        if pipe is not None:
            os.close(pipe.descriptor)

    def waiting(self) -> Iterator[Pipe]:
        """Those that the keeper has not been given yet."""
        return (each for each in self._pipes.values() if not each.is_handed_over)

    def take_back(self, id_: int) -> Path | None:
        """The keeper can't take this one at present; gives its path, None if it has ended."""
        pipe = self._pipes.get(id_)
        if pipe is None:
            return None
        pipe.is_handed_over = False
        return Path(pipe.take.path or pipe.take.syslog or pipe.take.journal)

    def take_all_back(self) -> None:
        """There is no keeper any more: all are to be handed over again."""
        for pipe in self._pipes.values():
            pipe.is_handed_over = False

    def close(self) -> None:
        """Closes all."""
        for id_ in list(self._pipes):
            self.forget(id_)
