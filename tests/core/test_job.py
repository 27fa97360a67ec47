"""Decisions about one program. No process and no clock: time is a number."""

from dataclasses import replace

import pytest

from supervisor.core.actions.transitions import TARGETS
from supervisor.core.failures.restart import PORTS_FORGIVEN, Cause
from supervisor.core.job import ROWS, TABLE, Job
from supervisor.core.program import events
from supervisor.core.program.effects import (
    Abort,
    Kill,
    LookAtStorage,
    RecordEnd,
    RecordWanted,
    RequestFlush,
    SelectCheckpoint,
    SendGo,
    Spawn,
    Terminate,
)
from supervisor.core.program.events import (
    CheckpointCommitted,
    CheckpointSaveFailed,
    CheckpointSelected,
    DoneReported,
    Event,
    FailureReported,
    FlushRequested,
    ProgramClosed,
    RestartRequired,
    SelectionFailed,
    ShutdownHurried,
    SpawnDelayed,
    SpawnFailed,
    SpawnSucceeded,
    StartRequested,
    StepsDone,
    StopRequested,
    TrainingRestored,
    WorkerExited,
)
from supervisor.core.program.facts import ALIVE, AutoRestart, Policy, State
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Then

JOB = Policy(name="digits", is_job=True, startretries=3, startup_timeout=60, flush_timeout=20, stopwaitsecs=10)
PLAIN = Policy(name="web", is_job=False, startsecs=1, startretries=3, stopwaitsecs=10)


def starting(policy: Policy = JOB, now: float = 0.0) -> Job:
    job = Job(policy)
    job.handle(StartRequested(), now)
    job.handle(SpawnSucceeded(1), now)
    return job


def running(policy: Policy = JOB, now: float = 10.0, step: int = 1) -> Job:
    job = starting(policy)
    if policy.is_job:
        job.handle(CheckpointSelected(1, None, None), now)
        job.handle(TrainingRestored(1, 0), now)
        job.handle(StepsDone(1, step), now)
    else:
        job.expire(now)
    assert job.state is State.RUNNING
    return job


def die(job: Job, now: float, **how: int) -> list[object]:
    return list(job.handle(WorkerExited(job.facts.attempt, **(how or {"signal": 9})), now))


ALL = frozenset(State)
WITHOUT_PROCESS = ALL - ALIVE
EVENTS = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)} - {
    Event,
    events.ReportedEvent,
}
IGNORED: dict[type[Event], frozenset[State]] = {
    events.StartRequested: frozenset(),
    events.StopRequested: frozenset(),
    events.ProgramClosed: frozenset(),
    events.ShutdownHurried: ALL - {State.FLUSHING, State.STOPPING, State.KILLING, State.ADOPTING},
    events.FlushRequested: ALL - {State.RUNNING},
    events.SpawnDelayed: ALL - {State.STARTING},
    events.SpawnSucceeded: ALL - {State.STARTING},
    events.SpawnFailed: ALL - {State.STARTING, State.STOPPING, State.KILLING},
    events.ReadyReported: ALL - {State.STARTING},
    events.CheckpointSelected: ALL - {State.STARTING},
    events.SelectionFailed: ALL - {State.STARTING, State.BACKOFF},
    events.CheckpointsSetAside: frozenset({State.RUNNING, State.FLUSHING, State.ADOPTING}),
    events.StorageSeen: ALL - {State.BACKOFF, State.RUNNING},
    events.BeginAtRequested: frozenset({State.STARTING, State.RUNNING, State.ADOPTING}),
    events.StartPathsSeen: ALL - {State.BACKOFF},
    events.WorkerMet: WITHOUT_PROCESS,
    events.RestoreBegun: WITHOUT_PROCESS,
    events.TrainingRestored: WITHOUT_PROCESS,
    events.StepsDone: WITHOUT_PROCESS,
    events.CheckpointCommitted: frozenset({State.STOPPED}),
    events.CheckpointMirrored: frozenset(),
    events.CopiesHeld: WITHOUT_PROCESS,
    events.MemorySalvaged: frozenset(),
    events.CheckpointSaveFailed: ALL - {State.RUNNING, State.FLUSHING},
    events.DoneReported: WITHOUT_PROCESS,
    events.FailureReported: WITHOUT_PROCESS,
    events.StacksCollected: WITHOUT_PROCESS,
    events.SilenceObserved: ALL - {State.RUNNING},
    events.SpeedChanged: ALL - {State.RUNNING, State.FLUSHING},
    events.RestartRequired: WITHOUT_PROCESS | {State.STOPPING, State.KILLING},
    events.GangBroken: WITHOUT_PROCESS | {State.KILLING},
    events.GangBegins: ALL - {State.STOPPED, State.BACKOFF},
    events.RunTakenOver: WITHOUT_PROCESS | {State.KILLING},
    events.CheckpointOutdated: WITHOUT_PROCESS | {State.STOPPING, State.KILLING},
    events.NoticeReceived: frozenset(),
    events.NoticeChanged: frozenset(),
    events.NoticeEnded: frozenset(),
    events.SavesMeasured: frozenset(),
    events.UploadsChanged: frozenset(),
    events.WorkerExited: WITHOUT_PROCESS,
    events.AttemptFound: ALL - {State.STOPPED},
    events.WorkerIdentified: ALL - {State.ADOPTING},
    events.AttemptLost: ALL - {State.STOPPED},
    events.HostSuspended: WITHOUT_PROCESS | {State.KILLING},
    events.DeadlinePassed: WITHOUT_PROCESS - {State.BACKOFF},
}
"""By event, the states in which it changes nothing."""


def test_every_state_and_event_has_an_action_or_is_listed_as_ignored():
    ignored = {(state, event) for event, states in IGNORED.items() for state in states}

    assert set(IGNORED) == EVENTS
    assert set(TABLE) | ignored == {(state, event) for state in State for event in EVENTS}
    assert not set(TABLE) & ignored


def test_no_cell_of_the_table_is_written_twice():
    cells = [(state, event) for event, states, _ in ROWS for state in states]

    assert len(cells) == len(set(cells))


def test_ignored_event_changes_nothing_and_gives_no_effect():
    job = running()
    before = job.facts.snapshot()

    assert job.handle(events.SpawnSucceeded(1), 50.0) == []
    assert job.facts == before


def test_every_declared_target_belongs_to_an_action_in_the_table():
    assert set(TARGETS) <= set(TABLE.values())


def test_start_spawns_and_verifies_at_the_same_time():
    effects = Job(JOB).handle(StartRequested(), 0.0)

    assert effects == [RecordWanted(True), Spawn(1), SelectCheckpoint(1)]


def test_worker_is_told_to_go_only_once_its_checkpoint_is_proven():
    job = starting()

    effects = job.handle(CheckpointSelected(1, "/ckpt/step-0000000400.a1", 400), 1.0)

    assert effects == [SendGo(1, "/ckpt/step-0000000400.a1")]
    assert job.state is State.STARTING


@pytest.mark.parametrize(
    ("highest_step", "mount", "told"), [(500, "ext4 at /", 500), (None, "ext4 at /", 400), (500, None, None)]
)
def test_the_worker_is_told_of_the_newest_that_was_there_as_its_checkpoint_was_chosen(
    highest_step: int | None, mount: str | None, told: int | None
):
    job = starting()

    (go,) = job.handle(CheckpointSelected(1, "/ckpt/step-0000000400.a1", 400, None, highest_step, mount), 1.0)

    assert isinstance(go, SendGo) and go.highest_step == told


def test_time_waiting_for_gpus_does_not_count_into_startup_timeout():
    job = Job(JOB)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnDelayed(1, 40.0), 0.0)
    assert job.deadline() == 40.0 + 60.0

    job.handle(SpawnSucceeded(1), 35.0)

    assert job.deadline() == 35.0 + 60.0
    job.handle(StepsDone(1, 1), 50.0)
    assert job.facts.startup_s == 15.0


def test_time_waiting_for_gpus_does_not_count_into_a_learned_limit():
    job = Job(replace(JOB, hang_timeout_min=20.0))
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnDelayed(1, 40.0), 0.0)
    assert job.deadline() == 40.0 + 10.0
    job.handle(SpawnSucceeded(1), 35.0)

    assert job.deadline() == 35.0 + 10.0
    job.handle(TrainingRestored(1, 0), 37.0)
    assert job.facts.hang_detector.longest == {"start-up": 2.0}, "nor of what is learned"


@pytest.mark.parametrize(
    ("end", "cause", "state"),
    [
        (SelectionFailed(1, "all are damaged", permanent=True), Cause.SETUP, State.FAILED),
        (SelectionFailed(1, "the disk", permanent=False), Cause.CRASH, State.BACKOFF),
        (StopRequested(), Cause.STOPPED, State.STOPPED),
        (ProgramClosed("shutdown"), Cause.STOPPED, State.STOPPED),
    ],
)
def test_end_of_a_wait_for_gpus_is_its_recorded_reason(end: Event, cause: Cause, state: State):
    job = Job(JOB)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnDelayed(1, 40.0), 0.0)
    job.handle(end, 1.0)

    record, *_ = job.handle(SpawnFailed(1, "ended before it was started", permanent=False), 1.0)

    assert isinstance(record, RecordEnd)
    assert (record.cause, job.state) == (cause, state)
    assert job.facts.reason == getattr(end, "error", None)


def test_a_start_after_a_stop_that_came_while_it_waited_for_its_gpus_costs_no_budget():
    job = Job(JOB)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnDelayed(1, 40.0), 0.0)
    job.handle(StopRequested(), 1.0)
    job.handle(StartRequested(), 1.0)

    effects = job.handle(SpawnFailed(1, "ended before it was started", permanent=False), 1.0)

    assert Spawn(2) in effects and job.facts.failures.by_cause == {}


def test_an_attempt_that_lives_is_heard_whatever_numbers_are_found_on_the_disk_meanwhile():
    job = running()

    job.skip_attempts(17)

    die(job, 20.0)
    assert (job.state, job.facts.attempt) == (State.STARTING, 2)


def test_held_back_job_is_not_launched_after_a_pause_or_stop():
    waits = running()
    die(waits, 20.0)
    die(waits, 21.0)
    assert waits.state is State.BACKOFF
    stops = running()
    stops.handle(StopRequested(), 20.0)
    stops.handle(StartRequested(), 21.0)

    for job in (waits, stops):
        job.hold_back(True)
    waits.expire(100.0)
    die(stops, 22.0, code=WorkerExit.STOPPED)

    for job in (waits, stops):
        assert (job.state, job.facts.wanted) == (State.STOPPED, True)
        job.hold_back(False)
        assert Spawn(job.facts.attempt + 1) in job.handle(StartRequested(), 200.0)


def test_first_step_makes_it_running():
    job = starting()

    job.handle(StepsDone(1, 1), 5.0)

    assert job.state is State.RUNNING


def test_job_that_does_not_train_in_time_writes_its_stacks_and_is_killed_after_stop_timeout():
    job = starting(now=0.0)

    assert job.expire(59.9) == []
    assert job.expire(60.0) == [Abort(1)]
    assert job.deadline() == 70.0
    assert job.expire(70.0) == [Kill(1)]


def test_job_that_dies_after_a_step_is_relaunched_at_once():
    job = running()

    effects = die(job, 11.0)

    assert effects[1:] == [Spawn(2), SelectCheckpoint(2)]
    assert effects[0] == RecordEnd(1, "crash", "terminated by SIGKILL")


def test_job_that_dies_before_a_step_waits_first():
    job = starting()

    die(job, 3.0)

    assert job.state is State.BACKOFF
    assert 3.8 < job.deadline() < 4.2
    assert job.expire(4.2) == [Spawn(2), SelectCheckpoint(2)]


def test_pauses_double_while_no_attempt_makes_a_step():
    job, pauses = starting(), []
    for _ in range(3):
        die(job, 0.0)
        pauses.append(job.deadline())
        job.expire(1000.0)

    assert [round(pause) for pause in pauses] == [1, 2, 4]


def test_budget_is_spent_by_failures_without_a_new_best_checkpoint():
    job = running()
    for attempt in range(1, 4):
        die(job, 20.0)
        job.handle(StepsDone(attempt + 1, 5), 21.0)
    assert job.state is State.RUNNING

    die(job, 30.0)

    assert job.state is State.FAILED
    assert "4 failures (crash) in a row without a new checkpoint" in (job.facts.reason or "")


def test_new_best_checkpoint_refills_the_budget():
    job = running()
    for attempt in range(1, 40):
        job.handle(CheckpointCommitted(attempt, step=attempt * 10), 20.0)
        die(job, 20.0)
        job.handle(StepsDone(attempt + 1, attempt * 10 + 1), 21.0)

    assert job.state is State.RUNNING


def test_a_report_that_a_commit_has_overtaken_takes_no_step_back():
    job = running()
    job.handle(CheckpointCommitted(1, 12), 30.0)

    job.handle(StepsDone(1, 11), 30.1)

    assert job.facts.current.step == 12


def test_committing_an_old_step_again_does_not_refill_the_budget():
    job = running()
    job.handle(CheckpointCommitted(1, step=100), 20.0)
    for attempt in range(1, 5):
        die(job, 20.0)
        job.handle(CheckpointCommitted(attempt + 1, step=100), 21.0)
        job.handle(StepsDone(attempt + 1, 101), 21.0)

    assert job.state is State.FAILED


def test_exit_0_without_having_said_done_is_a_crash():
    job = running()

    effects = die(job, 20.0, code=0)

    assert effects[0] == RecordEnd(1, "crash", "exit status 0, but the worker never reported that training was done")
    assert job.state is State.STARTING


@pytest.mark.parametrize(
    ("hello", "how"), [(False, "exited 0 without using worker"), (True, "exited 0 before it reached worker.Run")]
)
def test_exit_0_of_a_job_that_never_trained_fails_it_at_once(hello: bool, how: str):
    job = starting()
    if hello:
        job.handle(events.WorkerMet(1, reports_restore=True), 0.5)
    job.handle(CheckpointSelected(1, None, None), 0.6)

    effects = die(job, 1.0, code=0)

    assert [effect.cause for effect in effects if isinstance(effect, RecordEnd)] == ["setup"]
    assert job.state is State.FAILED
    assert how in (job.facts.reason or "") and "remove checkpoint_dir" in (job.facts.reason or "")


@pytest.mark.parametrize("said", [events.WorkerMet(1, True), events.FailureReported(1, "ValueError: no")])
def test_a_start_that_takes_too_long_is_tried_again_if_the_worker_has_spoken(said: events.Event):
    job = starting()
    job.handle(CheckpointSelected(1, None, None), 0.5)
    job.handle(said, 1.0)

    job.expire(job.deadline() or 0.0)
    die(job, 700.0, signal=6)

    assert job.state is State.BACKOFF


def test_a_start_that_takes_too_long_without_a_word_ever_is_not_repeated():
    job = starting()
    job.handle(CheckpointSelected(1, None, None), 0.5)

    job.expire(job.deadline() or 0.0)
    die(job, 700.0, signal=6)

    assert job.state is State.FAILED
    assert f"did not use worker within {JOB.startup_timeout:g} s (startup_timeout)" in (job.facts.reason or "")


def test_a_job_that_has_trained_before_is_tried_again_after_a_silent_start():
    job = running()
    job.handle(CheckpointCommitted(1, step=100), 10.0)
    die(job, 20.0)
    job.handle(CheckpointSelected(2, None, None), 20.5)

    job.expire(job.deadline() or 0.0)
    die(job, 700.0, signal=6)

    assert job.state is State.BACKOFF


def test_an_end_without_a_word_before_training_says_where_to_look():
    job = starting()

    effects = die(job, 1.0, code=2)

    text = "exit status 2; it exited before it reached worker.Run; see its stderr"
    assert effects[0] == RecordEnd(1, "crash", text)
    assert job.facts.reason == text


def test_the_last_line_of_stderr_is_quoted_with_the_exit():
    job = starting()

    job.handle(WorkerExited(1, code=1, error_line="ModuleNotFoundError: No module named 'x'"), 1.0)

    text = "exit status 1: ModuleNotFoundError: No module named 'x'; it exited before it reached worker.Run"
    assert job.facts.reason == text


def test_done_and_exit_0_is_success_and_not_wanted_after_a_reboot():
    job = running()
    job.handle(DoneReported(1), 20.0)

    effects = die(job, 21.0, code=0)

    assert effects == [RecordEnd(1, "done", "done"), RecordWanted(False)]
    assert job.state is State.SUCCEEDED


def test_done_then_killed_is_not_success():
    job = running()
    job.handle(DoneReported(1), 20.0)

    die(job, 21.0, signal=9)

    assert job.state is State.STARTING


def test_stop_flushes_then_leaves_the_worker_time_to_go_by_itself():
    job = running(now=10.0)

    effects = job.handle(StopRequested(), 20.0)

    assert effects == [RecordWanted(False), RequestFlush(1, 1, "stop", Then.STOP, 20)]
    job.handle(CheckpointCommitted(1, 50, flushes=(1,)), 22.0)
    assert job.state is State.FLUSHING
    assert job.deadline() == 32.0
    die(job, 22.5, code=WorkerExit.STOPPED)
    assert job.state is State.STOPPED


def test_stop_of_a_worker_that_does_not_flush_ends_in_sigterm_then_sigkill():
    job = running()
    job.handle(StopRequested(), 20.0)

    assert job.expire(40.0) == [Terminate(1)]
    assert job.expire(50.0) == [Kill(1)]
    assert job.expire(60.0) == [Kill(1)]
    assert job.state is State.KILLING


def test_worker_that_leaves_without_the_checkpoint_it_was_asked_for_is_booked_so():
    job = running()
    job.handle(StopRequested(), 20.0)
    job.handle(FailureReported(1, "told to stop, but the disk is full"), 21.0)

    effects = die(job, 21.0, code=WorkerExit.SAVE_FAILED)

    assert isinstance(effects[0], RecordEnd)
    assert "without a checkpoint: told to stop, but the disk is full (exit status 74 (save failed))" in effects[0].text
    assert job.state is State.STOPPED
    assert "the disk is full" in (job.facts.reason or "")


def test_commit_for_another_request_does_not_answer_the_stop():
    job = running()
    job.handle(StopRequested(), 20.0)

    job.handle(CheckpointCommitted(1, 50, flushes=()), 22.0)

    assert job.deadline() == 40.0


def test_flush_on_request_lets_training_go_on():
    job = running()

    effects = job.handle(FlushRequested("operator"), 20.0)

    assert effects == [RequestFlush(1, 1, "operator", Then.GO_ON, 20)]
    job.handle(CheckpointCommitted(1, 50, flushes=(1,)), 21.0)
    assert job.state is State.RUNNING


@pytest.mark.parametrize("answer", [CheckpointSaveFailed(1, "disk full", (1,)), None])
def test_flush_that_fails_or_takes_too_long_does_not_stop_training(answer: CheckpointSaveFailed | None):
    job = running()
    job.handle(FlushRequested("operator"), 20.0)

    effects = job.handle(answer, 21.0) if answer else job.expire(40.0)

    assert effects == ([] if answer is None else [LookAtStorage(1)])
    assert job.state is State.RUNNING


def test_stop_during_a_flush_on_request_asks_the_worker_to_stop_too():
    job = running()
    job.handle(FlushRequested("operator"), 20.0)

    effects = job.handle(StopRequested(), 21.0)

    assert effects == [RecordWanted(False), RequestFlush(1, 2, "stop", Then.STOP, 20)]


def test_daemon_shutdown_flushes_but_forgets_nothing():
    job = running()

    effects = job.handle(ProgramClosed("shutdown"), 20.0)

    assert effects == [RequestFlush(1, 1, "shutdown", Then.STOP, 20)]
    die(job, 21.0, code=WorkerExit.STOPPED)
    assert job.state is State.STOPPED
    assert job.facts.wanted


def test_nothing_is_started_once_the_daemon_is_leaving():
    job = running()
    job.handle(ProgramClosed("shutdown"), 20.0)
    die(job, 21.0)

    assert job.handle(StartRequested(), 22.0) == []
    assert job.state is State.STOPPED


def test_hurrying_takes_the_next_harder_way():
    job = running()
    job.handle(ProgramClosed("shutdown"), 20.0)

    assert job.handle(ShutdownHurried(), 21.0) == [Terminate(1)]
    assert job.handle(ShutdownHurried(), 22.0) == [Kill(1)]


def test_hurry_before_it_is_told_to_stop_leaves_the_flush_that_goes_on_to_the_stop_that_follows():
    job = running()
    job.handle(FlushRequested("operator"), 20.0)

    assert job.handle(ShutdownHurried(), 21.0) == []

    (asked,) = job.handle(ProgramClosed("shutdown"), 21.0)
    assert isinstance(asked, RequestFlush) and asked.then is Then.STOP
    assert job.handle(ShutdownHurried(), 22.0) == [Terminate(1)]
    assert die(job, 23.0, code=WorkerExit.STOPPED)[0].cause is Cause.STOPPED


def test_start_while_stopping_starts_again_when_it_is_gone():
    job = running()
    job.handle(StopRequested(), 20.0)

    assert job.handle(StartRequested(), 21.0) == [RecordWanted(True)]
    assert die(job, 22.0, code=WorkerExit.STOPPED)[1:] == [Spawn(2), SelectCheckpoint(2)]


def test_start_of_what_stops_as_it_hung_begins_anew_with_all_budgets():
    job = running(Policy(name="x", is_job=True, hang_timeout=30, startretries=1))
    job.expire(40.0)
    assert die(job, 41.0, signal=6)[1:] == [Spawn(2), SelectCheckpoint(2)]
    job.handle(StepsDone(2, 2), 50.0)
    assert job.expire(80.0) == [Abort(2)]  # once more and it is given up

    assert job.handle(StartRequested(), 81.0) == []

    assert die(job, 82.0, signal=6)[1:] == [Spawn(3), SelectCheckpoint(3)]
    assert job.facts.failures.by_cause == {}


@pytest.mark.parametrize("stops", [True, False])
def test_start_of_what_flushes_begins_anew_only_where_it_stops(stops: bool):
    job = running(Policy(name="x", is_job=True, autorestart=AutoRestart.NEVER))
    job.handle(RestartRequired(1, Cause.UNHEALTHY, "status 1") if stops else FlushRequested("operator"), 20.0)
    assert job.state is State.FLUSHING

    job.handle(StartRequested(), 21.0)

    die(job, 22.0, signal=9)
    assert job.state is (State.STARTING if stops else State.EXITED)


def test_stop_after_a_start_of_what_stops_leaves_it_stopped_and_a_new_daemon_starts_nothing_anew():
    stopped, goes_on = (running(Policy(name="x", is_job=True, hang_timeout=30, startretries=0)) for _ in range(2))
    for job in (stopped, goes_on):
        assert job.expire(40.0) == [Abort(1)]

    stopped.handle(StartRequested(), 41.0)
    assert stopped.handle(StopRequested(), 42.0) == [RecordWanted(False)]
    goes_on.handle(StartRequested(resumes=True), 41.0)

    assert [die(job, 43.0, signal=6)[1:] for job in (stopped, goes_on)] == [[], []]
    assert (stopped.state, goes_on.state) == (State.STOPPED, State.FAILED)


def test_silence_is_a_hang_only_where_a_limit_is_set():
    assert running().deadline() is None

    job = running(Policy(name="x", is_job=True, hang_timeout=30), now=10.0)
    assert job.deadline() == 40.0
    job.handle(StepsDone(1, 2), 35.0)
    assert job.expire(40.0) == []
    assert job.expire(65.0) == [Abort(1)]
    effects = die(job, 66.0, signal=6)
    assert effects[0] == RecordEnd(1, "hang", "no step for 30 s (hang_timeout) after step 2")


def test_commit_counts_as_life_because_a_save_takes_its_time():
    job = running(Policy(name="x", is_job=True, hang_timeout=30), now=10.0)

    job.handle(CheckpointCommitted(1, 5), 35.0)

    assert job.deadline() == 65.0


def test_flush_on_request_does_not_hide_a_hang():
    job = running(Policy(name="x", is_job=True, hang_timeout=30, flush_timeout=20), now=10.0)
    job.handle(FlushRequested("operator"), 30.0)

    assert job.expire(50.0) == []
    assert job.expire(50.0) == [Abort(1)]


def test_commit_that_comes_after_the_flush_deadline_still_counts():
    job = running()
    job.handle(StopRequested(), 20.0)
    job.expire(40.0)
    job.handle(CheckpointCommitted(1, 50, flushes=(1,)), 41.0)

    effects = die(job, 41.5, signal=15)

    assert isinstance(effects[0], RecordEnd)
    assert "without a checkpoint" not in effects[0].text


def test_fresh_start_below_an_old_best_step_still_refills_the_budget():
    job = running()
    job.handle(CheckpointCommitted(1, step=1000), 20.0)
    job.handle(StopRequested(), 21.0)
    die(job, 22.0, code=WorkerExit.STOPPED)
    job.handle(StartRequested(), 30.0)
    for attempt in range(2, 12):
        job.handle(StepsDone(attempt, attempt), 40.0)
        job.handle(CheckpointCommitted(attempt, step=attempt), 40.0)
        die(job, 41.0)

    assert job.state is State.STARTING


def test_plain_program_that_ends_at_once_is_not_started_in_a_hot_loop():
    job = Job(Policy(name="x", is_job=False, startsecs=0, autorestart=AutoRestart.ALWAYS))
    job.handle(StartRequested(), 10.0)
    job.handle(SpawnSucceeded(1), 10.0)

    die(job, 10.1, code=0)

    assert job.state is State.BACKOFF
    assert job.deadline() == 11.0


def test_no_whole_checkpoint_fails_the_job_and_never_begins_at_zero():
    job = starting()

    effects = job.handle(SelectionFailed(1, "none is whole", permanent=True), 1.0)

    assert effects == [Kill(1)]
    die(job, 1.1)
    assert job.state is State.FAILED
    assert job.facts.reason == "none is whole"


def test_no_whole_checkpoint_found_out_after_the_worker_died_fails_the_job_too():
    job = starting()
    die(job, 1.0)

    job.handle(SelectionFailed(1, "none is whole", permanent=True), 1.5)

    assert job.state is State.FAILED


@pytest.mark.parametrize("code", [WorkerExit.CHECKPOINT_UNFIT, WorkerExit.DIRECTORY_UNUSABLE, WorkerExit.BAD_LAUNCH])
def test_exit_codes_that_a_retry_cannot_cure_fail_at_once(code: WorkerExit):
    job = starting()
    job.handle(FailureReported(1, "no module named trian"), 1.0)

    die(job, 1.0, code=code)

    assert job.state is State.FAILED
    assert "no module named trian" in (job.facts.reason or "")


def test_error_in_a_new_script_is_not_retried():
    job = starting()
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(FailureReported(1, "NameError: x"), 1.0)

    die(job, 1.0, code=1)

    assert job.state is State.FAILED
    assert job.facts.reason == "failed before its first step: NameError: x (exit status 1)"


@pytest.mark.parametrize(
    "error",
    [
        "tensorflow.python.framework.errors_impl.UnknownError: Could not start gRPC server",
        "worker 1 of 2 failed: OSError: [Errno 98] Address already in use",
        "torch.distributed.DistNetworkError: ... (errno: 98 - Address already in use). EADDRINUSE",
    ],
)
def test_a_new_script_is_started_again_if_another_program_has_taken_its_port(error: str):
    job = starting()
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(FailureReported(1, error), 1.0)

    die(job, 1.0, code=1)

    assert job.state is State.BACKOFF
    assert job.facts.failures.by_cause == {}


def lose_a_port(job: Job) -> None:
    attempt = job.facts.attempt
    job.handle(CheckpointSelected(attempt, None, None), 1.0)
    job.handle(FailureReported(attempt, "UnknownError: Could not start gRPC server"), 1.0)
    die(job, 1.0, code=1)


def test_port_that_is_taken_again_and_again_is_a_failure_as_any_other():
    job = starting()
    for _ in range(PORTS_FORGIVEN):
        lose_a_port(job)
        assert (job.state, job.facts.failures.by_cause) == (State.BACKOFF, {})
        job.expire(1000.0)
        assert job.state is State.STARTING
    lose_a_port(job)

    assert job.facts.failures.by_cause == {Cause.CRASH: 1}


def test_port_that_is_lost_once_training_has_begun_is_a_failure():
    job = starting()
    job.handle(CheckpointSelected(1, None, None), 1.0)
    job.handle(StepsDone(1, 5), 1.0)
    job.handle(FailureReported(1, "OSError: [Errno 98] Address already in use"), 1.0)

    die(job, 1.0, code=1)

    assert job.facts.failures.by_cause == {Cause.CRASH: 1}


def test_error_before_the_first_step_is_retried_where_there_is_a_checkpoint_to_lose():
    job = starting()
    job.handle(CheckpointSelected(1, "/c/step-0000000100.a1", 100), 1.0)
    job.handle(FailureReported(1, "OSError: /data is not mounted"), 1.0)

    die(job, 1.0, code=1)

    assert job.state is State.BACKOFF


def fails_before_its_first_step(job: Job, now: float, error: str) -> None:
    attempt = job.facts.attempt
    job.handle(CheckpointSelected(attempt, "/c/step-0000000100.a1", 100), now)
    job.handle(FailureReported(attempt, error), now)
    die(job, now, code=1)


def test_mistake_in_the_script_is_not_retried_for_long_where_there_is_a_checkpoint():
    job = starting()
    for now in (100.0, 200.0):
        fails_before_its_first_step(job, now, "NameError: name 'lr' is not defined")
        assert job.state is State.BACKOFF
        job.expire(now + 50.0)

    fails_before_its_first_step(job, 300.0, "NameError: name 'lr' is not defined")

    assert job.state is State.FAILED
    expected = "failed before its first step, 3 times in a row: NameError: name 'lr' is not defined (exit status 1)"
    assert job.facts.reason == expected
    assert job.facts.suspects.deaths == (), "no checkpoint is to blame"


def test_error_of_the_surroundings_has_the_whole_budget():
    job = starting()
    for now in (100.0, 200.0, 300.0):
        fails_before_its_first_step(job, now, "OSError: /data is not mounted")
        assert job.state is State.BACKOFF
        job.expire(now + 50.0)


def test_completion_is_recalled_and_a_start_trains_again():
    job = Job(JOB)
    job.recall_completion()
    assert job.state is State.SUCCEEDED

    job.handle(StartRequested(), 1.0)

    assert job.state is State.STARTING


def test_words_of_a_former_attempt_are_dropped():
    job = running()
    die(job, 20.0)

    assert job.handle(DoneReported(1), 20.1) == []
    assert job.handle(WorkerExited(1, code=0), 20.1) == []
    assert job.state is State.STARTING
    assert not job.facts.current.done_reported


def test_spawn_that_can_never_work_fails_and_one_that_may_is_retried():
    job = Job(JOB)
    job.handle(StartRequested(), 0.0)
    job.handle(SpawnFailed(1, "no such file", permanent=True), 0.0)
    assert job.state is State.FAILED

    job.handle(StartRequested(), 1.0)
    job.handle(SpawnFailed(2, "out of memory", permanent=False), 1.0)
    assert job.state is State.BACKOFF


def test_a_plain_program_that_the_kernel_killed_for_memory_says_so():
    job = running(PLAIN)

    effects = job.handle(WorkerExited(1, signal=9, oom="its cgroup /a counts one more kill"), 50.0)

    assert RecordEnd(
        1,
        Cause.EXITED,
        "terminated by SIGKILL, sent by the kernel because memory ran out (its cgroup /a counts one more kill)",
    ) in list(effects)


def test_plain_program_runs_after_startsecs_and_is_stopped_by_its_signal():
    job = running(PLAIN)

    assert job.handle(StopRequested(), 20.0) == [RecordWanted(False), Terminate(1)]


def test_plain_program_that_exits_before_startsecs_backs_off_whatever_its_code():
    job = starting(PLAIN)

    die(job, 0.5, code=0)

    assert job.state is State.BACKOFF


def test_plain_program_that_outlived_startsecs_has_run_though_nobody_looked_before_its_exit():
    job = starting(PLAIN)

    die(job, 1.5, code=0)

    assert job.state is State.SUCCEEDED


@pytest.mark.parametrize(
    ("autorestart", "code", "after"),
    [
        (AutoRestart.UNEXPECTED, 0, State.SUCCEEDED),
        (AutoRestart.UNEXPECTED, 3, State.STARTING),
        (AutoRestart.ALWAYS, 0, State.STARTING),
        (AutoRestart.NEVER, 0, State.SUCCEEDED),
        (AutoRestart.NEVER, 3, State.EXITED),
    ],
)
def test_autorestart_decides_what_follows_an_exit_of_a_plain_program(autorestart: AutoRestart, code: int, after: State):
    job = running(Policy(name="web", is_job=False, autorestart=autorestart))

    die(job, 20.0, code=code)

    assert job.state is after


def test_plain_program_that_never_stays_up_fails_after_startretries():
    job = starting(PLAIN)
    for _ in range(3):
        die(job, 0.0, code=1)
        assert job.state is State.BACKOFF
        job.expire(1000.0)

    die(job, 0.0, code=1)

    assert job.state is State.FAILED


@pytest.mark.parametrize("state", ["starting", "running"])
def test_job_that_another_host_took_over_is_killed_and_given_up(state: str):
    job = running(Policy(name="x", is_job=True)) if state == "running" else starting(Policy(name="x", is_job=True))

    effects = job.handle(events.RunTakenOver("gpu-2 has taken this run over"), 20.0)
    job.handle(WorkerExited(1, signal=9), 20.5)

    assert effects == [Kill(1)]
    assert (job.state, job.facts.reason) == (State.FAILED, "gpu-2 has taken this run over")


def test_attempt_whose_checkpoint_is_outdated_begins_again_at_once_and_that_counts_as_no_failure():
    job = running(Policy(name="x", is_job=True, startretries=0))

    effects = job.handle(events.CheckpointOutdated("another host has uploaded step 900"), 20.0)
    job.handle(WorkerExited(1, signal=9), 20.5)

    assert effects == [Kill(1)]
    assert (job.state, job.facts.attempt) == (State.STARTING, 2)


def test_next_attempt_is_numbered_after_those_of_another_host():
    job = starting(Policy(name="x", is_job=True))

    job.handle(SelectionFailed(1, "another host has used 7", permanent=False, attempts_used=7), 20.0)
    job.handle(WorkerExited(1, signal=9), 20.5)
    job.expire(job.deadline() or 0.0)

    assert job.facts.attempt == 8
