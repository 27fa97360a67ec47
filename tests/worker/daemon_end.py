"""The daemon's end of the control pipe, in the hands of a test."""

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from supervisor.protocol import layout
from supervisor.protocol.wire import codec, lines, messages
from supervisor.protocol.wire.launch import Control

Said = TypeVar("Said")


class DaemonEnd:
    """The two real pipes of one attempt, driven by a test through the real codec."""

    def __init__(self, folder: Path, attempt: int = 1) -> None:
        self.attempt = attempt
        self.folder = folder / f"a{attempt}"
        self.folder.mkdir(parents=True)
        self.heard: list[messages.Message] = []
        self._decoder = lines.Decoder()
        for name in (layout.TO_WORKER, layout.FROM_WORKER):
            os.mkfifo(self.folder / name, 0o600)
        self._out = os.open(self.folder / layout.TO_WORKER, os.O_RDWR | os.O_NONBLOCK)
        self._in = os.open(self.folder / layout.FROM_WORKER, os.O_RDWR | os.O_NONBLOCK)

    def control(self) -> Control:
        return Control(self.attempt, self.folder)

    def send(self, message: messages.Message) -> None:
        self.send_line(lines.encode_message(message))

    def send_line(self, line: bytes) -> None:
        os.write(self._out, line)

    def wait_for(self, kind: type[Said], timeout: float = 90.0, among: Callable[[Said], bool] = lambda _: True) -> Said:
        """The first message of a kind that was heard, or is within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            for message in self.heard:
                if isinstance(message, kind) and among(message):
                    return message
            left = deadline - time.monotonic()
            assert left > 0, f"no {kind.__name__} within {timeout} s; heard {self.heard}"
            self.read(left)

    def read(self, timeout: float = 0.0) -> None:
        """Takes what is in the pipe, waiting for something for at most `timeout` seconds."""
        readable, _, _ = select.select([self._in], [], [], timeout)
        if readable:
            for message in self._decoder.feed(os.read(self._in, 65536)):
                assert not isinstance(message, codec.ProtocolError), message
                self.heard.append(message)

    def all_of(self, kind: type[Said]) -> list[Said]:
        return [message for message in self.heard if isinstance(message, kind)]

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
