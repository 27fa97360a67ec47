"""What the daemon has asked its logger and has no answer to yet. A logger that dies leaves it to the next one."""

import itertools
from collections.abc import Iterator
from concurrent.futures import Future

from supervisor.host.logs.messages import AttemptBegan, BeginAttempt, ClearFile, FileCleared, Rotation


class UnansweredRequests:
    """The requests, in the order in which another logger gets them. Belongs to one thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._clears: dict[int, tuple[ClearFile, Future[bool]]] = {}
        self._beginnings: dict[tuple[str, str], BeginAttempt] = {}  # by program and channel

    def __iter__(self) -> Iterator[ClearFile | BeginAttempt]:
        yield from (message for message, _ in self._clears.values())
        yield from self._beginnings.values()

    def add_clear(self, path: str, done: Future[bool], rotation: Rotation | None) -> ClearFile:
        """Gives the request to empty or rotate a file; `done` is set by its answer."""
        number = next(self._numbers)
        message = ClearFile(number, path, rotation is not None, *(rotation or ()))
        self._clears[number] = message, done
        return message

    def add_beginning(self, begins: BeginAttempt) -> None:
        """Adds the question where the output of an attempt begins, in the place of that for an earlier one."""
        self._beginnings[begins.program, begins.channel] = begins

    def on_file_cleared(self, message: FileCleared) -> None:
        """A file was emptied or rotated, or could not be."""
        if message.request not in self._clears:
            return
        _, done = self._clears.pop(message.request)
        if message.errno:
            done.set_exception(OSError(message.errno, message.why))
        else:
            done.set_result(True)

    def on_attempt_began(self, message: AttemptBegan) -> None:
        """The logger has said where the output of an attempt begins."""
        begins = self._beginnings.get((message.program, message.channel))
        if begins is not None and begins.attempt == message.attempt:
            del self._beginnings[message.program, message.channel]

    def abandon_clears(self) -> None:
        """No logger has any file open: whoever waits may do it without one."""
        for _, done in self._clears.values():
            done.set_result(False)
        self._clears.clear()
