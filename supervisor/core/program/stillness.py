"""The host, or the daemon on it, stood still: moved to other hardware, paused, or too busy to run anything.

Meanwhile nobody could do a step and nobody could hear of one, and the clock that time limits are measured with went on.
(In a suspend to memory it does not, so that is no matter here.) What has been waited for then has its whole time again,
from the moment the host goes on: a limit that passed unseen says nothing about the worker.
"""

EVERY_S = 5.0  # how often the loop looks at the clock
STILL_S = 5.0  # so late is no timer of a host that is merely busy; shorter stands fit into every limit


def stood_s(due_at: float, now: float) -> float | None:
    """How long everything stood still, if what was due at `due_at` (monotonic seconds) comes only now; None: it ran."""
    late_s = now - due_at
    return late_s if late_s > STILL_S else None
