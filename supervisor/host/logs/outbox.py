"""What the log keeper has to tell the daemon, while that has no time for it."""

from supervisor.host.logs.link import Link
from supervisor.host.logs.messages import LoggerMessage, OutputMissed, OutputPrinted

HELD_BYTES = 1024 * 1024  # of what programs printed, as for a log daemon that is away


class Outbox:
    """Messages in their order; of those about one subject only the latest. Descriptors in it stay the caller's."""

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[LoggerMessage, int | None]] = {}
        self._printed = 0  # how many packets of it there were: each is a subject of its own
        self._held_bytes = 0
        self._missed = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, subject: object, message: LoggerMessage, descriptor: int | None = None) -> None:
        """What is newer replaces what is older."""
        self._waiting.pop(subject, None)
        self._waiting[subject] = (message, descriptor)

    def put_printed(self, packets: list[OutputPrinted]) -> None:
        """All of it or nothing: what does not fit is counted, and the daemon is told the count."""
        size = sum(len(each.data) for each in packets)
        if self._held_bytes and self._held_bytes + size > HELD_BYTES:
            self._missed += 1
            self._waiting["missed"] = (
                OutputMissed(self._missed),
                None,
            )  # where it stands: it is told in the midst of a flood
            return
        for each in packets:
            self._printed += 1
            self.put(("printed", self._printed), each)
        self._held_bytes += size

    def send(self, link: Link) -> None:
        """Sends what there is room for. Raises LinkLost."""
        while self._waiting:
            subject = next(iter(self._waiting))
            message, descriptor = self._waiting[subject]
            if not link.send(message, descriptor):
                return
            del self._waiting[subject]
            if isinstance(message, OutputPrinted):
                self._held_bytes -= len(message.data)
            elif isinstance(message, OutputMissed):
                self._missed = 0

    def clear(self) -> None:
        """Nobody is there to be told."""
        self._waiting.clear()
        self._held_bytes = self._missed = 0
