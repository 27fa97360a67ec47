"""The process is gone: what its end means, and what follows."""

from signal import SIGTERM

from supervisor.core.actions.base import Effects, leads_to
from supervisor.core.actions.looping import blame, own_checkpoint, remember
from supervisor.core.actions.moves import come_up, enter, fail, launch, loop_pause, retry
from supervisor.core.actions.repeating import follow_bad_checkpoint, follow_divergence, follow_out_of_memory
from supervisor.core.actions.wishes import begin_anew, unwant
from supervisor.core.failures import restart
from supervisor.core.failures.restart import Cause
from supervisor.core.program.effects import RecordEnd
from supervisor.core.program.events import WorkerExited
from supervisor.core.program.facts import AutoRestart, ProgramFacts, State
from supervisor.core.program.outlook import is_going
from supervisor.protocol.messages import Then, WorkerExit


@leads_to(State.STARTING, State.BACKOFF, State.STOPPED, State.SUCCEEDED, State.EXITED, State.FAILED)
def exited(facts: ProgramFacts, event: WorkerExited, now: float) -> Effects:
    """Books the end of the attempt and decides what follows.

    A plain program may have outlived startsecs though nobody had the time to look: then it ran.
    """
    if _has_outlived(facts, now):
        come_up(facts, now)
    cause, text = verdict(facts, event)
    return follow(facts, event, cause, text, now)


def follow(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    """Writes down why it ended, and does what has to follow from that."""
    record = RecordEnd(facts.attempt, cause, text)
    if cause is Cause.DONE:
        enter(facts, State.SUCCEEDED)
        return [record, *unwant(facts, event, now)]
    if facts.closing or not facts.wanted:
        facts.reason = text if _left_unsaved(facts) else None
        enter(facts, State.STOPPED)
        return [record]
    if facts.current.start_afresh:
        return [record, *remember(facts), *begin_anew(facts, now)]
    if cause in (Cause.STOPPED, Cause.PREEMPTION):  # started again while it was stopping; or the host may come to stay
        return [record, *launch(facts, now)]
    if cause is Cause.SETUP:
        return [record, *fail(facts, text)]
    if not facts.policy.is_job:
        return [record, *_follow_plain(facts, event, cause, text, now)]
    if (blamed := blame(facts, cause)) is not None:
        text = f"{text}; {blamed}"
        record = RecordEnd(facts.attempt, cause, text)
    return [record, *remember(facts), *_follow_job(facts, event, cause, text, now)]


def _has_outlived(facts: ProgramFacts, now: float) -> bool:
    policy, deadline_at = facts.policy, facts.deadline_at
    counts_seconds = not policy.is_job and policy.notify_timeout is None
    return facts.state is State.STARTING and counts_seconds and deadline_at is not None and deadline_at <= now


def verdict(facts: ProgramFacts, event: WorkerExited) -> tuple[Cause, str]:
    """The cause of an end, and in words how it came."""
    unknown = event.code is None and event.signal is None  # an adopted worker's, on a kernel that does not tell
    if facts.current.done_reported and (event.code == 0 or unknown):
        return Cause.DONE, "done"
    text = restart.describe_exit(event.code, event.signal)
    if facts.current.reported_error is not None:
        text = f"{facts.current.reported_error} ({text})"
    if facts.current.decided_end is not None:
        cause, decided = facts.current.decided_end
        return cause, f"{decided}, without a checkpoint: {text}" if _left_unsaved(facts) else decided
    if facts.state is State.ADOPTING and event.code == WorkerExit.STOPPED:
        cause = Cause.PREEMPTION if is_going(facts) and facts.wanted and not facts.closing else Cause.STOPPED
        return cause, "stopped (told so before this daemon came)"
    if facts.policy.is_job and is_going(facts) and (event.code == WorkerExit.STOPPED or event.signal == SIGTERM):
        return Cause.PREEMPTION, f"told to leave by somebody else, as the host goes away: {text}"
    if not facts.policy.is_job:
        text = text if event.oom is None else f"{text}, by the kernel as memory ran out ({event.oom})"
        return Cause.EXITED if facts.state is State.RUNNING else Cause.CRASH, text
    has_begun = (
        facts.current.made_progress or facts.current.start_step is not None
    )  # then the checkpoint did fit, and the status is the script's
    if event.code == WorkerExit.CHECKPOINT_UNFIT and not has_begun:
        return Cause.BAD_CHECKPOINT if own_checkpoint(facts) is not None else Cause.SETUP, text
    if restart.is_permanent(event.code):
        return Cause.SETUP, text
    if event.code == WorkerExit.LOCKED:
        return Cause.BUSY, text
    if event.code == WorkerExit.DIVERGED:
        return Cause.DIVERGENCE, text
    if facts.current.out_of_memory or event.oom is not None:
        return Cause.OUT_OF_MEMORY, f"out of memory: {text}" + (f", by the kernel ({event.oom})" if event.oom else "")
    if event.code == 0:
        text = "exit status 0 without having said that training is done"
    if (
        event.code is not None
        and facts.state is State.STARTING
        and facts.current.reported_error is None
        and not has_begun
    ):
        text = f"{text}; it never came to worker.Run, what it printed may say why"
    if unknown and facts.current.made_progress and facts.current.reported_error is None:
        return Cause.LOST, text
    return Cause.CRASH, text


def _left_unsaved(facts: ProgramFacts) -> bool:
    """Whether it was to flush before it left, and no commit came: a flush that was only promised is none."""
    return (
        facts.current.flush is not None and facts.current.flush.then is Then.STOP and not facts.current.flush.committed
    )


def _follow_plain(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    if cause in (Cause.MEMORY_LIMIT, Cause.UNHEALTHY):
        return retry(facts, cause, text, now)
    if cause is not Cause.EXITED:
        return retry(facts, cause, _failed_start(facts, cause, text), now)
    expected = event.code in facts.policy.exitcodes
    autorestart = facts.policy.autorestart
    if expected and autorestart is not AutoRestart.ALWAYS:
        enter(facts, State.SUCCEEDED)
        return []
    if autorestart is AutoRestart.NEVER:
        facts.reason = text
        enter(facts, State.EXITED)
        return []
    return _launch_again(facts, text, 0.0 if expected else loop_pause(facts, now), now)


def _failed_start(facts: ProgramFacts, cause: Cause, text: str) -> str:
    if cause is Cause.STARTUP_TIMEOUT:
        return text
    if facts.policy.notify_timeout is not None:
        return f"ended before it said READY=1: {text}"
    return f"exited too quickly: {text}"


def _launch_again(facts: ProgramFacts, text: str, pause: float, now: float) -> Effects:
    """At once, but for a program that lives so shortly that starting it would be all the daemon does."""
    earliest = max(facts.current.started_at + restart.BACKOFF_FIRST_S, now + pause)
    if now >= earliest:
        return launch(facts, now)
    facts.reason = text
    if pause > 0:
        facts.reason = (
            f"{text}, {facts.failures.short_lives} times in a row soon after its start; it waits longer each time"
        )
    enter(facts, State.BACKOFF, earliest)
    return []


def _follow_job(facts: ProgramFacts, event: WorkerExited, cause: Cause, text: str, now: float) -> Effects:
    if facts.policy.autorestart is AutoRestart.NEVER:
        facts.reason = text
        enter(facts, State.EXITED)
        return []
    script_is_broken = (
        event.code == WorkerExit.USER_ERROR
        and facts.current.reported_error is not None
        and not (facts.current.from_checkpoint or facts.ever_trained)
    )
    if cause is Cause.LOST:  # nobody can say that it failed
        return launch(facts, now)
    if cause is Cause.DIVERGENCE:
        return follow_divergence(facts, text, now)
    if cause is Cause.BAD_CHECKPOINT:
        return follow_bad_checkpoint(facts, text, now)
    if cause is Cause.OUT_OF_MEMORY:
        return follow_out_of_memory(facts, text, now)
    if script_is_broken:
        return fail(facts, f"failed before its first step: {text}")
    return retry(facts, cause, text, now)
