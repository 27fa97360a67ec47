"""What a daemon that starts later has to know of this attempt: the newest message of each kind, and its last words."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.wire.messages import (
    Committed,
    Done,
    Failed,
    FromWorker,
    MemoryCopies,
    Phase,
    Progress,
    Restored,
    Restoring,
    Then,
    WorkerStatus,
)
from worker.process.reporting import encode_within_limit, print_message
from worker.process.requests import PendingRequests

LAST_WORDS_BYTES = 32 * 1024  # of messages for a later daemon; it needs the last one


class SentMessages:
    """The messages that this process has sent, as far as they are still of interest."""

    def __init__(self) -> None:
        self.last_progress: Progress | None = None
        self._restoring: Restoring | None = None
        self._restored: Restored | None = None
        self._committed: tuple[Committed, float] | None = None  # the newest, and when that was (monotonic)
        self._memory: MemoryCopies | None = None
        self._done: Done | None = None
        self._failed: Failed | None = None

    @property
    def has_restored(self) -> bool:
        """Whether the checkpoint that the daemon selected is restored."""
        return self._restored is not None

    def record(self, message: FromWorker) -> None:
        """A message is sent."""
        match message:
            case Restoring():
                self._restoring, self._done, self._failed = message, None, None  # another run of the script begins
            case Restored():
                self._restored, self._done, self._failed = message, None, None
            case Committed():
                earlier = () if self._committed is None else self._committed[0].left_out
                message = replace(message, left_out=tuple(dict.fromkeys((*earlier, *message.left_out))))
                self._committed = message, time.monotonic() - (message.ago_s or 0.0)
            case MemoryCopies():
                self._memory = message
            case Done():
                self._done = message
            case Failed():
                self._failed = message

    def repeated(self) -> Iterator[FromWorker]:
        """The messages that a daemon which has just started needs, in their order."""
        if self._restoring is not None:
            yield self._restoring
        if self._restored is not None:
            yield self._restored
        if (last := self._committed) is not None:
            yield replace(last[0], ago_s=max(0.0, time.monotonic() - last[1]))
        if self._memory is not None:
            yield self._memory
        if self.last_progress is not None:
            yield replace(self.last_progress, data_s=None)
        if self._done is not None:
            yield self._done
        if self._failed is not None:
            yield self._failed

    def status(self, attempt: int, requests: PendingRequests, has_go: bool) -> WorkerStatus:
        """What this process does now. `has_go`: whether the daemon has selected a checkpoint."""
        restored = self._restored
        if self._done is not None:
            phase = Phase.DONE
        elif restored is not None:
            phase = Phase.TRAINING
        else:
            phase = Phase.RESTORING if has_go else Phase.WAITING
        return WorkerStatus(
            attempt,
            os.getpid(),
            phase,
            None if restored is None else max(restored.step, requests.step),
            None if restored is None else restored.checkpoint,
            tuple(sorted(requests.unanswered_flushes.copy())),
            requests.last_flush_id,
            Then.STOP if requests.stop_requested else Then.GO_ON,
        )


class LastWords:
    """A file beside the `pipes`, for a daemon that starts after this process has gone: how training ended.

    That place is in memory, as a rule: a script that has run after run keeps the last ones only.
    """

    def __init__(self, pipes: Path) -> None:
        self._file = pipes / layout.LAST_WORDS
        self._is_written = False

    def write(self, message: Done | Failed) -> None:
        """Adds the message."""
        line = encode_within_limit(message)
        try:
            with self._file.open("ab") as file:
                if file.tell() + len(line) > LAST_WORDS_BYTES:
                    file.truncate(0)
                file.write(line)
        except OSError as error:  # a daemon that is there reads it from the pipe
            print_message(f"cannot write {self._file}: {error}; a later daemon won't know how this ended")
        self._is_written = True

    def take_back(self) -> None:
        """Another run of the script begins: how the one before it ended is not how this process ends."""
        if not self._is_written:
            return
        self._is_written = False
        try:
            os.truncate(self._file, 0)
        except OSError as error:
            print_message(
                f"cannot empty {self._file}: {error}; a later daemon may take the end of the run before this one for "
                f"that of the attempt"
            )
