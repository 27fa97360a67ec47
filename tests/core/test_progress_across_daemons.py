"""The random histories of `test_progress_histories`, with what ends attempts and daemons in an orderly way, or half.

A daemon dies while its worker trains on, and the next one adopts it, perhaps with another `checkpoint_dir`, or with a
ledger that is behind; the host is rebooted; a notice comes, holds and ends; stops and shutdowns save first, and orders
come meanwhile; limits are exceeded; training is complete; a script has another run; another host trains in the
directory; and a mirror tells late of what it has.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from supervisor.core.failures.restart import Cause
from supervisor.core.failures.storage import UNREADABLE_WAIT_S
from supervisor.core.job import Job
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import events
from supervisor.core.program.effects import SendGo
from supervisor.core.program.facts import ALIVE, State
from supervisor.core.program.persisted_facts import PersistedFacts, facts_to_persist
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Phase, Then
from tests.core.test_progress_histories import HOMES, Histories
from tests.fuzzing import cases

MOVES = 5
LEAVING = (State.FLUSHING, State.STOPPING)


class AcrossDaemons(Histories):
    """`worker_home`: where the worker saves; `stored`: what the ledger had when the worker was told to go; `is_done`:
    whether the worker has said that training is complete, and no other run of its script has begun; `told_in`: the
    directory in which each checkpoint was told of last."""

    def __init__(self) -> None:
        self.worker_home = HOMES[0]
        self.stored: PersistedFacts | None = None
        self.is_done = False
        self.told_in: dict[CheckpointName, str] = {}
        super().__init__()

    def on_go(self, go: SendGo) -> None:
        older = self.job.facts.current.older
        if older is not None and older.because is OlderBecause.DELETED and self.reported is not None:
            assert self.told_in.get(self.reported, self.home) == self.home, "it is in another directory"
        super().on_go(go)
        self.worker_home, self.is_done = self.home, False
        self.stored = facts_to_persist(self.job.facts, self.now)

    def post(self, event: events.Event) -> None:
        if isinstance(event, events.TrainingRestored) and self.restored is not None:
            self.told_in[self.restored] = self.worker_home
        super().post(event)

    def commit(self, step: int, flushes: tuple[int, ...] = ()) -> None:
        name = CheckpointName(step, self.job.facts.attempt)
        if self.write(name):
            self.post(events.CheckpointCommitted(name.attempt, step, flushes))
            self.reported, self.told_in[name] = name, self.worker_home
        else:
            self.post(events.CheckpointSaveFailed(name.attempt, "the directory is on another file system", flushes))

    def write(self, name: CheckpointName) -> bool:
        """As the worker does, which looks at the file system before."""
        if self.machine.mount != self.job.facts.mount:
            return False
        if self.leaves_copies:
            self.folder_is_copied_below_the_mount_point(self.worker_home)
        self.machine.at(self.worker_home).committed.add(name)
        return True

    @property
    def trains(self) -> bool:
        return self.job.state is State.RUNNING and self.job.facts.current.start_step is not None

    @property
    def next_step(self) -> int:
        facts = self.job.facts.current
        return max(facts.step or 0, facts.saved_step or 0) + 1

    # --- what makes the job train ------------------------------------------------------------------------------------

    def job_comes_to_train(self) -> None:
        """Whatever is in its way goes, as at random little would ever be trained."""
        self.machine.is_mounted = True
        if self.hangs:
            self.disk_answers()
        self.post(events.NoticeEnded())
        for _ in range(MOVES):
            if self.trains:
                return
            if self.waits_for_go:
                self.train(5, commits=True)
            elif self.job.state in LEAVING:
                self.worker_saves_and_leaves(saves=True, code=WorkerExit.STOPPED)
            elif self.job.state is State.BACKOFF:
                self.time_passes(UNREADABLE_WAIT_S)
            elif self.job.state not in ALIVE:
                self.operator_starts()
        if not self.trains:
            self.operator_chooses_a_step(0)

    is_often = precondition(lambda self: not self.trains)
    job_comes_to_train_1 = is_often(rule()(job_comes_to_train))
    job_comes_to_train_2 = is_often(rule()(job_comes_to_train))
    job_comes_to_train_3 = is_often(rule()(job_comes_to_train))
    job_comes_to_train_4 = is_often(rule()(job_comes_to_train))
    job_comes_to_train_5 = is_often(rule()(job_comes_to_train))

    # --- what ends in good order -------------------------------------------------------------------------------------

    @precondition(lambda self: self.job.state in LEAVING)
    @rule(saves=st.booleans(), code=st.sampled_from([WorkerExit.STOPPED, WorkerExit.SAVE_FAILED, 1]))
    def worker_saves_and_leaves(self, saves: bool, code: int) -> None:
        flush = self.job.facts.current.flush
        if saves and flush is not None and not flush.committed:
            self.commit(self.next_step, (flush.id,))
        if self.job.state in LEAVING and (flush is None or flush.then is Then.STOP):
            if code != WorkerExit.STOPPED:
                self.note_death()
            self.post(events.WorkerExited(self.job.facts.attempt, code))

    def note_death(self) -> None:
        """Attempts may come to be said to keep dying from where this one began, or from its own newest."""
        self.note(self.restored, OlderBecause.SUSPECT)
        self.note(self.reported, OlderBecause.SUSPECT)

    @precondition(lambda self: self.job.state in (State.RUNNING, *LEAVING) and self.job.deadline() is not None)
    @rule()
    def deadline_passes(self) -> None:
        self.now = max(self.now, self.job.deadline() or 0.0)
        self.note_death()
        self.carry_out(self.job.expire(self.now))

    @precondition(lambda self: self.job.state is State.STOPPING or self.job.facts.current.flush is not None)
    @rule(step=st.integers(0, 60))
    def operator_chooses_a_step_while_it_stops(self, step: int) -> None:
        """As the command allows it: the worker leaves after its save."""
        flush = self.job.facts.current.flush
        if self.job.state is State.STOPPING or (flush is not None and flush.then is Then.STOP):
            self.post(events.BeginAtRequested(step))
            self.asked = step
            self.post(events.StartRequested())
            self.stored = facts_to_persist(self.job.facts, self.now)  # which the answer waits for

    @precondition(lambda self: self.trains)
    @rule(can_save=st.booleans(), cause=st.sampled_from([Cause.MEMORY_LIMIT, Cause.UNHEALTHY]))
    def limit_is_exceeded(self, can_save: bool, cause: Cause) -> None:
        self.note_death()
        self.post(events.RestartRequired(self.job.facts.attempt, cause, "words", can_save))

    @precondition(lambda self: self.trains)
    @rule()
    def checkpoint_is_asked_for(self) -> None:
        self.post(events.FlushRequested("checkpoint"))
        flush = self.job.facts.current.flush
        assert flush is not None
        self.commit(self.next_step, (flush.id,))

    @precondition(lambda self: self.trains)
    @rule()
    def training_is_complete(self) -> None:
        self.commit(self.next_step)
        if self.trains:
            self.is_done = True
            self.post(events.DoneReported(self.job.facts.attempt))
            self.post(events.WorkerExited(self.job.facts.attempt, 0))

    @precondition(lambda self: self.trains)
    @rule(fails=st.booleans(), go_back=st.booleans())
    def another_run_of_the_script_begins(self, fails: bool, go_back: bool) -> None:
        """Where the one before it has ended, or failed, which the script has caught."""
        number, step = self.job.facts.attempt, self.next_step
        self.commit(step)
        if not self.trains or self.reported != CheckpointName(step, number):
            return
        if fails:
            self.post(events.FailureReported(number, "nan", max(1, step - 40), go_back=go_back))
        else:
            self.post(events.DoneReported(number))
        self.post(events.RestoreBegun(number))
        self.post(events.TrainingRestored(number, step))
        self.post(events.StepsDone(number, step + 1))

    # --- the host ----------------------------------------------------------------------------------------------------

    @rule(left_s=st.sampled_from([None, 5.0, 200.0]))
    def notice_comes(self, left_s: float | None) -> None:
        at = None if left_s is None else self.now + left_s
        self.post(events.NoticeReceived(Notice("source", "id", NoticeKind.SHUTDOWN, Certainty.CERTAIN, at, True, "")))

    @rule()
    def notice_ends(self) -> None:
        self.post(events.NoticeEnded())

    @precondition(lambda self: self.job.state in ALIVE)
    @rule(commits=st.booleans(), is_late=st.booleans())
    def host_is_rebooted(self, commits: bool, is_late: bool) -> None:
        """Amid whatever the job did; `commits`: the worker has saved, and no daemon has heard of it."""
        number, wanted = self.job.facts.attempt, self.job.facts.wanted
        if commits and self.trains:
            self.write(CheckpointName(self.next_step, number))
        self.replace_daemon(is_late, changes_directory=False)
        self.in_memory = None
        self.note_death()
        here = self.machine.at(self.worker_home).committed
        saved = max((name.step for name in here if name.attempt == number), default=None)
        if saved is not None and (self.reported is None or saved >= self.reported.step):
            self.reported = CheckpointName(saved, number)
            self.told_in[self.reported] = self.worker_home
        self.job.facts.wanted = wanted
        self.post(events.AttemptLost(number, committed_step=saved, host_rebooted=True))

    @precondition(lambda self: self.job.state not in ALIVE and not self.hangs)
    @rule(steps=st.integers(1, 30))
    def another_host_trains_in_the_directory(self, steps: int) -> None:
        """From the newest that is there; this one has not heard of it."""
        here = self.machine.at(self.home)
        whole = here.committed - here.damaged
        if not whole or here.committed & here.damaged:
            return
        attempt = 1 + max(name.attempt for name in (*here.committed, *here.quarantine))
        here.committed.add(CheckpointName(max(whole).step + steps, max(attempt, self.job.facts.attempt + 1)))

    @precondition(lambda self: self.reported is not None)
    @rule(is_newest=st.booleans())
    def mirror_tells_what_it_has(self, is_newest: bool) -> None:
        older = [name for name in self.machine.at(self.home).committed if name.step < (self.reported or name).step]
        name = self.reported if is_newest or not older else max(older)
        self.post(events.CheckpointMirrored(str(name), "s3://bucket/j", 1))

    # --- daemons -----------------------------------------------------------------------------------------------------

    def replace_daemon(self, is_late: bool, changes_directory: bool) -> None:
        """By one that has all of the ledger, or (`is_late`) what that had when the worker was told to go."""
        before, stored = self.job.facts, facts_to_persist(self.job.facts, self.now)
        if is_late and self.stored is not None and self.stored.attempt == before.attempt:
            stored = self.stored
        if changes_directory:
            self.home = next(home for home in HOMES if home != self.home)
        self.waiting, self.withdrawn, self.goes = [], set(), []
        self.salvaged = self.being_written = self.left = None
        self.job = Job(self.policy())
        self.job.skip_attempts(before.attempt)
        self.job.facts.account, self.job.facts.wanted = before.account, before.wanted
        self.job.recall_persisted(stored, self.now, 0.0)

    @precondition(lambda self: self.trains or self.job.state in LEAVING)
    @rule(commits=st.booleans(), is_late=st.booleans(), changes_directory=st.booleans(), answers=st.booleans())
    def daemon_dies_and_the_next_adopts(
        self, commits: bool, is_late: bool, changes_directory: bool, answers: bool
    ) -> None:
        """`commits`: the worker, meanwhile; it `answers`, or is dead before."""
        facts = self.job.facts
        number, start_step, step, is_held = facts.attempt, facts.current.start_step, facts.current.step, self.in_memory
        if start_step is None:
            return
        flush, saved = facts.current.flush, facts.current.saved_step
        if commits and self.write(CheckpointName(self.next_step, number)):
            saved = self.next_step
        self.replace_daemon(is_late, changes_directory)
        self.in_memory = None
        self.post(events.AttemptFound(number, 1.0, outdated=changes_directory))
        if not answers:
            self.note_death()
            if commits and saved is not None:  # that is unread in the pipe
                self.hear_commit(number, saved)
            self.post(events.WorkerExited(number))
            return
        self.post(events.WorkerMet(number, True))
        self.post(events.TrainingRestored(number, start_step, self.from_memory))
        if saved is not None:
            self.hear_commit(number, saved)
        if is_held is not None:
            self.in_memory = is_held
            self.post(events.CopiesHeld(number, is_held=True))
        self.post(events.StepsDone(number, max(step or 0, saved or 0, start_step + 1)))
        asked = None if flush is None or flush.committed else flush.id
        then = Then.GO_ON if flush is None else flush.then
        is_restored = self.restored is not None
        identified = events.WorkerIdentified(number, Phase.TRAINING, step, is_restored, asked, asked or 0, then)
        self.post(identified)

    @precondition(lambda self: self.trains or self.job.state in LEAVING)
    @rule(commits=st.booleans(), copies=st.booleans(), is_late=st.booleans())
    def daemon_dies_and_the_next_can_not_adopt(self, commits: bool, copies: bool, is_late: bool) -> None:
        """So it ends the worker, and has what that had in memory. `commits`: the worker did before; nobody heard it."""
        if copies and self.job.state is State.RUNNING:
            self.train_on_in_memory(steps=3)
        number, wanted, is_held = self.job.facts.attempt, self.job.facts.wanted, self.in_memory
        if commits:
            self.write(CheckpointName(self.next_step, number))
        self.replace_daemon(is_late, changes_directory=False)
        self.job.facts.wanted = wanted
        here = self.machine.at(self.worker_home).committed
        saved = max((name.step for name in here if name.attempt == number), default=None)
        if saved is not None and (self.reported is None or saved >= self.reported.step):
            self.reported = CheckpointName(saved, number)
            self.told_in[self.reported] = self.worker_home
        suspects = self.job.facts.suspects.deaths
        lost = events.AttemptLost(number, committed_step=saved, in_memory=is_held is not None, not_adopted="words")
        self.post(lost)
        assert set(self.job.facts.suspects.deaths) <= set(suspects), "the daemon ended it, and not its checkpoint"
        assert is_held is None or self.in_memory is None, "what it had there is written, or let go"

    def hear_commit(self, number: int, step: int) -> None:
        self.post(events.CheckpointCommitted(number, step, is_repeated=True))
        if self.reported is None or step >= self.reported.step:
            self.reported = CheckpointName(step, number)
            self.told_in[self.reported] = self.worker_home

    @precondition(lambda self: self.trains)
    @rule(saves=st.booleans(), host_leaves=st.booleans(), changes_directory=st.booleans())
    def daemon_ends_in_good_order(self, saves: bool, host_leaves: bool, changes_directory: bool) -> None:
        """Or an update replaces the job's section."""
        self.post(events.ProgramClosed("shutdown", host_leaves))
        self.worker_saves_and_leaves(saves, WorkerExit.STOPPED)
        if self.job.state in ALIVE:
            self.post(events.WorkerExited(self.job.facts.attempt, signal=9))
        self.end_writing()
        wanted = self.job.facts.wanted
        self.in_memory = None
        self.replace_daemon(is_late=False, changes_directory=changes_directory)
        if wanted:
            self.post(events.StartRequested(resumes=True))

    @invariant()
    def succeeds_only_at_the_end(self) -> None:
        assert self.job.state is not State.SUCCEEDED or self.is_done


AcrossDaemons.TestCase.settings = cases(120, stateful_step_count=50, deadline=None)


@pytest.mark.fuzz
@pytest.mark.slow
class TestNoStartIsBehindWhateverDaemonsDo(AcrossDaemons.TestCase):
    """Run as hypothesis runs a state machine."""
