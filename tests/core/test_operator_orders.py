"""Random histories of one job whose operator chooses where it begins: each choice is carried out once, and not before.

It holds until an attempt that was launched for it has begun, the operator stops the job or chooses otherwise; a stop
withdraws it only until checkpoints are set aside for it. An attempt that was launched before does not carry it out,
whatever it says or however it ends, and no other daemon forgets it.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisor.core.job import Job
from supervisor.core.program import events
from supervisor.core.program.effects import Effect, SelectCheckpoint, Spawn
from supervisor.core.program.facts import ALIVE, Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Then
from tests.fuzzing import cases

POLICY = Policy("j", is_job=True, checkpoint_dir="/data", startretries=1000)
FROM_SCRATCH, STEP = 0, 5
EXITS = (0, 1, 80, WorkerExit.STOPPED, WorkerExit.DIVERGED)


class Orders(RuleBasedStateMachine):
    """`chosen`: the step that the operator chose and that has not been carried out; `launched_for_it`: the first
    attempt that was launched since. `set_aside`: the step for which checkpoints were set aside, until one has begun.
    `withdrawn`: what the last stop has withdrawn, and the first attempt that was launched for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.chosen: int | None = None
        self.launched_for_it: int | None = None
        self.set_aside: int | None = None
        self.withdrawn: tuple[int | None, int | None] = None, None
        self.job = Job(POLICY)
        self.post(events.StartRequested())

    def post(self, event: events.Event) -> None:
        self.carry_out(self.job.handle(event, self.now))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Spawn) and self.chosen is not None and self.launched_for_it is None:
                self.launched_for_it = effect.attempt
            elif isinstance(effect, SelectCheckpoint):
                assert effect.begin_at == self.chosen

    @property
    def attempt(self) -> int:
        return self.job.facts.attempt

    @property
    def is_alive(self) -> bool:
        return self.job.state in ALIVE

    @property
    def trains(self) -> bool:
        return self.is_alive and self.job.facts.current.start_step is not None

    @property
    def takes_orders(self) -> bool:
        """As the command `start` does, which refuses to give a worker that trains another past."""
        flush = self.job.facts.current.flush
        is_stopping = flush is not None and flush.then is Then.STOP
        return not self.is_alive or self.job.state in (State.STOPPING, State.KILLING) or is_stopping

    def has_begun(self) -> None:
        """The present attempt has."""
        if self.launched_for_it is not None and self.launched_for_it <= self.attempt:
            self.chosen = self.launched_for_it = self.set_aside = None

    # --- the operator ------------------------------------------------------------------------------------------------

    @rule()
    def operator_starts(self) -> None:
        self.post(events.StartRequested())

    @rule()
    def operator_stops(self) -> None:
        self.withdrawn = self.chosen, self.launched_for_it
        self.chosen = self.set_aside
        if self.chosen is None:
            self.launched_for_it = None
        self.post(events.StopRequested())

    @precondition(lambda self: self.trains)
    @rule(step=st.sampled_from([FROM_SCRATCH, STEP]))
    def operator_stops_and_chooses(self, step: int) -> None:
        self.operator_stops()
        self.operator_chooses(step)

    @precondition(lambda self: self.takes_orders)
    @rule(step=st.sampled_from([FROM_SCRATCH, STEP]))
    def operator_chooses(self, step: int) -> None:
        self.chosen, self.launched_for_it = step, None
        self.post(events.BeginAtRequested(step))
        self.post(events.StartRequested())

    # --- time, the host, the worker ----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 50.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.job.deadline() is not None)
    @rule()
    def deadline_passes(self) -> None:
        self.now = max(self.now, self.job.deadline() or 0.0)
        self.carry_out(self.job.expire(self.now))

    @precondition(lambda self: self.job.state is State.STARTING)
    @rule()
    def process_begins(self) -> None:
        self.post(events.SpawnSucceeded(self.attempt))

    @precondition(lambda self: self.job.state is State.STARTING)
    @rule()
    def checkpoint_is_selected(self) -> None:
        path = "/data/step-0000000005.a1" if self.chosen == STEP else None
        self.post(events.CheckpointSelected(self.attempt, path, None if path is None else STEP))

    @precondition(lambda self: self.job.state is State.STARTING and self.launched_for_it == self.attempt)
    @rule()
    def checkpoints_are_set_aside(self) -> None:
        assert self.chosen is not None
        self.set_aside = self.chosen
        self.post(events.CheckpointsSetAside(self.attempt, self.chosen))

    @precondition(lambda self: self.chosen is None and self.withdrawn[1] == self.attempt and not self.trains)
    @rule()
    def checkpoints_were_set_aside_as_the_stop_came(self) -> None:
        step, launched = self.withdrawn
        self.withdrawn = None, None
        if step is None or self.job.state not in (State.STOPPING, State.KILLING, State.STOPPED):
            return
        self.chosen, self.set_aside, self.launched_for_it = step, step, launched
        self.post(events.CheckpointsSetAside(self.attempt, step))

    @precondition(lambda self: self.is_alive)
    @rule()
    def worker_restores(self) -> None:
        self.has_begun()
        self.post(events.TrainingRestored(self.attempt, 0))

    @precondition(lambda self: self.trains)
    @rule(commits=st.booleans())
    def worker_trains(self, commits: bool) -> None:
        step = (self.job.facts.current.step or 0) + 1
        self.post(events.StepsDone(self.attempt, step))
        if commits:
            self.post(events.CheckpointCommitted(self.attempt, step))

    @precondition(lambda self: self.job.state is State.STARTING)
    @rule()
    def worker_comes_to_train(self) -> None:
        self.process_begins()
        self.checkpoint_is_selected()
        self.worker_restores()
        self.worker_trains(commits=True)

    @precondition(lambda self: self.trains)
    @rule(exits=st.booleans())
    def worker_is_done(self, exits: bool) -> None:
        self.post(events.DoneReported(self.attempt))
        if exits:
            self.post(events.WorkerExited(self.attempt, 0))

    @precondition(lambda self: self.trains)
    @rule(diverges=st.booleans())
    def worker_fails(self, diverges: bool) -> None:
        self.post(events.FailureReported(self.attempt, "words", self.job.facts.current.step, go_back=diverges))

    @precondition(lambda self: self.is_alive)
    @rule(code=st.sampled_from(EXITS))
    def worker_exits(self, code: int) -> None:
        self.post(events.WorkerExited(self.attempt, code))

    @precondition(lambda self: self.is_alive)
    @rule()
    def worker_is_killed(self) -> None:
        self.post(events.WorkerExited(self.attempt, signal=9))

    # --- another daemon ----------------------------------------------------------------------------------------------

    def replace_daemon(self) -> None:
        before = self.job.facts
        self.job = Job(POLICY)
        self.job.skip_attempts(before.attempt)
        self.job.facts.account, self.job.facts.wanted = before.account, before.wanted
        self.job.recall_persisted(facts_to_persist(before, self.now), self.now, 0.0)

    @precondition(lambda self: not self.is_alive)
    @rule()
    def another_daemon_comes(self) -> None:
        self.replace_daemon()
        if self.job.facts.wanted:
            self.post(events.StartRequested(resumes=True))

    @precondition(lambda self: self.is_alive)
    @rule(words=st.sampled_from([{}, {"done": True}, {"error": "words", "code": 1}]))
    def another_daemon_comes_after_the_worker_has_gone(self, words: dict[str, Any]) -> None:
        self.replace_daemon()
        if "done" in words:
            self.has_begun()
        self.post(events.AttemptLost(self.attempt, **words))

    @invariant()
    def what_was_chosen_is_known_until_it_is_carried_out(self) -> None:
        assert self.job.facts.begin_at == self.chosen


Orders.TestCase.settings = cases(120, stateful_step_count=40, deadline=None)


@pytest.mark.fuzz
class TestEachChoiceIsCarriedOutOnce(Orders.TestCase):
    """Run as hypothesis runs a state machine."""


def test_worker_that_was_done_unseen_has_carried_out_its_order_also_if_it_saved_nothing():
    history = Orders()
    history.worker_is_killed()
    history.operator_chooses(FROM_SCRATCH)
    history.checkpoints_are_set_aside()
    history.another_daemon_comes_after_the_worker_has_gone({"done": True})

    history.what_was_chosen_is_known_until_it_is_carried_out()
    assert history.job.state is State.SUCCEEDED
