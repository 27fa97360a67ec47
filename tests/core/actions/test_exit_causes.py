"""Why an attempt ended: each claim of the table decides an exit, and the order of those that may both hold."""

from dataclasses import dataclass, field, replace

import pytest

from supervisor.core.actions.exit_causes import RULES, classify_exit
from supervisor.core.diagnosis.evidence import Evidence
from supervisor.core.failures.restart import Cause
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program.events import CheckpointSelected, WorkerExited
from supervisor.core.program.facts import Policy, ProgramFacts, State
from supervisor.protocol.wire.exits import WorkerExit

JOB = Policy("digits", is_job=True, script="train.py")
PLAIN = Policy("web", is_job=False)
GANG = replace(JOB, is_gang=True)
GOING = Notice("aws", "1", NoticeKind.PREEMPTION, Certainty.CERTAIN, 900.0, False, "")
OWN = CheckpointSelected(1, "/c/step-0000000001.a1", 1)
FOREIGN = CheckpointSelected(1, "/old/model.ckpt-1", 1)


@dataclass(frozen=True)
class Case:
    """An exit, and what was known: `current` of the attempt, `known` of the program."""

    claim: str
    exit: WorkerExited
    policy: Policy = JOB
    state: State = State.RUNNING
    current: dict[str, object] = field(default_factory=dict)
    known: dict[str, object] = field(default_factory=dict)

    def facts(self) -> ProgramFacts:
        facts = ProgramFacts(self.policy, state=self.state, wanted=True)
        for name, value in self.known.items():
            setattr(facts, name, value)
        for name, value in self.current.items():
            setattr(facts.current, name, value)
        return facts


def left(code: int | None = None, signal: int | None = None, oom: str | None = None) -> WorkerExited:
    return WorkerExited(1, code, signal, oom)


KILLED = left(signal=9)
STOPPED = left(WorkerExit.STOPPED)
UNKNOWN = left()
HANG = (Cause.HANG, "no step for 9 s")
UNFIT = {"checkpoint": OWN, "restore_begun": True}
DIVERGING = {"decided_end": (Cause.STOPPED, "stopped"), "failed_step": 12}
AWAY = {"failed_errno": 5}  # EIO

CASES = [
    Case("training_is_complete", left(0), current={"done_reported": True}),
    Case("training_is_complete", UNKNOWN, current={"done_reported": True}),
    Case("it_diverged_while_it_was_to_stop", left(WorkerExit.DIVERGED), current=DIVERGING),
    Case("the_core_decided_it", left(signal=6), current={"decided_end": HANG}),
    Case("an_earlier_daemon_stopped_it_for_the_host", STOPPED, JOB, State.ADOPTING, known={"notice": GOING}),
    Case("an_earlier_daemon_stopped_it", STOPPED, JOB, State.ADOPTING),
    Case("it_was_stopped_from_outside_for_the_host", STOPPED, known={"notice": GOING}),
    Case("it_was_stopped_from_outside_for_the_host", left(signal=15), known={"notice": GOING}),
    Case("all_ranks_of_its_gang_stopped", STOPPED, GANG),
    Case("a_plain_program_ended", left(3), PLAIN),
    Case("a_plain_program_failed_to_start", left(3), PLAIN, State.STARTING),
    Case("its_own_checkpoint_does_not_fit", left(WorkerExit.CHECKPOINT_UNFIT), JOB, State.STARTING, UNFIT),
    Case(
        "what_it_began_from_does_not_fit",
        left(WorkerExit.CHECKPOINT_UNFIT),
        JOB,
        State.STARTING,
        UNFIT | {"checkpoint": FOREIGN},
    ),
    Case("its_storage_may_come_back", left(WorkerExit.DIRECTORY_UNUSABLE), current=AWAY),
    Case("it_left_with_0_before_it_trained", left(0), JOB, State.STARTING),
    Case("the_same_start_would_fail_again", left(WorkerExit.BAD_LAUNCH)),
    Case("another_worker_holds_its_directory", left(WorkerExit.LOCKED)),
    Case("training_diverged", left(WorkerExit.DIVERGED)),
    Case(
        "its_gpu_failed", replace(left(1), evidence=Evidence(gpu=("GPU 1: Xid 79",))), current={"out_of_memory": True}
    ),
    Case("memory_ran_out", left(1), current={"out_of_memory": True}),
    Case("nobody_knows_how_it_ended", UNKNOWN, current={"made_progress": True}),
    Case("it_left_with_0_and_never_reported_completion", left(0), current={"made_progress": True}),
    Case("it_left_before_it_reached_run", left(1), JOB, State.STARTING),
    Case("it_crashed", KILLED),
    # the script chose the status of a misfit, but its checkpoint did fit: it trained
    Case("it_crashed", left(WorkerExit.CHECKPOINT_UNFIT), current=UNFIT | {"start_step": 1}),
    # each of these claims holds with the next one that is named
    Case("training_is_complete", left(0), current={"done_reported": True, "decided_end": HANG}),
    Case("the_core_decided_it", STOPPED, JOB, State.ADOPTING, {"decided_end": HANG}),
    Case("the_core_decided_it", left(WorkerExit.DIVERGED), current={"decided_end": HANG, "failed_step": 12}),
    Case("the_core_decided_it", left(WorkerExit.LOCKED), PLAIN, current={"decided_end": HANG}),
    Case("an_earlier_daemon_stopped_it", STOPPED, JOB, State.ADOPTING, known={"notice": GOING, "wanted": False}),
    Case("it_was_stopped_from_outside_for_the_host", STOPPED, GANG, known={"notice": GOING}),
    Case("all_ranks_of_its_gang_stopped", STOPPED, replace(PLAIN, is_gang=True)),
    Case("a_plain_program_ended", left(WorkerExit.LOCKED), PLAIN),
    Case("the_same_start_would_fail_again", left(WorkerExit.DIRECTORY_UNUSABLE)),
    Case("training_diverged", left(WorkerExit.DIVERGED), current={"out_of_memory": True}),
    Case("memory_ran_out", left(oom="oom_kill 1"), current={"made_progress": True}),
    Case("memory_ran_out", left(1, oom="oom_kill 1"), JOB, State.STARTING),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.claim}-{case.exit.code}")
def test_the_first_claim_that_holds_decides(case: Case):
    facts = case.facts()

    first = next(rule for rule in RULES if rule.claim(facts, case.exit))

    assert first.claim.__name__ == case.claim
    cause, text = classify_exit(facts, case.exit)
    assert cause is (first.cause or Cause.HANG) and text


def test_each_claim_decides_an_exit():
    assert {case.claim for case in CASES} == {rule.claim.__name__ for rule in RULES}
