"""What a script sets before training and a checkpoint may set otherwise: an optimizer's class and numbers, seeds.

A restart restores some of it from the checkpoint (a learning rate that is a variable, all settings of a PyTorch
optimizer, the state of generators) and takes the rest from the script (a schedule, an optimizer's class). So a script
that was edited may train with the old values or with the new ones. The start says which.

What the script makes now is compared with what the script made when the values of the checkpoint began, not with the
values of the checkpoint: those change while training (a schedule, ReduceLROnPlateau), which is no edit. Each checkpoint
records, for every condition, the script's value from which its own stems. While the checkpoint's value stays in use,
the record stays what it was, so each start says so; once the script's value is in use, it is recorded.

Imports no framework.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

Plain = str | int | float | bool | None
MAX_CONDITIONS = 500  # of one program; a PyTorch optimizer has about ten for each group of parameters
_MAX_SAID = 20
SET_AT_STEP = "write `if run.step == {step}: {line}` at the beginning of the with block"
OTHER_SCRIPT = "the script sets other values than the one that this checkpoint was trained with"
_MAX_CHARS = 100  # of one value; longer ones are compared by their beginning
_MAX_SEED = 1 << 48  # seeds that libraries draw from the system have 64 or 128 bits


class Kind(StrEnum):
    """Who decides the value after a restart."""

    RESTORED = "restored"
    SCRIPT = "script"
    SEED = "seed"


@dataclass(frozen=True, slots=True)
class Condition:
    """One value that the script sets. `line`: a statement that sets it again, after the restore; empty: there is none.

    `used`: what of the checkpoint and what of the script is used after a restart, of a seed.
    """

    value: Plain
    kind: Kind = Kind.SCRIPT
    line: str = ""
    used: str = ""


Conditions = Mapping[str, Condition]


class ScriptConditions:
    """The conditions of this start, compared with those of the checkpoint that it continues from."""

    def __init__(self, constructed: Conditions, at_step: str = SET_AT_STEP) -> None:
        """`constructed`: before anything is restored. `at_step`: how a script does something once, after the restore
        of a checkpoint of that step."""
        self._constructed = constructed
        self._at_step = at_step
        self._origins = {name: condition.value for name, condition in constructed.items()}
        self._said: dict[str, str] = {}

    def to_json(self) -> dict[str, Plain]:
        """What a checkpoint records: by condition the script's value from which the present one stems."""
        return dict(self._origins)

    def compare(self, before: Mapping[str, Plain], restored: Conditions, step: int) -> tuple[str, ...]:
        """What differs, in words: which value is used now, and how to have the other.

        `before`: what the checkpoint recorded; `restored`: the present conditions, after it was restored at `step`.
        """
        for name, condition in self._constructed.items():
            if name not in before or before[name] == condition.value:
                continue
            present = restored[name].value if name in restored else condition.value
            if condition.kind is Kind.RESTORED and present != condition.value:
                self._origins[name] = before[name]
                self._said[name] = self._of_checkpoint(name, condition, before[name], present, step)
            elif condition.kind is Kind.SEED:
                self._said[name] = self._of_seed(name, condition, before[name], step)
            elif condition.kind is Kind.SCRIPT:
                self._said[name] = (
                    f"{name} is {condition.value}, the script's; the checkpoint was trained with {before[name]}; to go "
                    f"on as before, set {before[name]} in the script"
                )
        return self.said

    def _of_checkpoint(self, name: str, condition: Condition, before: Plain, present: Plain, step: int) -> str:
        trained = "" if before == present else f", where it began as {before}"
        return (
            f"{name} is {present}, from the checkpoint{trained}; the script says {condition.value}, which is not used; "
            f"{self._how(condition, step)}to go on as before and without this message, set {before} in the script"
        )

    def _of_seed(self, name: str, condition: Condition, before: Plain, step: int) -> str:
        return (
            f"{name} is {condition.value}, was {before}: {condition.used}; {self._how(condition, step)}to go on as "
            f"before, set {before} in the script"
        )

    def _how(self, condition: Condition, step: int) -> str:
        if not condition.line:
            return ""
        return f"to have the script's, {self._at_step.format(step=step, line=condition.line)}; "

    @property
    def has_differences(self) -> bool:
        """Whether a restored value is in use where the script has another one."""
        return any(self._origins[name] != condition.value for name, condition in self._constructed.items())

    @property
    def said(self) -> tuple[str, ...]:
        """What differs, in words."""
        texts = list(self._said.values())
        rest = len(texts) - _MAX_SAID
        return (*texts[:_MAX_SAID], *([f"and {rest} more of the script's values differ"] if rest > 0 else []))

    def update(self, present: Conditions) -> bool:
        """Called after the first step: whether the script has put values of its own in the place of restored ones."""
        adopted = [
            name
            for name, condition in self._constructed.items()
            if self._origins[name] != condition.value and name in present and present[name].value == condition.value
        ]
        for name in adopted:
            self._origins[name] = self._constructed[name].value
            self._said[name] = f"{name} is now {self._constructed[name].value}, the script's"
        return bool(adopted)


@dataclass(frozen=True, slots=True)
class Made:
    """An object in a configuration, such as a schedule: its class, and what it was made with."""

    kind: str
    config: Any


def leaves(value: Any, name: str) -> Iterator[tuple[str, Plain]]:
    """Yields the plain values in a configuration, by name. Numbers that JSON can't hold become text."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from leaves(entry, f"{name}.{key}")
    elif isinstance(value, Made):
        yield name, plain(value.kind)
        yield from leaves(value.config, name)
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from leaves(entry, f"{name}[{number}]")
    else:
        yield name, plain(value)


def plain(value: Any) -> Plain:
    """A value as JSON holds it and people write it; of another object, its class or its name."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return float(str(single)) if float(single) == value else value  # 0.003, not 0.003000000026077032
    if isinstance(value, str):
        return value[:_MAX_CHARS]
    return str(getattr(value, "__qualname__", None) or type(value).__name__)[:_MAX_CHARS]


def limited(conditions: Iterable[tuple[str, Condition]]) -> dict[str, Condition]:
    """The conditions by name, not more than are compared."""
    return dict(pair for pair, _ in zip(conditions, range(MAX_CONDITIONS), strict=False))


def parse_record(value: Any) -> dict[str, Plain]:
    """What a checkpoint recorded; empty if an earlier version wrote it."""
    return {str(name): entry for name, entry in value.items()} if isinstance(value, Mapping) else {}


def is_seed_of_script(seed: Any) -> bool:
    """Whether somebody wrote this seed, rather than that a library drew it from the system."""
    return isinstance(seed, int) and 0 <= seed < _MAX_SEED


GOES_ON = "random numbers go on from the checkpoint's state"


def seeds_of_generators(own: Iterable[Any]) -> Iterator[tuple[str, Condition]]:
    """Yields the seeds of NumPy's Generators among the script's own; of other kinds nobody can tell."""
    for number, generator in enumerate(own):
        if isinstance(generator, np.random.Generator):
            seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
            if is_seed_of_script(seed):
                yield f"the seed of generators[{number}]", Condition(seed, Kind.SEED, used=GOES_ON)
