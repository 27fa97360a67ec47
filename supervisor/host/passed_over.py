"""Users who let the event loop wait in vain, and are not waited for again for a while.

One such wait may be the host's doing, which is short of memory, so it costs the user's programs a second. Each further
one doubles that, up to LONGEST_S, and each LONGEST_S that then passes takes one back. So whoever does it on purpose
gets one wait for each LONGEST_S in the long run. A start that goes well takes nothing back: that user may have good
ones between the others.
"""

FIRST_S = 1.0
LONGEST_S = 30.0
MOST = 6.0  # waits that count: 2**5 s are longer than LONGEST_S


class PassedOver:
    """Users by uid. `now`: monotonic."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[float, float]] = {}
        """How many waits count against a user, and until when it is not waited for."""

    def add(self, user: int, now: float) -> None:
        """It was waited for this user, in vain."""
        count, until = self._waits.get(user, (0.0, now))
        count = min(MOST, max(0.0, count - max(0.0, now - until) / LONGEST_S) + 1.0)
        self._waits[user] = count, now + min(LONGEST_S, FIRST_S * 2.0 ** (count - 1.0))

    def left_s(self, user: int, now: float) -> float:
        """For how long that user is not waited for any more; 0 if nothing speaks against it."""
        _, until = self._waits.get(user, (0.0, now))
        return max(0.0, until - now)

    def forget(self, user: int) -> None:
        """As if it had never been waited for."""
        self._waits.pop(user, None)
