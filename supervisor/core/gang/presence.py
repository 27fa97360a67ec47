"""Which daemons of a gang are there, as one of them knows: who was heard lately, who has left, who has no worker."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

from supervisor.core.gang.roster import CHIEF

SILENCE_S = 10.0  # without a word: its node is gone, or the link; words come every second


@dataclass(slots=True)
class Presence:
    """All times are monotonic seconds."""

    ready: dict[int, str] = field(default_factory=dict)
    """To the chief: nodes without a worker, and where the next one listens."""
    gone: set[int] = field(default_factory=set)
    """Nodes that have said that they leave, and are not back."""
    _heard_at: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Of those that have joined and not left; first the one from which nothing was heard for longest: a chief asks for
    it whenever a rank joins."""

    @property
    def nodes(self) -> Collection[int]:
        """Those that are there, and the chief."""
        return {CHIEF, *self._heard_at}

    def knows(self, node: int) -> bool:
        """Whether it was heard, and is not lost."""
        return node in self._heard_at

    def has_left(self, node: int) -> bool:
        """Whether it has said that it leaves, and is not back."""
        return node in self.gone

    def came(self, node: int, now: float) -> None:
        """It has joined, perhaps again."""
        self.gone.discard(node)
        self.heard(node, now)

    def heard(self, node: int, now: float) -> None:
        """It said something; what one says that has left does not count."""
        if node not in self.gone:
            self._heard_at[node] = now
            self._heard_at.move_to_end(node)

    def left(self, node: int) -> None:
        """It said that it leaves."""
        self.gone.add(node)
        self.forget(node)

    def forget(self, node: int) -> None:
        """It is not there any more."""
        self._heard_at.pop(node, None)
        self.ready.pop(node, None)

    def silent_at(self) -> float | None:
        """When the first of them will have been silent for too long."""
        return next((at + SILENCE_S for at in islice(self._heard_at.values(), 1)), None)

    def pop_silent(self, now: float) -> list[int]:
        """Those that were silent for too long; they are not there any more."""
        silent = sorted(node for node, at in self._heard_at.items() if now >= at + SILENCE_S)
        for node in silent:
            self.forget(node)
        return silent
