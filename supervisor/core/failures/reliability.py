"""How long a job runs between two failures, for the worker that chooses when to save."""

from dataclasses import dataclass, replace
from typing import Self

from supervisor.core.failures.restart import Cause

PRIOR_S = 3600.0
"""Assumed while nothing is known: one failure in an hour."""

PRIOR_WEIGHT = 0.25
"""The assumption counts as a quarter of an hour with a quarter of a failure: the mean of a gamma distribution of the
rate, of this shape. One early crash makes a job save at most 2.2 times as often; a job that fails every minute is
known after a few failures."""

LOSING = frozenset(cause for cause in Cause if cause.traits.is_sudden)
"""Causes of ends without warning. A worker that is told to stop saves first, and so loses nothing."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """How long one job ran in all, and how often it ended without warning."""

    ran_s: float = 0.0
    failures: int = 0

    def with_attempt(self, ran_s: float, cause: str) -> Self:
        """A copy with one more attempt."""
        return replace(self, ran_s=self.ran_s + max(0.0, ran_s), failures=self.failures + (cause in LOSING))

    @property
    def between_failures_s(self) -> float:
        """Mean seconds between two failures."""
        return (PRIOR_WEIGHT * PRIOR_S + self.ran_s) / (PRIOR_WEIGHT + self.failures)
