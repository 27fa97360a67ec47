"""The state that a worker keeps in memory, where it outlives the worker: what becomes of it once the worker is gone.

It is written as a checkpoint before the next attempt selects one, so everything that decides about checkpoints treats
it as one more. A worker that waits already, and can, restores it from memory meanwhile; it then counts as a checkpoint
once it is committed, and not before.

Two ends must not be undone by it. After a divergence the next attempt begins from before, so a state from later is of
no use. And a state may cause the death that follows: attempts that die right after restoring such a checkpoint leave no
newer one behind, so the checkpoint becomes suspect and an older one, saved in good order, is used.
"""

from supervisor.core.actions.crash_loops import own_checkpoint
from supervisor.core.actions.transitions import Effects
from supervisor.core.failures.hang_evidence import usual_step_s
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.suspects import NEAR_STEPS
from supervisor.core.program import account
from supervisor.core.program.effects import ReleaseMemory, SalvageMemory
from supervisor.core.program.events import CheckpointSelected, CopiesHeld, MemorySalvaged, WorkerExited
from supervisor.core.program.facts import ProgramFacts
from supervisor.protocol.layout import parse_name
from supervisor.protocol.wire.exits import WorkerExit

_STATE_IS_WRONG = frozenset({WorkerExit.DIVERGED, WorkerExit.NOT_REPEATABLE})
"""What the worker itself says of its state, also if it was being stopped: that is the cause then."""

_SAVED_FIRST = frozenset({Cause.STOPPED, Cause.PREEMPTION})
"""If it did, nothing newer is in memory; if it was killed instead, there is."""

NEAR_S = 1.0  # of steps, at most, are given up because the state may be the reason


def copies_held(facts: ProgramFacts, event: CopiesHeld, now: float) -> Effects:
    """Records whether the daemon holds memory into which the worker copies its state."""
    facts.current.in_memory = event.is_held
    return []


def copies_are_blamed(facts: ProgramFacts, event: WorkerExited, cause: Cause) -> bool:
    """Whether the host's memory ran out while the state was copied there, or lay there as it was restored: without
    copies the worker may have lived."""
    current = facts.current
    ran_out = cause is Cause.MEMORY_LIMIT or (cause is Cause.OUT_OF_MEMORY and event.oom is not None)
    has_copies = current.in_memory or (current.from_memory and not current.made_progress)
    return ran_out and has_copies and not facts.no_copies


def release_memory(facts: ProgramFacts) -> Effects:
    """Lets go of the memory of an attempt that is to end: its state is of another past than the one that counts now."""
    if not facts.current.in_memory:
        return []
    facts.current.in_memory = False
    return [ReleaseMemory(facts.attempt)]


def settle_memory(facts: ProgramFacts, event: WorkerExited, cause: Cause) -> Effects:
    """What is to be done with the memory of an attempt that has ended; nothing if there is none.

    Call it before anything follows from the end.
    """
    if not facts.current.in_memory:
        return []
    step = facts.current.step  # None: the worker has told this daemon nothing yet
    is_saved = cause in _SAVED_FIRST and step is not None and (facts.current.saved_step or 0) >= step
    is_needed = not cause.traits.discards_memory and event.code not in _STATE_IS_WRONG and facts.begin_at is None
    if is_saved or not is_needed or _died_of_salvaged(facts, cause):
        return [ReleaseMemory(facts.attempt)]
    return [SalvageMemory(facts.attempt, facts.mount, own_checkpoint(facts))]


def _died_of_salvaged(facts: ProgramFacts, cause: Cause) -> bool:
    """Whether it died right after restoring a checkpoint that was in memory itself, which may be the reason."""
    current = facts.current
    if cause is Cause.LOST and current.decided_end is not None:
        return False  # the daemon ended it
    if not cause.traits.blames_checkpoint or facts.salvaged is None or own_checkpoint(facts) != facts.salvaged:
        return False
    begun = current.start_step if current.saved_step is None else current.saved_step
    if begun is None:
        return True
    steps = (current.step or 0) - begun
    return steps < NEAR_STEPS and steps * (usual_step_s(facts.steps_s) or 0.0) < NEAR_S


def restores_from_memory(facts: ProgramFacts, name: str) -> None:
    """Records that the attempt begins from what another one had left in memory, which may never reach the disk.

    So it changes neither the account nor the best step: both follow once it is committed (`memory_salvaged`). Whatever
    follows, while it is restored too, counts against this state and not against the older one on the disk that was
    selected beside it: a death, and that it does not fit.
    """
    directory, parsed = facts.policy.checkpoint_dir, parse_name(name)
    if directory is None or parsed is None:
        return
    facts.current.checkpoint = CheckpointSelected(facts.attempt, f"{directory}/{name}", parsed.step)
    facts.current.from_checkpoint, facts.current.from_memory, facts.salvaged = True, True, name


def memory_salvaged(facts: ProgramFacts, event: MemorySalvaged, now: float) -> Effects:
    """Records a checkpoint that was in memory as one that its attempt has committed."""
    facts.salvaged = event.name
    account.record_salvaged(facts, event.step, event.wall_at, event.name)
    if facts.attempt == event.of_attempt:  # no other one has begun
        facts.current.step = max(event.step, facts.current.step or 0)
        facts.current.saved_step = max(event.step, facts.current.saved_step or 0)
        facts.ended = account.saved_progress(facts)
    if facts.best_step is None or event.step > facts.best_step:
        facts.best_step = event.step
        facts.failures.refill_budgets()
        facts.suspects.checkpoint_committed(event.name)  # a worker that restored it from memory may be dead already
    return []
