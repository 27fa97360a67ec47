"""How long a job may be silent before that is a hang, learned from the silences that it survived.

A silence is the time between two reports of the training loop. It counts for the section that the loop was in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

SAFETY = 4.0
"""Times the longest silence that was survived; steps and saves on shared hosts and disks vary by two or three."""

CEILING = 16.0
"""Times the least limit of a section: no limit ever gets longer. It is SAFETY times the longest silence that doubling
lets pass where nothing was learned, so that what passed once passes again."""

DOUBLINGS = 2
"""Of a limit, by hangs at one place: a slow place gets four times as long, and one that hangs for ever spends its
budget within hours."""

HALVED_AFTER = 100.0
"""A silence that does not recur counts half after so many times its own length in its section: one of 40 minutes is
forgotten within some days of steps, and one that recurs every few hours is not."""
HALVED_AFTER_TIMES = 32.0
"""It also counts half after so many shorter ones, in sections that are short and rare beside the steps."""


class LoopSection(StrEnum):
    """What a worker's training loop does."""

    STARTUP = "start-up"  # from the spawn until its state is in place: import, verify, build, restore
    TRACING = "tracing"  # from there to the first step, which compiles
    STEP = "step"  # and whatever else lies between two steps
    SAVE = "save"  # a checkpoint is written, with training waiting or beside it
    EVALUATION = "evaluation"
    DATA = "data"  # the next batch is waited for
    REPLAY = "replay"  # steps are done a second time, to compare their results


FLOORS: Mapping[LoopSection, float] = {
    LoopSection.STARTUP: 0.5,  # startup_timeout holds as well, for start-up and tracing together
    LoopSection.TRACING: 1.0,
    LoopSection.STEP: 1.0,
    LoopSection.SAVE: 1.0,
    LoopSection.EVALUATION: 3.0,  # the first one is still to come when much is known of steps
    LoopSection.DATA: 1.0,
    LoopSection.REPLAY: 1.0,
}
"""The least limit of each section, as a multiple of hang_timeout_min, however short its silences were."""

_RARE = frozenset(
    {LoopSection.STARTUP, LoopSection.TRACING, LoopSection.SAVE, LoopSection.EVALUATION, LoopSection.REPLAY}
)
_NONE: Mapping[LoopSection, float] = MappingProxyType({})


def parse_section(text: str | None) -> LoopSection:
    """The section that a worker named; STEP if it named none, or one that is not known."""
    try:
        return LoopSection(text or LoopSection.STEP)
    except ValueError:
        return LoopSection.STEP


@dataclass(slots=True)
class HangDetector:
    """What is known of one job's silences. Points in time are monotonic, lengths seconds.

    `longest`: the longest silence by section, of this and earlier attempts, less as time passes without another one.
    `persisted`: what the ledger has of it. `hung_step`: the last step before a hang, until a later step is done. Each
    further hang there in the same section (`hangs`, `hung_in`) doubles that section's limit, within bounds, so that a
    place that is only slow is passed in the end.
    """

    longest: Mapping[LoopSection, float] = field(default_factory=lambda: _NONE)
    persisted: Mapping[LoopSection, float] = field(default_factory=lambda: _NONE)
    section: LoopSection = LoopSection.STARTUP
    since: float = 0.0
    saving_since: float | None = None  # a save is written beside training
    hung_step: int | None = None
    hung_in: LoopSection | None = None
    hangs: int = 0

    def recall_longest(self, longest: Mapping[LoopSection, float]) -> None:
        """Restores what the ledger has of earlier attempts."""
        self.persisted = dict(longest)
        self.longest = {section: max(s, self.longest.get(section, 0.0)) for section, s in longest.items()} | {
            section: s for section, s in self.longest.items() if section not in longest
        }

    def start_attempt(self, now: float) -> None:
        """Begins with a new attempt, in start-up."""
        self.section, self.since, self.saving_since = LoopSection.STARTUP, now, None

    def restart_silence(self, now: float) -> None:
        """Measures silence from now on; the silence until now was not the job's doing."""
        self.since = now
        self.saving_since = None if self.saving_since is None else now

    def progress_reported(self, section: LoopSection, now: float) -> None:
        """The loop reports, and enters `section`: the silence until now belongs to the last section."""
        self._learn(self.section, now - self.since)
        self.section, self.since = section, now

    def save_reported(self, saving_s: float | None, now: float) -> None:
        """Records whether a save is being written beside training, and for how long already."""
        self.saving_since = None if saving_s is None else now - max(0.0, saving_s)

    def save_ended(self, now: float) -> None:
        """The save is on the disk, or failed."""
        if self.saving_since is not None:
            self._learn(LoopSection.SAVE, now - self.saving_since)
            self.saving_since = None

    def step_passed(self, step: int) -> None:
        """`step` is done; hangs before it are forgotten."""
        if self.hung_step is not None and step > self.hung_step:
            self.forget_hangs()

    def forget_hangs(self) -> None:
        """Forgets all hangs: an operator starts the job, or it is past the place."""
        self.hung_step = self.hung_in = None
        self.hangs = 0

    def record_hang(self, step: int | None, section: LoopSection) -> None:
        """Counts a hang in `section`, after `step`."""
        self.hung_step = max(step or 0, self.hung_step or 0)
        self.hangs = self.hangs + 1 if section is self.hung_in else 1
        self.hung_in = section

    def limit(self, section: LoopSection, floor: float) -> float:
        """How long silence may last in a section. `floor`: hang_timeout_min."""
        least = floor * FLOORS[section]
        doubled = 2.0 ** min(self.hangs, DOUBLINGS) if section is self.hung_in else 1.0
        return min(max(least, SAFETY * self.longest.get(section, 0.0)) * doubled, CEILING * least)

    def deadline(self, progressed_at: float, floor: float) -> tuple[float, LoopSection]:
        """When silence since `progressed_at`, or a save that does not end, becomes a hang; and in which section."""
        return self._earlier(progressed_at + self.limit(self.section, floor), self.limit(LoopSection.SAVE, floor))

    def fixed_deadline(self, progressed_at: float, limit: float, save_limit: float) -> tuple[float, LoopSection]:
        """Like `deadline`, with fixed limits. `save_limit`: for a save that is written beside training."""
        return self._earlier(progressed_at + limit, save_limit)

    def _earlier(self, silent_by: float, save_limit: float) -> tuple[float, LoopSection]:
        if self.saving_since is None:
            return silent_by, self.section
        return min((silent_by, self.section), (self.saving_since + save_limit, LoopSection.SAVE))

    def changes_to_persist(self) -> dict[LoopSection, float]:
        """Silences that differ by a tenth from those in the ledger; the caller has to store them."""
        known = self.persisted
        news = {section: s for section, s in self.longest.items() if not s / 1.1 <= known.get(section, 0.0) <= s * 1.1}
        self.persisted = {**self.persisted, **news}
        return news

    def _learn(self, section: LoopSection, silent_s: float) -> None:
        longest = self.longest.get(section, 0.0)
        if longest > 0:
            halvings = max(0.0, silent_s) / (HALVED_AFTER * longest) + (section in _RARE) / HALVED_AFTER_TIMES
            longest *= 2.0**-halvings
        if max(longest, silent_s) > 0:
            self.longest = {**self.longest, section: max(longest, silent_s)}
