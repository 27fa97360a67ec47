"""What deaths and hangs teach: which checkpoint to pass over, how long to be patient, where the stacks are."""

from pathlib import PurePath

from supervisor.core.actions.base import Effects
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.suspects import Death
from supervisor.core.program.effects import RememberSilences
from supervisor.core.program.events import StacksKept
from supervisor.core.program.facts import Facts
from supervisor.protocol.layout import CheckpointName, parse_name

_BLAMES = frozenset({Cause.CRASH, Cause.HANG, Cause.STARTUP_TIMEOUT, Cause.LOST})
"""Ends that a checkpoint or a step may be the reason of."""


def stacks_kept(facts: Facts, event: StacksKept, now: float) -> Effects:
    """The end that is being made says where they are."""
    if facts.ending is not None:
        cause, text = facts.ending
        facts.ending = cause, f"{text}; stacks: {event.path}"
    return []


def blame(facts: Facts, cause: Cause) -> str | None:
    """Books a job's failure; in words what it says of its checkpoint or its step, None if nothing."""
    origin = facts.origin
    if cause not in _BLAMES:
        return None
    if facts.saved is not None:
        own = str(CheckpointName(facts.saved, facts.attempt))
        return facts.suspects.died(Death(own, facts.saved, max(facts.step or 0, facts.saved), restored=False))
    if origin is None or origin.path is None or origin.step is None:
        return None
    step = max(facts.step or 0, origin.step)
    return facts.suspects.died(Death(PurePath(origin.path).name, origin.step, step, place=origin.place))


def own_checkpoint(facts: Facts) -> str | None:
    """The name of the checkpoint that the present attempt begins from; None if it is none, or another program's."""
    if facts.origin is None or facts.origin.path is None:
        return None
    name = PurePath(facts.origin.path).name
    return name if parse_name(name) is not None else None


def remember(facts: Facts) -> Effects:
    """What was learned of silences, for the ledger."""
    if facts.policy.hang_timeout_min is None or not (news := facts.patience.news()):
        return []
    return [RememberSilences(tuple(sorted((str(section), silent_s) for section, silent_s in news.items())))]


def note_failed_step(facts: Facts, step: int | None) -> None:
    """Last words know the last step better than progress, which is told now and then."""
    if step is not None and facts.origin is not None and step >= (facts.origin.step or 0):
        facts.step = max(step, facts.step or 0)
