"""The reading ends of the pipes that programs print into: the daemon keeps a duplicate of each."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.host.logs.messages import CapturePipe


@dataclass(slots=True)
class CapturedPipe:
    """The reading end of a pipe: while it is open here, programs survive the death of the logger."""

    descriptor: int
    request: CapturePipe
    is_handed_over: bool = False


class CapturedPipes:
    """All pipes that have a writer left, by inode. Belongs to one thread, except `paths` and `len`."""

    def __init__(self) -> None:
        self._pipes: dict[int, CapturedPipe] = {}

    def __len__(self) -> int:
        return len(self._pipes)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._pipes

    @property
    def paths(self) -> set[Path]:
        """The files and log daemons that they lead to."""
        requests = [pipe.request for pipe in list(self._pipes.values())]
        return {Path(path) for request in requests for path in (request.path, request.syslog, request.journal) if path}

    def add(self, descriptor: int, request: CapturePipe) -> None:
        """Adds a new pipe, which no logger has."""
        self._pipes[request.id] = CapturedPipe(descriptor, request)

    def add_handed_over(self, descriptor: int, request: CapturePipe) -> None:
        """Adds a duplicate of a pipe that the logger reads."""
        if request.id in self._pipes:
            os.close(descriptor)
        else:
            self._pipes[request.id] = CapturedPipe(descriptor, request)
        self._pipes[request.id].is_handed_over = True

    def close_pipe(self, id_: int) -> None:
        """Closes a pipe that has no writer left and is empty."""
        pipe = self._pipes.pop(id_, None)
        if pipe is not None:
            os.close(pipe.descriptor)

    def not_handed_over(self) -> Iterator[CapturedPipe]:
        """The pipes that the logger does not have yet."""
        return (pipe for pipe in self._pipes.values() if not pipe.is_handed_over)

    def mark_not_handed_over(self, id_: int) -> Path | None:
        """The logger can't read this one at present; returns its path, None if it has ended."""
        pipe = self._pipes.get(id_)
        if pipe is None:
            return None
        pipe.is_handed_over = False
        return Path(pipe.request.path or pipe.request.syslog or pipe.request.journal)

    def mark_none_handed_over(self) -> None:
        """The logger is gone: all pipes have to be handed over again."""
        for pipe in self._pipes.values():
            pipe.is_handed_over = False

    def close_all(self) -> None:
        """Closes all."""
        for id_ in list(self._pipes):
            self.close_pipe(id_)
