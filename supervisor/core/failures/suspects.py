"""Crash loops: which checkpoints a job keeps dying from, and which step keeps killing it."""

from dataclasses import dataclass

NEAR_STEPS = 10  # death within so many steps of a restore is "right after it"; progress is reported every 0.1 s at best
DEATHS = 3  # from one checkpoint, right after it, until it is suspected; two are a coincidence on a busy host
SECOND_DEATHS = 2  # from older ones, until the suspicion is dropped: every further one is a loss of trained steps
MAX_DEATHS = 50  # deaths; budgets end a loop long before
KILLS = 2  # deaths at one step, from different checkpoints, until the step is blamed

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Death:
    """An attempt that failed. `name`: the checkpoint of `from_step` that it restored, or its own last one; `step`: the
    last one it did. `place`: the position of that checkpoint in the data, in words, if known.
    """

    name: str
    from_step: int
    step: int
    restored: bool = True
    place: str | None = None

    @property
    def is_near(self) -> bool:
        """Whether it died right after restoring."""
        return self.restored and self.step - self.from_step < NEAR_STEPS


@dataclass(slots=True)
class Suspects:
    """Checkpoints that are suspect after the deaths since the last new one.

    `avoid`: names to pass over while an older one is whole.
    `unfit`: names of checkpoints that did not fit the program, with the reason; until an older one is restored, or an
    operator starts the job.
    """

    avoid: frozenset[str] = _NONE
    deaths: tuple[Death, ...] = ()
    cleared: frozenset[str] = _NONE
    unfit: tuple[tuple[str, str], ...] = ()

    def checkpoint_committed(self, name: str | None = None) -> None:
        """Ends all suspicion: there is a new best checkpoint, `name`, of which some attempt may have died already."""
        self.avoid = self.cleared = _NONE
        self.deaths = tuple(death for death in self.deaths if death.name == name)

    def reset_all(self) -> None:
        """Forgets everything: an operator starts the job, perhaps with another program."""
        self.checkpoint_committed()
        self.unfit = ()

    def record_death(self, death: Death) -> str | None:
        """Records a death; returns what follows from it in words, None if nothing new does."""
        self.deaths = (*self.deaths, death)[-MAX_DEATHS:]
        if (killer := self._killer()) is not None:
            self._clear()
            return killer
        if self.avoid:
            older = [recent for recent in self.deaths if recent.name not in self.avoid]
            if len(older) >= SECOND_DEATHS:
                names = ", ".join(sorted(self.avoid))
                self._clear()
                return f"attempts from older checkpoints die too; {names} is tried again"
            return None
        near = [recent for recent in self.deaths if recent.is_near and recent.name == death.name]
        if len(near) < DEATHS or death.name in self.cleared:
            return None
        self.avoid = frozenset({death.name})
        return (
            f"{death.name} is suspect: {len(near)} deaths right after restoring it; the next attempt uses an older one"
        )

    def _clear(self) -> None:
        self.cleared |= self.avoid
        self.avoid = _NONE

    def _killer(self) -> str | None:
        """Describes the step that the last death shares with those from other checkpoints; None if there is none."""
        same = [death for death in self.deaths if death.step == self.deaths[-1].step]
        origins = {death.name: death for death in same}
        if len(origins) < KILLS:
            return None
        nearest = max(origins.values(), key=lambda death: (death.place is not None, death.from_step))
        batch = f", the {_ordinal(nearest.step + 1 - nearest.from_step)} after {nearest.name}"
        batch += f" ({nearest.place})" if nearest.place else ""
        return f"step {nearest.step + 1} kills it: {len(same)} deaths there, from {', '.join(sorted(origins))}{batch}"


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
