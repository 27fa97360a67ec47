"""Finds the values that a restart did not bring back, among all that the loop can reach. Pure.

Where an attempt begins from the state of step r, its values are compared with those that the undisturbed run had behind
step r, and again behind step r + 1. What differs at both is a value that no checkpoint keeps: the next step would have
read it. A value that the loop makes anew in each step differs at the first of the two only. What the script makes in
its loop does not exist yet where an attempt begins: it is judged by the second comparison alone. There, what stays as
it is from step to step, as an order that was drawn at the head of the epoch, is more likely a cause than what changes.

Only the first restart with any such value counts, and only one before the first difference: after that, training itself
is another, and so is what its checkpoints hold. Values that are not the same in two undisturbed runs, such as times,
say nothing.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from supervisor.protocol.proof_plan import QUEUE
from supervisor.prove.record import RunRecord

MAX_NAMED = 10
FIRST_STEPS = (1, 2)
"""Behind these, both undisturbed runs record their values."""
_GRADIENT = ".grad"


@dataclass(frozen=True, slots=True)
class LostValue:
    """A value that a restart did not bring back. `name`: its path, such as `model.beta`; `step`: of the checkpoint.

    `is_counter`: a number that counts in a loop, which began anew. `is_consequence`: the step after the restart made
    it, so that it says only that what it is made from was another.
    """

    name: str
    step: int
    undisturbed: str
    killed: str
    is_counter: bool = False
    is_consequence: bool = False

    @property
    def is_gradient(self) -> bool:
        """Whether it is a gradient that was added up over several steps."""
        return self.name.endswith(_GRADIENT)

    @property
    def is_queue(self) -> bool:
        """Whether it is what waits in a queue, which a thread may have filled ahead of the steps."""
        return self.killed.startswith(QUEUE) or self.undisturbed.startswith(QUEUE)

    @property
    def short(self) -> str:
        """A name for `run.state`: `beta` for `model.beta`."""
        return re.split(r"[.\[]", self.name.partition("[")[0])[-1] or self.name


Values = Mapping[str, str]


def watched_steps(killed: RunRecord) -> tuple[int, ...]:
    """The steps behind which an undisturbed run has to record its values, to be compared with those of restarts."""
    begins = {reached.step for reached in killed.reached if reached.is_begin}
    return tuple(sorted({*FIRST_STEPS, *begins, *(step + 1 for step in begins)}))


def lost_values(
    killed: RunRecord,
    undisturbed: RunRecord,
    again: RunRecord,
    metrics: Collection[str],
    differs_at: int | None = None,
) -> list[LostValue]:
    """What restarts did not bring back, by the first restart that shows any. `again`: the second undisturbed run, which
    has recorded `watched_steps`; the first one has recorded FIRST_STEPS. `metrics`: names that are results.
    `differs_at`: the first step that was not the same in the killed run, if any was."""
    known = {reached.step: reached.values for reached in again.reached}
    ignored = {*metrics, *_changing_names(undisturbed, known)}
    weakest: list[LostValue] = []
    for number, begin in enumerate(killed.reached):
        after = next((values for values in killed.reached[number + 1 :] if values.attempt == begin.attempt), None)
        before, then = known.get(begin.step), known.get(begin.step + 1)
        if not begin.is_begin or after is None or after.is_begin or before is None or then is None:
            continue
        if differs_at is not None and begin.step >= differs_at:
            continue
        likely, others = _lost_at(begin.step, begin.values, after.values, before, then, ignored)
        if likely:
            return likely[:MAX_NAMED]
        weakest = weakest or others
    return weakest[:MAX_NAMED]


def _changing_names(undisturbed: RunRecord, known: Mapping[int, Values]) -> set[str]:
    """The names of values that are not the same in two undisturbed runs."""
    names: set[str] = set()
    for reached in undisturbed.reached:
        other = known.get(reached.step, {})
        names |= {name for name, value in reached.values.items() if name in other and other[name] != value}
    return names


def _lost_at(
    step: int, begin: Values, after: Values, before: Values, then: Values, ignored: Collection[str]
) -> tuple[list[LostValue], list[LostValue]]:
    """Values that are likely lost, and such as may only be a consequence. `begin`, `after`: of the restart;
    `before`, `then`: of the undisturbed run behind the same steps."""
    differing = [name for name in then if name in after and after[name] != then[name] and name not in ignored]
    stale = [
        LostValue(name, step, before[name], begin[name])
        for name in differing
        if name in begin and name in before and begin[name] != before[name]
    ]
    new = [LostValue(name, step, then[name], after[name]) for name in differing if name not in begin]
    lasting = [value for value in new if before.get(value.name) == then[value.name]]
    changing = [replace(value, is_consequence=True) for value in new if value not in lasting and not value.is_gradient]
    counters = [
        replace(value, is_counter=True, is_consequence=False)
        for value in changing
        if value.name.isidentifier() and value.undisturbed.isdecimal() and value.killed.isdecimal()
    ]
    certain = [value for value in (*stale, *lasting) if not value.is_gradient]
    return certain or counters or [value for value in stale if value.is_gradient], changing
