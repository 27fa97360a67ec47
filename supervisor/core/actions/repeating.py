"""After a failure that the same start would repeat: the next attempt is made another one."""

from supervisor.core.actions.base import Effects
from supervisor.core.actions.looping import own_checkpoint
from supervisor.core.actions.moves import fail, retry
from supervisor.core.failures import restart
from supervisor.core.failures.restart import Cause
from supervisor.core.program.facts import OnOom, ProgramFacts

MAX_WHY = 500  # characters of why a checkpoint does not fit, kept with its name
LOOK = "look at the data and the learning rate"


def follow_divergence(facts: ProgramFacts, text: str, now: float) -> Effects:
    """Back to a checkpoint from before the batches that may have done it; each time in a row to an older one.

    A bad update shows in the loss of the step after it, so what was saved after the step before is not trusted.
    """
    if not facts.current.rolls_back:
        return fail(facts, f"diverged: {text}; {LOOK}, or set on_nan = rollback or skip; then start it again")
    if facts.current.failed_step is not None:
        facts.restore_below_step = max(0, facts.current.failed_step - 1)
        if facts.failures.by_cause.get(Cause.DIVERGENCE, 0) and facts.current.start_step is not None:
            facts.restore_below_step = min(facts.restore_below_step, facts.current.start_step)
    return retry(facts, Cause.DIVERGENCE, f"{text}; {LOOK}", now)


def follow_bad_checkpoint(facts: ProgramFacts, text: str, now: float) -> Effects:
    """From the next older one. Which of the two is wrong, checkpoint or program, shows once one is restored: then the
    others are set aside; where none fits, they stay as they are, for a program that does.
    """
    name = own_checkpoint(facts)
    unfit = dict(facts.suspects.unfit)
    if name is None or name in unfit:
        return fail(facts, text)
    facts.suspects.unfit = ((name, (facts.current.reported_error or text)[:MAX_WHY]), *facts.suspects.unfit)
    return retry(facts, Cause.BAD_CHECKPOINT, text, now)


def follow_out_of_memory(facts: ProgramFacts, text: str, now: float) -> Effects:
    """The same again, as others may have taken the memory; or with each batch in twice as many parts."""
    if facts.policy.on_oom is OnOom.MICROBATCH:
        facts.microbatches = min(2 * facts.microbatches, restart.MAX_MICROBATCHES)
        parts = facts.microbatches
        remedy = f"each batch in {parts} parts from now on, where the script uses worker.Training or microbatches"
    else:
        remedy = "give it more memory, or set on_oom = microbatch"
    return retry(facts, Cause.OUT_OF_MEMORY, f"{text}; {remedy}", now)
