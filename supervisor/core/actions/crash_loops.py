"""Records what deaths and hangs teach: which checkpoint to pass over, and how long silence may last."""

from pathlib import PurePath

from supervisor.core.actions.transitions import Effects
from supervisor.core.failures.restart import Cause, is_mistake
from supervisor.core.failures.suspects import Death
from supervisor.core.program.effects import PersistHangHistory
from supervisor.core.program.events import StacksCollected
from supervisor.core.program.facts import ProgramFacts
from supervisor.protocol.layout import CheckpointName, parse_name


def stacks_collected(facts: ProgramFacts, event: StacksCollected, now: float) -> Effects:
    """Adds the path of the stack dump to the reason for which the worker is being ended."""
    if facts.current.decided_end is not None:
        cause, text = facts.current.decided_end
        facts.current.decided_end = cause, f"{text}; stacks: {event.path}"
    return []


def record_death(facts: ProgramFacts, cause: Cause) -> str | None:
    """Records a job's death; returns what it says about its checkpoint or its step, in words, or None.

    A checkpoint is to blame only if the worker had begun to restore it: what kills a worker while it imports or waits
    says nothing of the checkpoint that was selected meanwhile.
    """
    origin = facts.current.checkpoint
    if not cause.traits.blames_checkpoint or _died_before_restore(facts):
        return None
    if facts.current.saved_step is not None:
        own = str(CheckpointName(facts.current.saved_step, facts.attempt))
        return facts.suspects.record_death(
            Death(own, facts.current.saved_step, max(facts.current.step or 0, facts.current.saved_step), restored=False)
        )
    if origin is None or origin.path is None or origin.step is None:
        return None
    step = max(facts.current.step or 0, origin.step)
    return facts.suspects.record_death(Death(PurePath(origin.path).name, origin.step, step, place=origin.place))


def _died_before_restore(facts: ProgramFacts) -> bool:
    """Whether it had not begun to restore, or its script made a mistake before anything was restored."""
    error, current = facts.current.reported_error, facts.current
    if current.start_step is not None or current.saved_step is not None or current.made_progress:
        return False
    return not current.restore_begun or (error is not None and is_mistake(error))


def own_checkpoint(facts: ProgramFacts) -> str | None:
    """The name of the checkpoint that the current attempt begins from; None if there is none, or if it is foreign."""
    if facts.current.checkpoint is None or facts.current.checkpoint.path is None:
        return None
    name = PurePath(facts.current.checkpoint.path).name
    return name if parse_name(name) is not None else None


def persist_hang_history(facts: ProgramFacts) -> Effects:
    """Stores what the hang detector has learned, if that changed."""
    if facts.policy.hang_timeout_min is None or not (news := facts.hang_detector.changes_to_persist()):
        return []
    return [PersistHangHistory(tuple(sorted((str(section), silent_s) for section, silent_s in news.items())))]


def record_failed_step(facts: ProgramFacts, step: int | None) -> None:
    """Takes the step from a reported failure, which is more exact than progress, reported now and then."""
    if step is not None and facts.current.checkpoint is not None and step >= (facts.current.checkpoint.step or 0):
        facts.current.step = max(step, facts.current.step or 0)
