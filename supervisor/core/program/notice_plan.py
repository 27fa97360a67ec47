"""What a notice means for one job: when its flushes are due, and whether an attempt is still worth starting.

How the flush deadline works
----------------------------
A notice says that the host goes away, and perhaps when. The job wants two things that pull against each other: to have
a checkpoint on the disk before the host is gone, and to train until as late as possible. So it saves twice.

The first flush is requested as soon as the notice comes, so that something recent is on the disk whatever happens
next. Training goes on meanwhile. The last flush is requested at the last moment at which it can still finish:

    last_flush_at = notice deadline - notice_margin - save - wait for a step

All four are measured or configured. `save` is what a save of this job takes on this disk while all other jobs that
must finish save too (SavesMeasured; `core/notices/flush.py` computes it). The wait is there because the worker saves
only between two steps: the slowest of its last steps, as the worker reports them. The margin is the operator's.

A training loop also pauses between steps, to evaluate or to wait for data. A pause that is no longer than a step and a
save together is planned for like a long step. It is less worth planning for longer ones, as every minute of it would be
a minute of training given up each time; instead one more checkpoint, the early flush, is requested before the time in
which such a pause may begin. If the pause does come and outlasts the host, only the training after that flush is lost.

With `durable = remote` the checkpoint also has to reach the job's mirror in time, and its upload is subtracted too:

    last_flush_at = notice deadline - notice_margin - upload - save - wait for a step

`upload` is what an upload of this job takes while all others that must finish upload too (UploadsChanged). It is not
subtracted where it would not help (`upload_fits`): uploads are made one after the other, and an upload that has begun,
or the first flush's, is worth more than one that may be cut off. If there is no time for those and one more, the mirror
gets them, and the last checkpoint only has to reach the disk. An upload that was never measured counts as none until
the first flush's is.

What is not known is None, never 0. A job that never saved cannot plan: it flushes at once, and plans its last flush
with what that one took. If the last moment has passed before the notice came, the first flush is the last one too.

RUNNING has one deadline, the earlier of `flush_due_at` and the hang deadline; FLUSHING has the last flush or
flush_timeout. What is done at each of them is in `core/actions/notices.py`.
"""

from supervisor.core.failures.restart import Cause
from supervisor.core.notices.flush import latest_flush_at
from supervisor.core.notices.notice import Certainty, Notice
from supervisor.core.program.facts import ALIVE, UP, Durable, ProgramFacts, State

UNMEASURED_STARTUP_S = 30.0  # importing TensorFlow, restoring and tracing take 10 to 30 s; measured from then on
FREEZE_LIMIT_S = 600.0  # how long a notice of a freeze suspends hang detection if nobody says that the freeze is over
RETRY_S = 1.0  # after a failed flush: a full disk may have space in a second, and time is short
RETRY_WITHOUT_DEADLINE_S = 30.0  # after a failed flush, where nobody says when the host goes


def is_host_going(facts: ProgramFacts) -> bool:
    """Whether the host is certain to go away."""
    return facts.notice is not None and facts.notice.certainty is Certainty.CERTAIN


def host_gone_at(facts: ProgramFacts) -> float | None:
    """When the host may be gone (monotonic seconds); None if it is not certain to go, or nobody says when."""
    return facts.notice.deadline_at if facts.notice is not None and is_host_going(facts) else None


def expected_save_s(facts: ProgramFacts) -> float | None:
    """How long the next save is expected to take; None if this job has never saved."""
    return facts.save_s if facts.save_s is not None else facts.flush_s


def expected_upload_s(facts: ProgramFacts) -> float:
    """How long the next upload is expected to take; 0 if no flush waits for the mirror, or none was measured."""
    return facts.upload_s or 0.0 if facts.policy.durable is Durable.REMOTE else 0.0


def fits_uploads(facts: ProgramFacts, now: float, before: int) -> bool:
    """Whether the mirror can get `before` checkpoints and then the last one, if it is asked for in time.

    True if nothing says that it can't.
    """
    end = host_gone_at(facts)
    if end is None:
        return True
    flush_s = slowest_step_s(facts) + (expected_save_s(facts) or 0.0)
    return now + flush_s + (before + 1) * expected_upload_s(facts) + facts.policy.notice_margin <= end


def slowest_step_s(facts: ProgramFacts) -> float:
    """How long the step may take that a flush has to wait for; 0 if neither a step nor a flush was measured."""
    if facts.steps_s:
        return max(facts.steps_s)
    return max(0.0, (facts.flush_s or 0.0) - (facts.save_s or 0.0))


def longest_pause_s(facts: ProgramFacts) -> float:
    """The longest time without a step in the last hour, such as an evaluation; 0 if there was none."""
    return max((pause.pause_s for pause in facts.pauses), default=0.0)


def wait_for_step_s(facts: ProgramFacts) -> float:
    """How long the last flush is planned to wait for the end of a step.

    A pause no longer than a step and a save is planned for, since there is no time for a save before it. The margin
    already covers rare delays, so it is subtracted once. For longer pauses there is `early_flush_at`.
    """
    step, pause = slowest_step_s(facts), longest_pause_s(facts)
    return max(step, pause - facts.policy.notice_margin) if pause <= step + (expected_save_s(facts) or 0.0) else step


def last_flush_at(facts: ProgramFacts) -> float | None:
    """When the last flush before the host goes is due (monotonic seconds).

    None if none is to come, or if nobody knows how long it takes.
    """
    end, save = host_gone_at(facts), expected_save_s(facts)
    if end is None or save is None or facts.current.last_flush_requested or not facts.policy.is_job:
        return None
    upload_s = expected_upload_s(facts) if facts.upload_fits else 0.0
    return latest_flush_at(end, wait_for_step_s(facts), save, facts.policy.notice_margin, upload_s)


def last_flush_ends_at(facts: ProgramFacts) -> float | None:
    """Until when the last flush, which was requested, may take (monotonic seconds): until the host may be gone.

    None if it was not requested.
    """
    return host_gone_at(facts) if facts.current.last_flush_requested else None


def early_flush_at(facts: ProgramFacts) -> float | None:
    """When one more checkpoint is due (monotonic seconds), because a long pause may begin before the last flush.

    None if no pause is that long, or if this flush was requested already.
    """
    last_at, pause = last_flush_at(facts), longest_pause_s(facts)
    if last_at is None or facts.current.early_flush_requested or pause <= wait_for_step_s(facts):
        return None
    return last_at + wait_for_step_s(facts) - pause


def flush_due_at(facts: ProgramFacts, now: float) -> float | None:
    """When a training job is to be asked for a checkpoint because of the notice (monotonic seconds)."""
    if facts.notice is None or facts.current.done_reported or not facts.policy.is_job:
        return None
    retry_at, last_at = facts.current.flush_retry_at, last_flush_at(facts)
    if host_gone_at(facts) is None or facts.current.last_flush_requested:
        return retry_at
    if last_at is None:  # nobody knows how long it takes, so there is no time to lose
        return now if retry_at is None else retry_at
    early_at, step_s, save_s = early_flush_at(facts), slowest_step_s(facts), expected_save_s(facts) or 0.0
    if early_at is not None and max(now, early_at) + step_s + save_s <= last_at:
        last_at = early_at
    return last_at if retry_at is None else min(last_at, retry_at)


def flush_limit_s(facts: ProgramFacts, now: float) -> float:
    """Seconds that the worker is given for a flush that is requested now."""
    limit, end = facts.policy.flush_timeout, host_gone_at(facts)
    if end is None or end <= now:
        return limit
    return end - now if facts.current.last_flush_requested else min(limit, end - now)


def no_start_before(facts: ProgramFacts, now: float) -> float | None:
    """Until when no attempt is started (monotonic seconds); None: start now.

    None is started that could not make a step durable in time, where that needs the mirror also not one whose upload
    would be behind others for too long. Once the last flush was asked for, what trained has left for the host's sake:
    whatever time is left then is for its upload.
    """
    end, last_at = host_gone_at(facts), last_start_at(facts)
    if end is None or last_at is None:
        return None
    over_at, is_too_late = end + facts.policy.notice_grace, last_at < now or facts.current.last_flush_requested
    return over_at if is_too_late and now < over_at else None


def last_start_at(facts: ProgramFacts) -> float | None:
    """The last moment (monotonic seconds) to start a job that makes a step durable in time; None: nothing says when the
    host goes."""
    end, policy = host_gone_at(facts), facts.policy
    if end is None or not policy.is_job:
        return None
    startup_s = UNMEASURED_STARTUP_S if facts.startup_s is None else facts.startup_s
    upload_s = (1 + facts.upload_waits) * expected_upload_s(facts)
    needed_s = startup_s + slowest_step_s(facts) + (expected_save_s(facts) or 0.0) + upload_s + policy.notice_margin
    return end - needed_s


def can_flush(facts: ProgramFacts) -> bool:
    """Whether there is a training process that a notice makes save."""
    return facts.policy.is_job and facts.state in UP


def has_nothing_to_lose(facts: ProgramFacts) -> bool:
    """Whether the host may go at once as far as this program is concerned: everything is where it is durable."""
    if facts.policy.durable is Durable.REMOTE and facts.upload_waits:
        return False
    if not facts.policy.is_job or facts.state not in ALIVE:
        return True
    if facts.state is State.RUNNING:
        return facts.current.last_flush_requested and facts.current.flush_retry_at is None
    return facts.state is State.STARTING and not facts.current.made_progress


def stop_cause(facts: ProgramFacts) -> Cause:
    """The cause that a stop is recorded under: the daemon leaves because the host goes, or somebody wants it."""
    return Cause.PREEMPTION if facts.closing and (facts.host_leaves or is_host_going(facts)) else Cause.STOPPED


def describe_notice(notice: Notice) -> str:
    """A notice in a few words for people."""
    return f"{notice.source}: {notice.text}" if notice.text else notice.source
