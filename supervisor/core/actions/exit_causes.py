"""Why did an attempt end? A table of claims about an exit; the first that holds gives the cause and a text for people.

Why the order is as it is
-------------------------
An exit status is the weakest evidence there is: a script may leave with any, and what is killed for one reason may
leave with the status of another. So what is known otherwise comes first.

*What is known whatever the status.* A worker that reported completion and left with 0 is done, also if it was being
stopped: the other way round it would count as stopped, and a later start would find nothing to do. Then what the core
decided: a hung worker dies of the SIGABRT that the core sent, which would otherwise be charged to crashes.

A worker that diverged while it was to stop says so by its status, and that comes first: the state that it would
have saved is wrong, and the next attempt has to begin before it.

*Stops that somebody else asked for.* A worker that is being adopted may obey an earlier daemon. If nobody wants it any
more, that is a stop, even while the host goes away, so this comes before the claim about hosts. That one comes before
the claim about gangs: if the host of one rank goes away, all ranks stop together, and that one waits for what becomes
of its host. The claim about gangs comes before the plain programs, since a rank of a gang may be one.

*Plain programs.* The statuses of WorkerExit mean nothing there, so this comes before all of those: 75 is no lock.

*What a worker's status means.* Storage that may come back comes before the permanent statuses, one of which is that of
an unusable directory: the other way round, a file server that restarts would end the job until a person starts it.

*What else is known of a worker.* A fault of its GPU that the driver reported within a minute comes first: whatever the
program says of its end, it can say no more than that. Lack of memory comes after the statuses, which say more, and
before all that it looks like from outside: an end that nobody can explain, a start that got nowhere, a crash. A crash
is what is left.

Claims about different statuses exclude each other, and might change places.
"""

from collections.abc import Callable
from signal import SIGTERM
from typing import NamedTuple

from supervisor.core.actions.crash_loops import own_checkpoint
from supervisor.core.actions.explaining import (
    as_an_earlier_daemon_asked,
    as_decided,
    as_it_ended,
    as_its_gang,
    as_its_gpu_failed,
    as_its_storage_failed,
    as_told_from_outside,
    before_run,
    decided_end,
    done,
    is_certainly,
    killed_for_memory,
    out_of_memory,
    without_completion,
    without_training,
)
from supervisor.core.failures.restart import Cause
from supervisor.core.failures.storage import is_waited_for
from supervisor.core.program.events import WorkerExited
from supervisor.core.program.facts import ProgramFacts, State
from supervisor.core.program.notice_plan import is_host_going
from supervisor.protocol.wire.exits import PERMANENT_EXITS, WorkerExit


def classify_exit(facts: ProgramFacts, event: WorkerExited) -> tuple[Cause, str]:
    """The cause of an end, and a text for people."""
    rule = next(rule for rule in RULES if rule.claim(facts, event))
    return rule.cause or decided_end(facts)[0], rule.text(facts, event)


# --- claims ---


def training_is_complete(facts: ProgramFacts, event: WorkerExited) -> bool:
    return facts.current.done_reported and (event.code == 0 or _is_unknown(event))


def it_diverged_while_it_was_to_stop(facts: ProgramFacts, event: WorkerExited) -> bool:
    decided = facts.current.decided_end
    is_stop = decided is not None and decided[0] in (Cause.STOPPED, Cause.PREEMPTION)
    return is_stop and facts.current.failed_step is not None and training_diverged(facts, event)


def the_core_decided_it(facts: ProgramFacts, event: WorkerExited) -> bool:
    return facts.current.decided_end is not None


def an_earlier_daemon_stopped_it_for_the_host(facts: ProgramFacts, event: WorkerExited) -> bool:
    is_needed = facts.wanted and not facts.closing
    return an_earlier_daemon_stopped_it(facts, event) and is_needed and is_host_going(facts)


def an_earlier_daemon_stopped_it(facts: ProgramFacts, event: WorkerExited) -> bool:
    return facts.state is State.ADOPTING and event.code == WorkerExit.STOPPED


def it_was_stopped_from_outside_for_the_host(facts: ProgramFacts, event: WorkerExited) -> bool:
    is_stop = event.code == WorkerExit.STOPPED or event.signal == SIGTERM
    return facts.policy.is_job and is_host_going(facts) and is_stop


def all_ranks_of_its_gang_stopped(facts: ProgramFacts, event: WorkerExited) -> bool:
    return facts.policy.is_gang and event.code == WorkerExit.STOPPED


def a_plain_program_ended(facts: ProgramFacts, event: WorkerExited) -> bool:
    return not facts.policy.is_job and facts.state is State.RUNNING


def a_plain_program_failed_to_start(facts: ProgramFacts, event: WorkerExited) -> bool:
    return not facts.policy.is_job


def its_own_checkpoint_does_not_fit(facts: ProgramFacts, event: WorkerExited) -> bool:
    return what_it_began_from_does_not_fit(facts, event) and own_checkpoint(facts) is not None


def what_it_began_from_does_not_fit(facts: ProgramFacts, event: WorkerExited) -> bool:
    """Unless training had begun, since then the checkpoint did fit, or the status may be the script's own."""
    says_so = facts.current.restore_begun or facts.current.reported_error is not None
    return event.code == WorkerExit.CHECKPOINT_UNFIT and says_so and not _has_begun(facts)


def its_storage_may_come_back(facts: ProgramFacts, event: WorkerExited) -> bool:
    has_worked = facts.account.newest is not None
    return event.code == WorkerExit.DIRECTORY_UNUSABLE and is_waited_for(facts.current.failed_errno, has_worked)


def it_left_with_0_before_it_trained(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.code == 0 and _got_nowhere(facts)


def the_same_start_would_fail_again(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.code in PERMANENT_EXITS


def another_worker_holds_its_directory(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.code == WorkerExit.LOCKED


def training_diverged(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.code == WorkerExit.DIVERGED


def its_gpu_failed(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.evidence is not None and bool(event.evidence.gpu)


def memory_ran_out(facts: ProgramFacts, event: WorkerExited) -> bool:
    is_shown = event.code != 0 and is_certainly(event, Cause.OUT_OF_MEMORY)
    return facts.current.out_of_memory or event.oom is not None or is_shown


def nobody_knows_how_it_ended(facts: ProgramFacts, event: WorkerExited) -> bool:
    return _is_unknown(event) and facts.current.made_progress and facts.current.reported_error is None


def it_left_with_0_and_never_reported_completion(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.code == 0


def it_left_before_it_reached_run(facts: ProgramFacts, event: WorkerExited) -> bool:
    return event.code is not None and _got_nowhere(facts)


def it_crashed(facts: ProgramFacts, event: WorkerExited) -> bool:
    return True


def _is_unknown(event: WorkerExited) -> bool:
    """Whether the kernel did not tell how it ended: it was adopted."""
    return event.code is None and event.signal is None


def _has_begun(facts: ProgramFacts) -> bool:
    return facts.current.made_progress or facts.current.start_step is not None


def _got_nowhere(facts: ProgramFacts) -> bool:
    return facts.state is State.STARTING and not _has_begun(facts) and facts.current.reported_error is None


Claim = Callable[[ProgramFacts, WorkerExited], bool]
Text = Callable[[ProgramFacts, WorkerExited], str]


class Rule(NamedTuple):
    """If `claim` holds, the attempt ended for this cause (None: the one that the core decided), with this text."""

    claim: Claim
    cause: Cause | None
    text: Text


# fmt: off
RULES = (
    #    claim                                            cause                 text
    Rule(training_is_complete,                            Cause.DONE,           done),
    Rule(it_diverged_while_it_was_to_stop,                Cause.DIVERGENCE,     as_it_ended),
    Rule(the_core_decided_it,                             None,                 as_decided),
    # --- somebody else stopped it ---
    Rule(an_earlier_daemon_stopped_it_for_the_host,       Cause.PREEMPTION,     as_an_earlier_daemon_asked),
    Rule(an_earlier_daemon_stopped_it,                    Cause.STOPPED,        as_an_earlier_daemon_asked),
    Rule(it_was_stopped_from_outside_for_the_host,        Cause.PREEMPTION,     as_told_from_outside),
    Rule(all_ranks_of_its_gang_stopped,                   Cause.STOPPED,        as_its_gang),
    # --- a plain program ---
    Rule(a_plain_program_ended,                           Cause.EXITED,         killed_for_memory),
    Rule(a_plain_program_failed_to_start,                 Cause.CRASH,          killed_for_memory),
    # --- a worker, by its status ---
    Rule(its_own_checkpoint_does_not_fit,                 Cause.BAD_CHECKPOINT, as_it_ended),
    Rule(what_it_began_from_does_not_fit,                 Cause.SETUP,          as_it_ended),
    Rule(its_storage_may_come_back,                       Cause.STORAGE,        as_its_storage_failed),
    Rule(it_left_with_0_before_it_trained,                Cause.SETUP,          without_training),
    Rule(the_same_start_would_fail_again,                 Cause.SETUP,          as_it_ended),
    Rule(another_worker_holds_its_directory,              Cause.BUSY,           as_it_ended),
    Rule(training_diverged,                               Cause.DIVERGENCE,     as_it_ended),
    # --- a worker, by what else is known ---
    Rule(its_gpu_failed,                                  Cause.GPU,            as_its_gpu_failed),
    Rule(memory_ran_out,                                  Cause.OUT_OF_MEMORY,  out_of_memory),
    Rule(nobody_knows_how_it_ended,                       Cause.LOST,           as_it_ended),
    Rule(it_left_with_0_and_never_reported_completion,    Cause.CRASH,          without_completion),
    Rule(it_left_before_it_reached_run,                   Cause.CRASH,          before_run),
    Rule(it_crashed,                                      Cause.CRASH,          as_it_ended),
)
# fmt: on
