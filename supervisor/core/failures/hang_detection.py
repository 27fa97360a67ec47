"""How long a job may be silent before that is a hang: learned from the silences it came back from.

A silence is measured between two words of the training loop, and counts for what the loop said it was at. Pure: time
is a number that comes in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

SAFETY = 4.0
"""Times the longest silence that was survived; steps and saves on shared hosts and disks vary by two or three."""

CEILING = 16.0
"""Times what a section is given at least: no silence is survived that makes the limit longer. It is SAFETY times the
longest silence that doubling lets pass where nothing was learned, so that what got through once gets through again."""

DOUBLINGS = 2
"""Of a limit, by hangs at one place: a place that only takes long gets four times as long, and one that hangs for ever
spends its budget within hours."""

HALVED_AFTER = 100.0
"""Times its own length in its section until a silence that never came again counts half: one of 40 minutes is
forgotten within some days of steps, and what comes back every few hours is not."""
HALVED_AFTER_TIMES = 32.0
"""Or after so many shorter ones, in sections that are short and rare beside the steps."""


class LoopSection(StrEnum):
    """What a worker's training loop is at."""

    STARTUP = "start-up"  # from the spawn until its state is in place: import, verify, build, restore
    TRACING = "tracing"  # from there to the first step, which compiles
    STEP = "step"  # and whatever else lies between two steps that nobody told of
    SAVE = "save"  # a checkpoint is written, with training waiting or beside it
    EVALUATION = "evaluation"
    DATA = "data"  # the next batch is waited for


FLOORS: Mapping[LoopSection, float] = {
    LoopSection.STARTUP: 0.5,  # startup_timeout holds as well, for start-up and tracing together
    LoopSection.TRACING: 1.0,
    LoopSection.STEP: 1.0,
    LoopSection.SAVE: 1.0,
    LoopSection.EVALUATION: 3.0,  # the first one is still to come when much is known of steps
    LoopSection.DATA: 1.0,
}
"""Of hang_timeout_min: what a section is given at least, however short its silences were."""

_RARE = frozenset({LoopSection.STARTUP, LoopSection.TRACING, LoopSection.SAVE, LoopSection.EVALUATION})
_NONE: Mapping[LoopSection, float] = MappingProxyType({})


def parse_section(text: str | None) -> LoopSection:
    """The section that a worker named; one that names none, or one of a later version, is at its steps."""
    try:
        return LoopSection(text or LoopSection.STEP)
    except ValueError:
        return LoopSection.STEP


@dataclass(slots=True)
class HangDetector:
    """What is known of one job's silences. Points in time are monotonic, lengths seconds.

    `longest`: by section, of this and earlier attempts; of one that did not come again for long, less. `remembered`:
    what of it the ledger has. `hung_step`: the last step before a hang that was not passed since; each further hang
    there in the same section (`hangs`, `hung_in`) doubles that section's limit, within bounds, so that a place that
    only takes long is passed in the end.
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
        """What the ledger knows of earlier attempts."""
        self.persisted = dict(longest)
        self.longest = {each: max(s, self.longest.get(each, 0.0)) for each, s in longest.items()} | {
            each: s for each, s in self.longest.items() if each not in longest
        }

    def start_attempt(self, now: float) -> None:
        """A new attempt."""
        self.section, self.since, self.saving_since = LoopSection.STARTUP, now, None

    def restart_silence(self, now: float) -> None:
        """What was silent until now was so for reasons that are none of the job's."""
        self.since = now
        self.saving_since = None if self.saving_since is None else now

    def progress_reported(self, section: LoopSection, now: float) -> None:
        """The loop lives, and is at `section` from now on: the silence before belongs to the section before."""
        self._learn(self.section, now - self.since)
        self.section, self.since = section, now

    def save_reported(self, saving_s: float | None, now: float) -> None:
        """Whether a save is written beside training, and for how long already."""
        self.saving_since = None if saving_s is None else now - max(0.0, saving_s)

    def save_ended(self, now: float) -> None:
        """It is on the disk, or failed."""
        if self.saving_since is not None:
            self._learn(LoopSection.SAVE, now - self.saving_since)
            self.saving_since = None

    def step_passed(self, step: int) -> None:
        """`step` was done: a hang before it is no riddle any more."""
        if self.hung_step is not None and step > self.hung_step:
            self.forget_hangs()

    def forget_hangs(self) -> None:
        """No hang counts any more: an operator starts it, or it is past the place."""
        self.hung_step = self.hung_in = None
        self.hangs = 0

    def record_hang(self, step: int | None, section: LoopSection) -> None:
        """Silence became a hang in `section`, after `step`."""
        self.hung_step = max(step or 0, self.hung_step or 0)
        self.hangs = self.hangs + 1 if section is self.hung_in else 1
        self.hung_in = section

    def limit(self, section: LoopSection, floor: float) -> float:
        """How long silence may last in a section. `floor`: hang_timeout_min."""
        least = floor * FLOORS[section]
        doubled = 2.0 ** min(self.hangs, DOUBLINGS) if section is self.hung_in else 1.0
        return min(max(least, SAFETY * self.longest.get(section, 0.0)) * doubled, CEILING * least)

    def deadline(self, progressed_at: float, floor: float) -> tuple[float, LoopSection]:
        """When silence since `progressed_at` becomes a hang, or a save that never ends does; and in which section."""
        return self._earlier(progressed_at + self.limit(self.section, floor), self.limit(LoopSection.SAVE, floor))

    def fixed_deadline(self, progressed_at: float, limit: float, save_limit: float) -> tuple[float, LoopSection]:
        """The same where limits are fixed. `save_limit`: of a save that is written beside training."""
        return self._earlier(progressed_at + limit, save_limit)

    def _earlier(self, silent_by: float, save_limit: float) -> tuple[float, LoopSection]:
        if self.saving_since is None:
            return silent_by, self.section
        return min((silent_by, self.section), (self.saving_since + save_limit, LoopSection.SAVE))

    def changes_to_persist(self) -> dict[LoopSection, float]:
        """What the ledger should know: silences that are another, by a tenth, than those it has; it then counts so."""
        known = self.persisted
        news = {each: s for each, s in self.longest.items() if not s / 1.1 <= known.get(each, 0.0) <= s * 1.1}
        self.persisted = {**self.persisted, **news}
        return news

    def _learn(self, section: LoopSection, silent_s: float) -> None:
        longest = self.longest.get(section, 0.0)
        if longest > 0:
            halvings = max(0.0, silent_s) / (HALVED_AFTER * longest) + (section in _RARE) / HALVED_AFTER_TIMES
            longest *= 2.0**-halvings
        if max(longest, silent_s) > 0:
            self.longest = {**self.longest, section: max(longest, silent_s)}
