"""What a notice is: somebody says that this host is going away."""

from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """What is going to happen."""

    PREEMPTION = "preemption"  # the provider takes the host back
    MAINTENANCE = "maintenance"  # the provider restarts it, or moves it with an interruption
    FREEZE = "freeze"  # the provider lets it stand still for a moment, and then go on
    REBALANCE = "rebalance"  # the provider expects to take it back, and says no time
    SHUTDOWN = "shutdown"  # somebody powers it off or reboots it
    DRILL = "drill"  # nothing: somebody practises


class Certainty(StrEnum):
    """How sure it is; only a certain one is worth stopping for."""

    POSSIBLE = "possible"  # a checkpoint now, and training goes on
    CERTAIN = "certain"


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice of one source. The same `source` and `id` again is the same notice, perhaps with another deadline.

    `deadline_at`: when the host may be gone (monotonic seconds), None where the source says no time. `is_cancellable`:
    the source may withdraw it. `text`: what the source said, in one line for people. `said_wall`: the hour that the
    source named (Unix seconds), None where it named none and the deadline counts from when it was heard.
    """

    source: str
    id: str
    kind: NoticeKind
    certainty: Certainty
    deadline_at: float | None
    is_cancellable: bool
    text: str
    deadline_wall_at: float | None = None
