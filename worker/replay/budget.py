"""When steps are trained a second time, and how many, so that a given share of training time is kept. No clock here.

Each second of training earns `share` seconds for replays. A replay begins at a checkpoint, if enough is earned by then:
twice what a replay costs besides its steps, so that at least half of it trains. What it really took is subtracted, also
if it was broken off. A replay whose steps turn out slower than before is broken off once it has used what was earned.
So the share is exceeded by the one step at most in which that happens.
"""

from dataclasses import dataclass

LEAST_PART_IN_STEPS = 0.5  # of what a replay takes: copies and comparisons are no use by themselves
PLANNED = 0.8  # of what is earned: steps vary by some percent, and one that is broken off was for nothing
MOST_STEPS = 1000  # at once; longer intervals find no more, and more is lost when one is broken off
MOST_S = 30.0  # at once: for so long no new step is done, and a kill costs that much more
WEIGHT = 0.3  # of the newest replay in the smoothed cost
COPY_BYTES_S = 0.5e9  # assumed before the first replay: fresh memory, the first time
PASSES = 4  # over the state in each replay: two copies, one put back, one comparison


@dataclass(slots=True)
class ReplayBudget:
    """What was earned and spent. Points in time are seconds of any monotonic clock.

    `began_at`: since when training counts; `spent_s`: on replays so far; `overhead_s`: what a replay costs besides its
    steps, smoothed; None before the first.
    """

    share: float
    began_at: float
    spent_s: float = 0.0
    overhead_s: float | None = None

    def left_s(self, now: float) -> float:
        """How long replays may take now; negative if they have taken too much."""
        return self.share * (now - self.began_at - self.spent_s) - self.spent_s

    def choose_steps(self, now: float, step_s: float, state_bytes: int) -> int:
        """How many steps to train twice from here; 0: none. `step_s`: how long a step takes."""
        overhead_s = PASSES * state_bytes / COPY_BYTES_S if self.overhead_s is None else self.overhead_s
        planned_s = PLANNED * min(self.left_s(now), MOST_S)
        for_steps_s = planned_s - overhead_s
        if for_steps_s < max(step_s, LEAST_PART_IN_STEPS * planned_s):
            return 0
        return min(int(for_steps_s / step_s) if step_s > 0 else MOST_STEPS, MOST_STEPS)

    def must_end(self, now: float, replay_began_at: float) -> bool:
        """Whether a replay that began then has used what was earned."""
        return now - replay_began_at >= self.left_s(replay_began_at)

    def record(self, took_s: float, overhead_s: float | None = None) -> None:
        """A replay took so long; of that, `overhead_s` (None: unknown) was not spent in steps."""
        self.spent_s += took_s
        if overhead_s is not None:
            before = overhead_s if self.overhead_s is None else self.overhead_s
            self.overhead_s = before + WEIGHT * (overhead_s - before)
