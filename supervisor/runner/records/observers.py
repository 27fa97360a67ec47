"""Who follows what happens to one program, and the list that calls them."""

from collections.abc import Callable, Iterable
from types import TracebackType

from supervisor.core.program.effects import Effect
from supervisor.core.program.events import Event
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.protocol.wire import messages


class ProgramObserver:
    """Follows one program; an observer overrides the methods that it needs. Supervision depends on none of them.

    `facts`: all that is known of the program; for reading only. `now`: the event loop's time, monotonic seconds. All
    methods are called in the event loop's thread.
    """

    __slots__ = ()

    def on_decision(self, event: Event | str | None, before: State, decided: list[Effect], facts: ProgramFacts) -> None:
        """The core decided what follows from an event, and none of the effects (`decided`) is executed yet.

        `before`: the state until then. `event`: a text after an internal error; None when a start was only held back.
        """

    def on_effect(self, effect: Effect, now: float) -> None:
        """An effect is about to be executed."""

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        """The worker sent a message; the event that follows from it is not posted yet."""

    def on_checkpoint_refused(self, checkpoint: str, reason: str) -> None:
        """A checkpoint was found damaged, or does not fit the program."""

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        """All events that came at once are handled; `before`: the state that the program had before the first."""


class ObserverList(ProgramObserver):
    """Calls `observers` in their order.

    An exception of one is given to `report`, with the words that say where, and does not reach the others.
    """

    __slots__ = ("_contained", "_observers")

    def __init__(self, report: Callable[[str, BaseException], None], observers: Iterable[ProgramObserver]) -> None:
        self._observers = tuple(observers)
        self._contained = _Contained(report)

    def on_decision(self, event: Event | str | None, before: State, decided: list[Effect], facts: ProgramFacts) -> None:
        for observer in self._observers:
            with self._contained:
                observer.on_decision(event, before, decided, facts)

    def on_effect(self, effect: Effect, now: float) -> None:
        for observer in self._observers:
            with self._contained:
                observer.on_effect(effect, now)

    def on_message(self, message: messages.FromWorker, now: float) -> None:
        for observer in self._observers:
            with self._contained:
                observer.on_message(message, now)

    def on_checkpoint_refused(self, checkpoint: str, reason: str) -> None:
        for observer in self._observers:
            with self._contained:
                observer.on_checkpoint_refused(checkpoint, reason)

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        for observer in self._observers:
            with self._contained:
                observer.on_settled(before, facts, now)


class _Contained:
    """A block whose errors are reported and not raised."""

    __slots__ = ("_report",)

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        self._report = report

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._report("an observer", error)
        return True
