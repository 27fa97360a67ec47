"""A daemon that died and came back decides as the one that lived on. Time is a number."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.failures.hang_detection import HangDetector, LoopSection
from supervisor.core.failures.restart import Cause, FailureCounts
from supervisor.core.failures.suspects import Death, Suspects
from supervisor.core.job import Job
from supervisor.core.program import events
from supervisor.core.program.effects import (
    Effect,
    PersistHangHistory,
    RecordEnd,
    SelectCheckpoint,
    Spawn,
)
from supervisor.core.program.facts import AttemptFacts, OnOom, Policy, ProgramFacts, State
from supervisor.core.program.persisted_facts import PersistedFacts, facts_to_persist
from supervisor.host.ledger.job_states import decode_facts
from supervisor.protocol.checkpoints.account import Older, ProgressAccount, ReportedCheckpoint
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.wire.codec import encode_record
from tests.fuzzing import cases

JOB = Policy(name="digits", is_job=True, startretries=4, hang_timeout_min=10.0)
PAUSE_S = 1000.0  # longer than any back-off


def rebuilt(job: Job, now: float, lives: bool = False) -> Job:
    """The job as a daemon that starts at `now` has it, by what the one before wrote down."""
    persisted = decode_facts(encode_record(facts_to_persist(job.facts, now)))
    assert persisted is not None
    later = Job(job.facts.policy)
    later.skip_attempts(job.facts.attempt)
    later.recall_persisted(persisted, now, 0.0)
    later.facts.wanted = job.facts.wanted
    later.facts.hang_detector.recall_longest(job.facts.hang_detector.longest)
    if not lives and job.state is not State.FAILED:
        later.handle(events.StartRequested(resumes=True), now)
    return later


@st.composite
def attempts(draw: st.DrawFn) -> dict[str, object]:
    """What one attempt does: where it begins, how far it gets, what it saves, how it ends, and who sees that."""
    return {
        "from": draw(st.sampled_from([None, 10, 20, 30])),
        "steps": draw(st.sampled_from([0, 0, 1, 5])),
        "saves": draw(st.sampled_from([False, False, False, True])),
        "end": draw(st.sampled_from(["killed", "raised", "lacked", "diverged", "hung", "unfit"])),
        "restart": draw(st.sampled_from([None, "between", "during"])),
    }


def begin(job: Job, attempt: dict, now: float) -> int | None:
    """Up to the end of one attempt, which is not there yet; the last step, None if it never got so far."""
    number, origin = job.facts.attempt, attempt["from"]
    job.handle(events.SpawnSucceeded(number), now)
    path = f"/c/step-{origin:010d}.a1" if origin else None
    job.handle(events.CheckpointSelected(number, path, origin, "epoch 1"), now)
    job.handle(events.TrainingRestored(number, origin or 0), now)
    step = (origin or 0) + attempt["steps"]
    if attempt["steps"]:
        job.handle(events.StepsDone(number, step), now)
        if attempt["saves"]:
            job.handle(events.CheckpointCommitted(number, step), now)
    return step


def end_seen(job: Job, attempt: dict, step: int, now: float) -> list[Effect]:
    number = job.facts.attempt
    match attempt["end"]:
        case "hung":
            now = max(now, job.deadline() or now)
            job.expire(now)
            return job.handle(events.WorkerExited(number, signal=6), now)
        case "killed":
            return job.handle(events.WorkerExited(number, signal=9), now)
    words = words_of(attempt, step)
    job.handle(events.FailureReported(number, "words", step, words["out_of_memory"], words["go_back"]), now)
    return job.handle(events.WorkerExited(number, code=words["code"]), now)


def words_of(attempt: dict, step: int) -> dict:
    codes = {"raised": 1, "lacked": 1, "diverged": 80, "unfit": 65}
    return {
        "code": codes[attempt["end"]],
        "out_of_memory": attempt["end"] == "lacked",
        "go_back": attempt["end"] == "diverged",
    }


def end_unseen(job: Job, attempt: dict, step: int, now: float) -> list[Effect]:
    saved = step if attempt["steps"] and attempt["saves"] else None
    words = words_of(attempt, step)
    return job.handle(
        events.AttemptLost(job.facts.attempt, error="words", committed_step=saved, step=step, **words), now
    )


def decisions(effects: list[Effect]) -> list[Effect]:
    """Without the words for people, and what belongs to one daemon's life."""
    return [
        replace(effect, text="") if isinstance(effect, RecordEnd) else effect
        for effect in effects
        if not isinstance(effect, PersistHangHistory)
    ]


def standing(job: Job) -> tuple[object, ...]:
    return (
        job.state,
        job.facts.failures,
        job.facts.suspects,
        job.facts.restore_below_step,
        job.facts.divergence,
        job.facts.microbatches,
        job.facts.best_step,
    )


@pytest.mark.thorough
@cases(300, deadline=None)
@given(st.lists(attempts(), min_size=1, max_size=12), st.sampled_from(OnOom))
def test_a_daemon_that_came_back_decides_as_one_that_lived_on(story: list[dict], on_oom: OnOom):
    lived = Job(replace(JOB, on_oom=on_oom))
    lived.handle(events.StartRequested(), 0.0)
    came = Job(replace(JOB, on_oom=on_oom))
    came.handle(events.StartRequested(), 0.0)
    now = 0.0
    for attempt in story:
        now += 1.0
        step = begin(lived, attempt, now)
        assert begin(came, attempt, now) == step
        seen = end_seen(lived, attempt, step, now)
        if attempt["restart"] == "during" and attempt["end"] not in ("hung", "killed"):  # those leave no words
            came = rebuilt(came, now, lives=True)
            effects = end_unseen(came, attempt, step, now)
        else:
            effects = end_seen(came, attempt, step, now)
        assert decisions(effects) == decisions(seen)
        if attempt["restart"] == "between" and lived.state is State.BACKOFF:
            came = rebuilt(came, now)
        assert standing(came) == standing(lived)
        assert came.deadline() == lived.deadline() or lived.state is not State.BACKOFF
        if lived.state is State.FAILED:
            return
        if lived.state is State.BACKOFF:
            now += PAUSE_S
            assert came.expire(now) == lived.expire(now)
        assert lived.state is State.STARTING


def test_a_job_that_was_given_up_gets_one_more_attempt_from_a_new_daemon_and_all_from_its_operator():
    job = Job(replace(JOB, startretries=0))
    job.handle(events.StartRequested(), 0.0)
    job.handle(events.WorkerExited(1, signal=9), 1.0)
    assert job.state is State.FAILED

    later = rebuilt(job, 2.0, lives=True)
    assert later.handle(events.StartRequested(resumes=True), 2.0) == [Spawn(2), SelectCheckpoint(2)]
    later.handle(events.WorkerExited(2, signal=9), 3.0)
    assert later.state is State.FAILED

    later.handle(events.StartRequested(), 4.0)
    assert later.facts.failures.by_cause == {}


def test_stored_facts_of_an_attempt_do_not_count_for_a_later_one():
    job = Job(JOB)
    job.handle(events.StartRequested(), 0.0)
    begin(job, {"from": 20, "steps": 1, "saves": True}, 1.0)
    memory = facts_to_persist(job.facts, 2.0)
    later = Job(JOB)
    later.skip_attempts(2)

    later.recall_persisted(memory, 2.0, 0.0)

    assert (later.facts.current.checkpoint, later.facts.current.saved_step, later.facts.current.start_step) == (
        None,
        None,
        None,
    )
    assert later.facts.best_step == 21


def test_back_off_continues_less_the_time_without_a_daemon():
    job = Job(JOB)
    job.handle(events.StartRequested(), 0.0)
    job.handle(events.WorkerExited(1, signal=9), 1.0)
    memory = facts_to_persist(job.facts, 1.0)
    assert memory.backoff_left_s is not None

    for ago_s, state in ((0.5 * memory.backoff_left_s, State.BACKOFF), (2 * memory.backoff_left_s, State.STARTING)):
        later = Job(JOB)
        later.skip_attempts(1)
        later.recall_persisted(memory, 100.0, ago_s)
        later.handle(events.StartRequested(resumes=True), 100.0)
        assert later.state is state
        if state is State.BACKOFF:
            assert later.deadline() == 100.0 + memory.backoff_left_s - ago_s


STORED = {
    ProgramFacts: {
        "best_step", "ever_trained", "microbatches", "no_copies", "restore_below_step", "diverged_attempt", "mount",
        "salvaged", "begin_at", "begin_since", "set_aside", "passed_over", "worked_paths", "startup_s",
        "steps_s",
    },
    AttemptFacts: {
        "start_limit_s", "made_progress", "start_afresh", "checkpoint", "restore_begun", "from_checkpoint",
        "start_step", "step", "saved_step", "older", "checkpoint_dir", "gpus_left_out",
    },
    FailureCounts: {"by_cause", "deaths_without_progress", "ports_lost"},
    HangDetector: {"hung_step", "hung_in", "hangs"},
    Suspects: {"avoid", "deaths", "cleared", "unfit"},
}  # fmt: skip
"""What a later daemon has to know."""

ELSEWHERE = "the ledger, or the file of what is wanted, has it"
REPORTED = "the worker, its last words, or the host's look at it says so again"
MEASURED = "measured again, and a late answer costs time only"
OWN_LIFE = "of this daemon's life"
NEW_WAIT = "a wait that begins anew"
SHOWN = "only shown"
NOT_STORED = {
    ProgramFacts: {
        "policy": "the configuration", "state": "no state outlives the daemon", "deadline_at": "stored as back-off",
        "reason": "stored with the back-off", "backoff_until": "stored as back-off", "wanted": ELSEWHERE,
        "account": ELSEWHERE, "attempt": ELSEWHERE, "attempts_used": REPORTED, "current": "see there",
        "failures": "see there", "hang_detector": "see there", "suspects": "see there", "flushes_requested": REPORTED,
        "ended": SHOWN, "closing": OWN_LIFE, "host_leaves": OWN_LIFE, "held_back": OWN_LIFE, "launched": OWN_LIFE,
        "notice": "the store of notices has it", "notice_recalled": "the store of notices has it",
        "freeze_until": "the store of notices has it", "waits_for_host": "the store of notices has it",
        "storage": NEW_WAIT, "waits_for_storage": NEW_WAIT, "start_paths_missing": NEW_WAIT,
        "pauses": MEASURED, "save_s": MEASURED, "flush_s": MEASURED, "upload_s": MEASURED,
        "upload_waits": REPORTED, "upload_fits": MEASURED,
    },
    AttemptFacts: {
        "started_at": REPORTED, "startup_deadline_at": "from its age and start_limit_s", "progressed_at": OWN_LIFE,
        "outdated": "compared again", "readiness_unknown": OWN_LIFE, "has_spoken": "assumed of one that is adopted",
        "last_step_at": OWN_LIFE, "from_memory": REPORTED,
        "in_memory": REPORTED, "flush": REPORTED, "looks_end_at": NEW_WAIT,
        "silence": NEW_WAIT, "slowdown": MEASURED, "done_reported": REPORTED, "reported_error": REPORTED,
        "failed_step": REPORTED, "out_of_memory": REPORTED, "failed_errno": REPORTED, "older_readable": NEW_WAIT,
        "go_back": REPORTED, "gang_attempt": REPORTED, "save_error": REPORTED, "flush_failure": SHOWN,
        "decided_end": "an end that no daemon saw counts as lost; what it teaches is stored as it is decided",
        "early_flush_requested": "one flush more", "last_flush_requested": "one flush more",
        "flush_retry_at": "one flush more",
    },
    FailureCounts: {"short_lives": "of a plain program: some restarts that come sooner"},
    HangDetector: {
        "longest": ELSEWHERE, "persisted": ELSEWHERE, "section": REPORTED, "since": OWN_LIFE, "saving_since": REPORTED,
    },
    Suspects: {},
}  # fmt: skip
"""Why all others need not be stored."""


@pytest.mark.parametrize("kind", STORED)
def test_every_fact_is_stored_or_known_without(kind: type) -> None:
    """A new field has to be in one of the two lists; if it decides what follows, in the first."""
    names = {field.name for field in fields(kind)}
    assert names == STORED[kind] | NOT_STORED[kind].keys()
    assert not STORED[kind] & NOT_STORED[kind].keys()


def known_to_differ(job: Job) -> dict[type, object]:
    """Facts of a job that has ended, all of which that are stored have another value than a new job's."""
    facts = job.facts
    facts.attempt, facts.state = 4, State.STOPPED
    facts.best_step, facts.ever_trained, facts.microbatches, facts.no_copies = 30, True, 4, True
    facts.restore_below_step, facts.diverged_attempt, facts.mount = 20, 3, "xfs at /data"
    facts.salvaged, facts.begin_at, facts.begin_since = "step-0000000030.a4", 10, 2
    facts.set_aside, facts.passed_over = 10, "step-0000000020.a3"
    facts.worked_paths, facts.startup_s, facts.steps_s = ("/bin/python",), 12.0, (0.5, 0.25)
    current = facts.current
    current.started_at, current.startup_deadline_at, current.start_limit_s = 0.0, 723.0, 723.0
    current.made_progress = current.start_afresh = current.restore_begun = current.from_checkpoint = True
    current.checkpoint = events.CheckpointSelected(4, "/c/step-0000000010.a1", 10, "epoch 1")
    current.start_step, current.step, current.saved_step, current.checkpoint_dir = 10, 35, 30, "/c"
    current.older, current.gpus_left_out = Older(OlderBecause.SUSPECT, "words"), "GPU 2 (XID 79)"
    facts.failures.by_cause, facts.failures.deaths_without_progress, facts.failures.ports_lost = {Cause.CRASH: 2}, 1, 2
    facts.hang_detector.hung_step, facts.hang_detector.hung_in, facts.hang_detector.hangs = 7, LoopSection.STEP, 2
    death = Death("step-0000000010.a1", 10, 11)
    facts.suspects = Suspects(frozenset({"step-0000000010.a1"}), (death,), frozenset({"b"}), (("c", "words"),))
    return {
        ProgramFacts: facts,
        AttemptFacts: current,
        FailureCounts: facts.failures,
        HangDetector: facts.hang_detector,
        Suspects: facts.suspects,
    }


def test_all_that_is_stored_comes_back() -> None:
    policy = replace(JOB, on_oom=OnOom.MICROBATCH)
    job, new, later = Job(policy), Job(policy), Job(policy)
    before = known_to_differ(job)
    persisted = decode_facts(encode_record(facts_to_persist(job.facts, 0.0)))
    assert persisted is not None
    later.skip_attempts(4)

    later.recall_persisted(persisted, 0.0, 0.0)

    for kind, names in STORED.items():
        for name in names:
            value = getattr(before[kind], name)
            assert value != getattr(part_of(new, kind), name), f"{kind.__name__}.{name} is not changed by this test"
            assert getattr(part_of(later, kind), name) == value, f"{kind.__name__}.{name} is lost"


def part_of(job: Job, kind: type) -> object:
    facts = job.facts
    parts = (facts, facts.current, facts.failures, facts.hang_detector, facts.suspects)
    return next(part for part in parts if type(part) is kind)


def test_an_order_is_not_carried_out_again_if_the_account_knows_what_it_has_begun():
    """The ledger may be behind, and the job have another checkpoint_dir since."""
    job = Job(Policy("j", is_job=True, checkpoint_dir="/data/b"))
    job.skip_attempts(4)
    job.facts.account = ProgressAccount(ReportedCheckpoint(5, "step-0000000005.a4", "/data/a", attempt=4, since=4), 1)

    job.recall_persisted(PersistedFacts(attempt=4, begin_at=0, begin_since=4, set_aside=0), 0.0, 0.0)

    assert (job.facts.begin_at, job.facts.begin_since, job.facts.set_aside) == (None, None, None)
