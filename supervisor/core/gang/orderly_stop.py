"""To the chief of a gang with spare nodes: a turn whose workers save and stop in order, as that of one rank was told.

Whoever was told to says so as it leaves. If only its node goes away, the next turn begins once the workers of all other
ranks have stopped as well, or at `due_at` at the latest. If nobody says anything until then, the generation is over.
No worker exits before the checkpoint is there, but one can be killed, while the chief's still writes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

SAVING_S = 60.0  # from the first worker's end, or the first node that leaves, to that of the chief's, which saves
STOPPED_S = 10.0  # from the end of the chief's worker to that of all, and until it is known why


@dataclass(slots=True)
class OrderlyStop:
    """`stopped`: nodes whose worker has saved and stopped. `departed`: which node leaves alone, and why."""

    stopped: set[int] = field(default_factory=set)
    departed: str | None = None
    due_at: float | None = None

    def note_stopped(self, node: int, is_chief: bool, now: float) -> None:
        """The worker there has stopped."""
        self.stopped.add(node)
        self._limit(now + (STOPPED_S if is_chief else SAVING_S))

    def note_departed(self, text: str, now: float) -> None:
        """A node leaves alone, whose worker has ended."""
        self.departed = text
        self._limit(now + SAVING_S)

    def is_over(self, staying: Iterable[int]) -> bool:
        """Whether the next turn can begin. `staying`: nodes of this turn that have not left."""
        return self.departed is not None and self.stopped.issuperset(staying)

    def _limit(self, due_at: float) -> None:
        self.due_at = due_at if self.due_at is None else min(self.due_at, due_at)
