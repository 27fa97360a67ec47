"""When the watch looks: at the first steps, at the first step of each epoch, and ten, thirty, a hundred and so on steps
after the first.

Later looks take at most a hundredth of the training time, and most steps are over after a comparison of numbers.
"""

import time

FIRST_LOOKS = 3  # at the first steps: what changes with every step is found between two of them
SETTLED_EPOCHS, SETTLED_STEPS = 3, 1000  # by when most of what changes has changed
LOOK_S = 0.25  # the longest look
SHARE = 0.01  # of training time that later looks may take


class LookTimes:
    """Ask `is_due` at each step boundary, and report each look's time to `add`."""

    def __init__(self) -> None:
        self.looks = 0
        """How many there were."""
        self.watches_step = False
        """Whether to watch the step behind this look: behind the first one, and behind ever rarer later ones."""
        self.has_settled = False
        """Whether most of what changes has been seen to change."""
        self._began_at = time.perf_counter()
        self._took_s = 0.0
        self._first_step = 0
        self._epoch: int | None = None
        self._epochs_seen = 0

    def is_due(self, step: int, epoch: int) -> bool:
        """Whether to look now."""
        if self._epoch is None:
            self._epoch, self._first_step = epoch, step
        self.watches_step = self.looks == 0
        if self.looks < FIRST_LOOKS:
            self._epoch = epoch
            return True
        since_first = step - self._first_step
        if epoch == self._epoch and since_first % 10:
            return False
        is_new_epoch, self._epoch = epoch != self._epoch, epoch
        self._epochs_seen += is_new_epoch
        self.has_settled = self._epochs_seen >= SETTLED_EPOCHS or since_first >= SETTLED_STEPS
        self.watches_step = _is_later_look(since_first)
        is_due = is_new_epoch or self.watches_step
        return is_due and self._took_s < SHARE * (time.perf_counter() - self._began_at) + LOOK_S

    def add(self, took_s: float) -> None:
        """There was a look, which took so long."""
        self.looks += 1
        self._took_s += took_s


def _is_later_look(since_first: int) -> bool:
    """Whether so many steps after the first one it is time to look again, for loops without epochs."""
    return since_first >= 10 and str(since_first).rstrip("0") in ("1", "3")
