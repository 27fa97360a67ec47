"""A pool of event listeners: who gets which event, what an answer means, and when an event is sent again.

The protocol is Supervisor's (version 3.0 of it): a listener writes `READY`, gets one event, writes `RESULT`, and so on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from supervisor.core.listeners.event_buffer import EventBuffer, PoolEvent

PROTOCOL = "3.0"
READY = b"READY\n"
ACCEPTED, REJECTED = b"OK", b"FAIL"
RESULT = b"RESULT "

MAX_ANSWER_BYTES = 1 << 20  # Supervisor's own handler knows no answer longer than 4
MAX_LENGTH_DIGITS = 7
REFUSED_AGAIN_S = 1.0  # before an event that was rejected twice is sent again, for other work
SHOWN = 40  # characters of unexpected output that are quoted


class ListenerState(StrEnum):
    """The state of a listener in the protocol, in Supervisor's words."""

    ACKNOWLEDGED = "ACKNOWLEDGED"  # it started, or answered, and has not said READY
    READY = "READY"  # it waits for an event
    BUSY = "BUSY"  # it has one
    UNKNOWN = "UNKNOWN"  # it wrote something else: nothing is sent to it until it is restarted


@dataclass(frozen=True, slots=True)
class SendEvent:
    """Write this to a listener's standard input."""

    listener: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ListenerDistrusted:
    """A listener broke the protocol and is UNKNOWN from now on; `why` in words."""

    listener: str
    why: str


@dataclass(frozen=True, slots=True)
class EventRejected:
    """A listener rejected an event, which is sent again."""

    listener: str
    event: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class EventDropped:
    """The buffer is full, so an old event was dropped. `total`: how many since the daemon's start."""

    event: str
    total: int


PoolEffect = SendEvent | ListenerDistrusted | EventRejected | EventDropped


@dataclass(slots=True)
class Listener:
    """One process of the pool. `is_up`: it has outlived startsecs, so it gets events; `why`: it is UNKNOWN."""

    name: str
    state: ListenerState = ListenerState.ACKNOWLEDGED
    is_up: bool = False
    event: PoolEvent | None = None
    why: str | None = None
    received: bytearray = field(default_factory=bytearray)


class ListenerPool:
    """Events in the order in which they happened, and the listeners that get them. Times are monotonic seconds.

    `server`: the daemon's identifier. `capacity`: how many events may wait. `takes_data`: its answers are for code that
    is not here, so an event is done with unless the answer is FAIL.
    """

    def __init__(self, name: str, server: str, capacity: int, *, takes_data: bool = False) -> None:
        self.name = name
        self.takes_data = takes_data
        self.accepted = self.refused = self.dropped = 0
        self._server = server
        self.buffer = EventBuffer(capacity)
        """The events that wait for a listener."""
        self._serials = 0
        self._listeners: dict[str, Listener] = {}

    @property
    def waiting(self) -> int:
        """How many events wait for a listener."""
        return len(self.buffer)

    @property
    def unanswered(self) -> int:
        """How many events wait, or are with a listener that has not answered."""
        return self.waiting + sum(listener.event is not None for listener in self._listeners.values())

    @property
    def listeners(self) -> Iterable[Listener]:
        """Those that have a process."""
        return self._listeners.values()

    def listener(self, name: str) -> Listener | None:
        """The listener of that name, if it has a process."""
        return self._listeners.get(name)

    # --- what happens -------------------------------------------------------------------------------------------------

    def add_event(
        self, serial: int, name: str, payload: bytes, now: float, program: str | None = None
    ) -> list[PoolEffect]:
        """Queues an event; if there is no room, an old one is dropped."""
        self.buffer.add(PoolEvent(serial, self._serials, name, payload, program))
        self._serials += 1
        effects: list[PoolEffect] = []
        for lost in self.buffer.drop_beyond_room():
            self.dropped += 1
            effects.append(EventDropped(lost.name, self.dropped))
        return effects + self._dispatch(now)

    def listener_started(self, name: str) -> None:
        """A listener's process was started."""
        self._listeners[name] = Listener(name)

    def set_listener_up(self, name: str, is_up: bool, now: float) -> list[PoolEffect]:
        """Records whether a listener is RUNNING."""
        listener = self._listeners.get(name)
        if listener is not None:
            listener.is_up = is_up
        return self._dispatch(now)

    def listener_exited(self, name: str, now: float) -> list[PoolEffect]:
        """A listener's process is gone; an event that it has not answered goes to another one, or to its successor."""
        listener = self._listeners.pop(name, None)
        if listener is not None:
            self._requeue_event_of(listener)
        return self._dispatch(now)

    def listener_stdin_closed(self, name: str, now: float) -> list[PoolEffect]:
        """A listener has closed its standard input, or cannot be written to."""
        listener = self._listeners.get(name)
        if listener is None or listener.state is ListenerState.UNKNOWN:
            return []
        return [self._distrust(listener, "has closed its standard input"), *self._dispatch(now)]

    def listener_wrote(self, name: str, data: bytes, now: float) -> list[PoolEffect]:
        """A listener wrote to its standard output."""
        listener = self._listeners.get(name)
        if listener is None or listener.state is ListenerState.UNKNOWN:
            return []
        listener.received += data
        effects: list[PoolEffect] = []
        while (heeded := self._parse_reply(listener, now)) is not None:
            effects += heeded
        return effects + self._dispatch(now)

    def deadline(self) -> float | None:
        """When `expire` is to be called; None: nothing waits for a time."""
        oldest = self.buffer.oldest
        return None if oldest is None or self._free() is None else oldest.not_before

    def expire(self, now: float) -> list[PoolEffect]:
        """What is to be done if the deadline has passed."""
        return self._dispatch(now)

    # --- what is made of it -------------------------------------------------------------------------------------------

    def _parse_reply(self, listener: Listener, now: float) -> list[PoolEffect] | None:
        """Handles one reply of a listener; None if there is no complete one."""
        said = bytes(listener.received[: len(READY)])
        if not said:
            return None
        match listener.state:
            case ListenerState.ACKNOWLEDGED if said == READY:
                del listener.received[: len(READY)]
                listener.state = ListenerState.READY
                return []
            case ListenerState.ACKNOWLEDGED if READY.startswith(said):
                return None
            case ListenerState.BUSY:
                return self._parse_result(listener, now)
            case ListenerState.UNKNOWN:
                return None
        expected = "READY" if listener.state is ListenerState.ACKNOWLEDGED else "nothing before the next event"
        return [self._distrust(listener, f"wrote {_shown(listener.received)} where the protocol expects {expected}")]

    def _parse_result(self, listener: Listener, now: float) -> list[PoolEffect] | None:
        event = listener.event
        assert event is not None  # it is BUSY
        line, end, rest = bytes(listener.received).partition(b"\n")
        length = _length(line)
        if (length is None) if end else not _may_become_result(line):
            return [
                self._distrust(listener, f"wrote {_shown(listener.received)} where the protocol expects RESULT LENGTH")
            ]
        if not end or length is None or len(rest) < length:
            return None
        answer = rest[:length]
        del listener.received[: len(line) + 1 + length]
        listener.state = ListenerState.ACKNOWLEDGED
        if answer == ACCEPTED or (self.takes_data and answer != REJECTED):
            listener.event = None
            self.accepted += 1
            return []
        event.refusals += 1
        event.not_before = now + (REFUSED_AGAIN_S if event.refusals > 1 else 0.0)
        self.refused += 1
        self._requeue_event_of(listener)
        return [EventRejected(listener.name, event.name, answer)]

    def _distrust(self, listener: Listener, why: str) -> ListenerDistrusted:
        listener.state, listener.why = ListenerState.UNKNOWN, why
        listener.received.clear()
        self._requeue_event_of(listener)
        return ListenerDistrusted(listener.name, why)

    def _requeue_event_of(self, listener: Listener) -> None:
        """Puts its event back into the queue, before all later ones; there is always room for it."""
        event, listener.event = listener.event, None
        if event is not None:
            self.buffer.put_back(event)

    def _dispatch(self, now: float) -> list[PoolEffect]:
        effects: list[PoolEffect] = []
        while (
            (event := self.buffer.oldest) is not None
            and event.not_before <= now
            and (listener := self._free()) is not None
        ):
            self.buffer.take_oldest()
            listener.event, listener.state = event, ListenerState.BUSY
            effects.append(SendEvent(listener.name, self._envelope(event)))
        return effects

    def _free(self) -> Listener | None:
        ready = (
            listener
            for listener in self._listeners.values()
            if listener.state is ListenerState.READY and listener.is_up
        )
        return next(ready, None)

    def _envelope(self, event: PoolEvent) -> bytes:
        """Header and payload; `len` counts bytes, as Supervisor's documentation says."""
        header = (
            f"ver:{PROTOCOL} server:{self._server} serial:{event.serial} pool:{self.name} "
            f"poolserial:{event.pool_serial} eventname:{event.name} len:{len(event.payload)}\n"
        )
        return header.encode() + event.payload


def _length(line: bytes) -> int | None:
    """The length of the answer that this line announces; None if the line is not valid."""
    digits = line.removeprefix(RESULT)
    if not line.startswith(RESULT) or not digits.isdigit() or len(digits) > MAX_LENGTH_DIGITS:
        return None
    return length if (length := int(digits)) <= MAX_ANSWER_BYTES else None


def _may_become_result(start: bytes) -> bool:
    """Whether more bytes can still make it `RESULT LENGTH`."""
    return RESULT.startswith(start) or _length(start) is not None


def _shown(said: bytes | bytearray) -> str:
    return repr(bytes(said[:SHOWN]))[1:]
