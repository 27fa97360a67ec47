"""Random histories of one job, its disk and its operator: no start begins behind the newest checkpoint that was told,
unless the reason that is said is what really happened to that checkpoint.

The disk is a model: directories with checkpoints and a quarantine, on a volume that can come late, be unmounted and be
mounted over a run, over an old copy or nothing; a table of the host may name it. It may hang, so that an order is
withdrawn, repeated, or left to a later daemon before it is carried out. `initial_checkpoint` is a place of its own.
What is said is compared with a record of its own that the test keeps of everything that was done.
"""

import errno
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisor.core.failures.storage import UNREADABLE_WAIT_S
from supervisor.core.job import Job
from supervisor.core.program import events
from supervisor.core.program.effects import (
    Effect,
    Kill,
    LookAtStorage,
    QuarantineCheckpoints,
    ReleaseMemory,
    SalvageMemory,
    SelectCheckpoint,
    SendGo,
    Spawn,
    WithdrawOrder,
)
from supervisor.core.program.facts import ALIVE, Policy, State
from supervisor.core.program.persisted_facts import facts_to_persist
from supervisor.protocol.checkpoints.account import ReportedCheckpoint, find_passed_over
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.wire.exits import WorkerExit
from tests.fuzzing import cases

HOMES = ("/data/a", "/data/b")
DISK, ROOT = "xfs at /data", "ext4 at /"
INITIAL = CheckpointName(45, 1)
INITIAL_PATH = f"/elsewhere/{INITIAL}"


@dataclass
class Directory:
    """What a checkpoint directory holds. `damaged`: of its checkpoints."""

    committed: set[CheckpointName] = field(default_factory=set)
    damaged: set[CheckpointName] = field(default_factory=set)
    quarantine: dict[CheckpointName, OlderBecause] = field(default_factory=dict)

    def set_aside(self, name: CheckpointName, because: OlderBecause) -> RejectedCheckpoint:
        self.committed.discard(name)
        self.quarantine[name] = because
        return RejectedCheckpoint(str(name), "words", because)


@dataclass
class Machine:
    """The host: two directories on a disk, and what is below its mount point. `is_named`: by a table of the host;
    `has_initial`: there is a checkpoint of another job to begin from."""

    is_mounted: bool = True
    is_named: bool = False
    has_initial: bool = False
    on_disk: dict[str, Directory] = field(default_factory=lambda: {home: Directory() for home in HOMES})
    below: dict[str, Directory] = field(default_factory=lambda: {home: Directory() for home in HOMES})
    moved_away: dict[str, Directory] = field(default_factory=dict)

    def at(self, home: str) -> Directory:
        return (self.on_disk if self.is_mounted else self.below)[home]

    @property
    def mount(self) -> str:
        return DISK if self.is_mounted else ROOT

    def is_away(self, home: str, newest: ReportedCheckpoint | None) -> bool:
        """As the look at a directory says: a table names the volume, and what was told as saved is not there."""
        here = None if newest is None else parse_name(newest.name)
        return self.is_named and not self.is_mounted and here not in self.at(home).committed

    def set_newer_aside(self, home: str, step: int, since: int | None) -> bool:
        """What an operator chose; False if there is no such step. An attempt of it that has saved is not undone."""
        here = self.at(home)
        if since is not None and any(checkpoint.attempt >= since for checkpoint in here.committed):
            return True
        if step == 0:
            here.committed, here.quarantine = set(), {}
            return True
        whole = [checkpoint for checkpoint in here.committed - here.damaged if checkpoint.step == step]
        if whole:
            here.committed = {checkpoint for checkpoint in here.committed if checkpoint <= max(whole)}
        return bool(whole)

    def seen(self, home: str, newest: ReportedCheckpoint | None) -> tuple[int | None, str, RejectedCheckpoint | None]:
        here, expected = self.at(home), None if newest is None else parse_name(newest.name)
        aside = [RejectedCheckpoint(str(name), "words", because) for name, because in here.quarantine.items()]
        passed_over = None if expected is None else find_passed_over(expected, aside)
        return max((name.step for name in here.committed), default=None), self.mount, passed_over

    def select(self, home: str, effect: SelectCheckpoint) -> events.CheckpointSelected | events.SelectionFailed:
        """As the selection does it: newest first, what is bad goes to quarantine."""
        here, number = self.at(home), effect.attempt
        if self.is_away(home, effect.newest):
            return events.SelectionFailed(number, "/data is not mounted", permanent=True, errno=errno.ENODEV)
        if effect.begin_at is not None:
            since = effect.begin_since if effect.begin_since is not None and effect.begin_since < number else None
            if not self.set_newer_aside(home, effect.begin_at, since):
                return events.SelectionFailed(number, "no such step", permanent=True)
        below = effect.restore_below_step
        if below is not None and any(checkpoint.step < below for checkpoint in here.committed - here.damaged):
            diverged = number if effect.diverged_attempt is None else effect.diverged_attempt
            for name in [name for name in here.committed if name.step >= below and name.attempt <= diverged]:
                here.set_aside(name, OlderBecause.ROLLED_BACK)
        highest, mount, passed_over = self.seen(home, effect.newest)
        avoided = {*effect.avoid, *dict(effect.unfit)}
        rejected: list[RejectedCheckpoint] = []
        order = sorted(sorted(here.committed, reverse=True), key=lambda name: str(name) in avoided)
        for name in order:
            if name in here.damaged:
                rejected.append(here.set_aside(name, OlderBecause.DAMAGED))
                continue
            if passed_over is None and effect.newest is not None:
                passed_over = find_passed_over(parse_name(effect.newest.name) or name, rejected)
            if str(name) in dict(effect.unfit):
                return events.SelectionFailed(number, "none fits", permanent=True)
            highest_attempt = max(checkpoint.attempt for checkpoint in (*here.committed, *here.quarantine))
            if highest_attempt > number:
                return events.SelectionFailed(number, "superseded", permanent=False, attempts_used=highest_attempt)
            path = f"{home}/{name}"
            return events.CheckpointSelected(number, path, name.step, None, highest, mount, passed_over)
        if here.quarantine:
            return events.SelectionFailed(number, "none is whole", permanent=True)
        if self.has_initial:
            return events.CheckpointSelected(number, INITIAL_PATH, INITIAL.step, None, highest, mount, passed_over)
        return events.CheckpointSelected(number, None, None, None, highest, mount, passed_over)


class Histories(RuleBasedStateMachine):
    """`reported`: the newest checkpoint that was ever reported; `done_to`: what happened to each checkpoint since."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.now, self.home = Machine(), 0.0, HOMES[0]
        self.leaves_copies = False
        self.reported: CheckpointName | None = None
        self.done_to: dict[CheckpointName, set[OlderBecause]] = {}
        self.asked: int | None = None  # where an operator wants the next start to begin
        self.restored: CheckpointName | None = None
        self.start_step = 0
        self.hangs = False  # the disk: nothing that is asked of it is answered
        self.waiting: list[SelectCheckpoint] = []  # for the disk; of all but the last, nobody wants the answer
        self.withdrawn: set[int] = set()  # attempts whose order was
        self.goes: list[SendGo] = []
        self.in_memory: CheckpointName | None = None  # what the worker has copied there
        self.salvaged: ReportedCheckpoint | None = None  # what came of it, since the last selection
        self.standby_waits = False  # which restores from memory while that is written
        self.being_written: SalvageMemory | None = None
        self.left: CheckpointName | None = None  # in memory, by the worker that is dead
        self.from_memory: str | None = None  # what the present attempt has restored
        self.job = Job(self.policy())

    def policy(self) -> Policy:
        return Policy("j", is_job=True, checkpoint_dir=self.home, startretries=1000)

    # --- what a runner does ------------------------------------------------------------------------------------------

    def post(self, event: events.Event) -> None:
        self.carry_out(self.job.handle(event, self.now))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Spawn():
                    self.post(events.SpawnSucceeded(effect.attempt))
                case SelectCheckpoint() if self.hangs:
                    self.waiting.append(effect)
                case SelectCheckpoint():
                    self.select(effect)
                case WithdrawOrder():
                    self.withdrawn |= {waiting.attempt for waiting in self.waiting}
                case SalvageMemory():
                    self.end_writing()
                    self.being_written, self.left, self.in_memory = effect, self.in_memory, None
                case ReleaseMemory():
                    assert self.in_memory is not None
                    self.in_memory = None
                case LookAtStorage() if self.hangs:
                    pass
                case LookAtStorage() if self.machine.is_away(self.home, effect.newest):
                    self.post(events.StorageSeen(effect.attempt, "/data is not mounted", errno.ENODEV))
                case LookAtStorage():
                    seen = self.machine.seen(self.home, effect.newest)
                    self.post(events.StorageSeen(effect.attempt, None, None, *seen))
                case QuarantineCheckpoints():
                    here = self.machine.at(self.home)
                    for name in [parse_name(unfit) for unfit, _ in effect.unfit]:
                        if name in here.committed:
                            here.set_aside(name, OlderBecause.UNFIT)
                case Kill():
                    self.post(events.WorkerExited(effect.attempt, signal=9))
                case SendGo():
                    self.on_go(effect)

    def select(self, effect: SelectCheckpoint) -> None:
        """As the runner does it: what is in memory is on the disk first, or is offered beside what is there."""
        self.from_memory = None
        is_plain = effect.begin_at is None and effect.restore_below_step is None and not (effect.avoid or effect.unfit)
        if self.standby_waits and self.being_written is not None and is_plain:
            chosen = self.machine.select(self.home, effect)
            least = -1 if effect.newest is None else effect.newest.step
            if isinstance(chosen, events.CheckpointSelected) and chosen.step is not None and chosen.step >= least:
                offer = events.MemoryOffer("socket", self.being_written.attempt)
                self.post(replace(chosen, memory=offer))
                return
        self.end_writing()
        newest, self.salvaged = self.salvaged or effect.newest, None
        if effect.newest is not None and newest is not None and newest.step < effect.newest.step:
            newest = effect.newest
        self.post(self.machine.select(self.home, replace(effect, newest=newest)))

    def end_writing(self, is_full: bool = False) -> None:
        """As the process of the job's user does it: only what is newer than what the attempt saved, and no newer
        attempt has saved since. `is_full`: the disk is; it is tried again."""
        effect, name = self.being_written, self.left
        if effect is None or is_full:
            return
        self.being_written = self.left = None
        here = self.machine.at(self.home).committed
        assert name is not None
        assert name.attempt == effect.attempt
        own = max((saved.step for saved in here if saved.attempt == name.attempt), default=-1)
        newest_attempt = max((saved.attempt for saved in here), default=0)
        if self.machine.mount != effect.mount or own >= name.step or newest_attempt > name.attempt:
            return
        here.add(name)
        self.salvaged = ReportedCheckpoint(name.step, str(name), self.home, effect.mount, name.attempt)
        if self.reported is None or name.step >= self.reported.step:
            self.reported = name
        self.post(events.MemorySalvaged(name.attempt, name.step, str(name), 1.7e9))

    def on_go(self, go: SendGo) -> None:
        """The claim."""
        is_own = go.restore is not None and go.restore != INITIAL_PATH
        begins_at = parse_name(go.restore.rpartition("/")[2]) if go.restore is not None and is_own else None
        older = self.job.facts.current.older
        is_behind = self.reported is not None and (begins_at is None or begins_at.step < self.reported.step)
        assert is_behind == (older is not None), (self.reported, begins_at, older)
        if older is not None and self.reported is not None:
            if older.because is OlderBecause.OPERATOR:
                assert self.asked is not None
                assert self.asked == (begins_at.step if begins_at is not None else 0)
            elif older.because is OlderBecause.DELETED:
                here = self.machine.at(self.home)
                assert self.reported not in here.committed | here.quarantine.keys()
                assert self.machine.mount == self.job.facts.account.newest.mount
            else:
                assert begins_at is not None, "nothing but an operator begins anew"
                assert older.because in self.done_to.get(self.reported, set()), (older, self.reported, self.done_to)
        self.restored, self.goes = begins_at, [go]
        self.start_step = INITIAL.step if go.restore == INITIAL_PATH else 0 if begins_at is None else begins_at.step
        if go.memory is not None and self.left is not None and self.left.step > (begins_at.step if begins_at else -1):
            assert self.left.attempt == go.memory.of_attempt
            self.restored, self.from_memory, self.start_step = self.left, str(self.left), self.left.step

    def note(self, name: CheckpointName | None, because: OlderBecause) -> None:
        if name is not None:
            self.done_to.setdefault(name, set()).add(because)

    @property
    def newest_here(self) -> CheckpointName | None:
        return max(self.machine.at(self.home).committed, default=None)

    @property
    def waits_for_go(self) -> bool:
        return self.job.state is State.STARTING and bool(self.goes) and self.goes[0].attempt == self.job.facts.attempt

    # --- what happens ------------------------------------------------------------------------------------------------

    @initialize(
        leaves_copies=st.booleans(),
        has_initial=st.booleans(),
        is_late=st.booleans(),
        is_named=st.booleans(),
        old_run=st.sampled_from([(), (CheckpointName(20, 1),), (CheckpointName(20, 1), CheckpointName(50, 2))]),
    )
    def begin(
        self,
        leaves_copies: bool,
        has_initial: bool,
        is_late: bool,
        is_named: bool,
        old_run: tuple[CheckpointName, ...],
    ) -> None:
        """`old_run`: what another host has left on the volume, of which this one knows nothing."""
        self.leaves_copies = leaves_copies  # below the mount point there is always a copy, older by one checkpoint
        self.machine.has_initial, self.machine.is_mounted, self.machine.is_named = has_initial, not is_late, is_named
        self.machine.on_disk[self.home].committed = {*old_run}
        self.post(events.StartRequested())

    @rule(seconds=st.sampled_from([1.0, 40.0, UNREADABLE_WAIT_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        deadline = self.job.deadline()
        if self.job.state is State.BACKOFF and deadline is not None:
            self.now = max(self.now, deadline)
            self.carry_out(self.job.expire(self.now))

    @precondition(lambda self: self.waits_for_go)
    @rule(steps=st.integers(1, 30), commits=st.booleans())
    def train(self, steps: int, commits: bool) -> None:
        number, step = self.job.facts.attempt, self.start_step
        self.post(events.TrainingRestored(number, step, self.from_memory))
        self.reported, self.asked = (
            (self.restored, None) if self.job.facts.current.older is not None else (self.reported, None)
        )
        if self.restored is not None and self.from_memory is None:  # it is on the disk
            is_as_new = self.reported is None or self.restored.step >= self.reported.step
            self.reported = self.restored if is_as_new else self.reported
        self.post(events.StepsDone(number, step + steps))
        if commits:
            self.commit(step + steps)

    @precondition(lambda self: self.job.state is State.RUNNING and self.job.facts.current.start_step is not None)
    @rule()
    def restore_is_reported_again(self) -> None:
        facts = self.job.facts
        self.post(events.TrainingRestored(facts.attempt, facts.current.start_step or 0, self.from_memory))

    @precondition(lambda self: self.job.state is State.RUNNING)
    @rule(steps=st.integers(1, 30))
    def train_on(self, steps: int) -> None:
        facts = self.job.facts.current
        step = max(facts.step or 0, facts.saved_step or 0) + steps
        self.post(events.StepsDone(self.job.facts.attempt, step))
        self.commit(step)

    def commit(self, step: int) -> None:
        name = CheckpointName(step, self.job.facts.attempt)
        if self.machine.mount != self.job.facts.mount:  # the worker looks at that before each commit
            self.post(events.CheckpointSaveFailed(name.attempt, "the directory is on another file system"))
            return
        if self.leaves_copies:
            self.folder_is_copied_below_the_mount_point(self.home)
        self.machine.at(self.home).committed.add(name)
        self.post(events.CheckpointCommitted(name.attempt, step))
        self.reported = name

    @precondition(lambda self: self.job.state is State.RUNNING)
    @rule(steps=st.integers(1, 30))
    def train_on_in_memory(self, steps: int) -> None:
        facts = self.job.facts.current
        step = max(facts.step or 0, facts.saved_step or 0) + steps
        self.post(events.CopiesHeld(self.job.facts.attempt, is_held=True))
        self.post(events.StepsDone(self.job.facts.attempt, step))
        self.in_memory = CheckpointName(step, self.job.facts.attempt)

    @rule()
    def standby_comes_or_goes(self) -> None:
        self.standby_waits = not self.standby_waits

    @precondition(lambda self: self.being_written is not None)
    @rule(is_full=st.booleans())
    def memory_is_written(self, is_full: bool) -> None:
        self.end_writing(is_full)

    @precondition(lambda self: self.job.state in (State.STARTING, State.RUNNING))
    @rule()
    def worker_is_killed(self) -> None:
        origin = self.restored
        if self.job.facts.current.start_step is not None and self.job.facts.current.saved_step is None:
            self.note(origin, OlderBecause.SUSPECT)  # it may become suspect
        if self.job.facts.current.saved_step is not None:
            self.note(self.reported, OlderBecause.SUSPECT)
        self.note(origin, OlderBecause.SUSPECT)
        self.post(events.WorkerExited(self.job.facts.attempt, signal=9))

    @precondition(lambda self: self.job.state is State.RUNNING)
    @rule()
    def training_diverges(self) -> None:
        number, step = self.job.facts.attempt, self.job.facts.current.step or 0
        self.note(self.reported, OlderBecause.ROLLED_BACK)
        self.post(events.FailureReported(number, "nan", step, go_back=True))
        self.post(events.WorkerExited(number, WorkerExit.DIVERGED))

    @precondition(lambda self: self.waits_for_go and self.restored is not None)
    @rule()
    def checkpoint_does_not_fit(self) -> None:
        self.note(self.restored, OlderBecause.UNFIT)
        self.post(events.WorkerExited(self.job.facts.attempt, WorkerExit.CHECKPOINT_UNFIT))

    @rule(ends_worker=st.booleans())
    def disk_is_unmounted_or_mounted(self, ends_worker: bool) -> None:
        self.machine.is_mounted = not self.machine.is_mounted
        if ends_worker and self.job.state in (State.STARTING, State.RUNNING):
            self.worker_is_killed()

    def folder_is_copied_below_the_mount_point(self, home: str) -> None:
        disk = self.machine.on_disk[home]
        self.machine.below[home] = Directory({*disk.committed}, {*disk.damaged}, {**disk.quarantine})

    @rule(to_the_other=st.booleans())
    def folder_is_moved(self, to_the_other: bool) -> None:
        """Away or back, or the two directories change names."""
        here, home = self.machine.on_disk, self.home
        if to_the_other:
            here[HOMES[0]], here[HOMES[1]] = here[HOMES[1]], here[HOMES[0]]
        else:
            here[home], self.machine.moved_away[home] = self.machine.moved_away.pop(home, Directory()), here[home]

    @precondition(lambda self: self.newest_here is not None)
    @rule(is_deleted=st.booleans())
    def newest_is_damaged_or_deleted(self, is_deleted: bool) -> None:
        name = self.newest_here
        assert name is not None
        if is_deleted:
            self.machine.at(self.home).committed.remove(name)
        else:
            self.machine.at(self.home).damaged.add(name)
            self.note(name, OlderBecause.DAMAGED)

    @precondition(lambda self: self.job.state is State.RUNNING and self.newest_here is not None)
    @precondition(lambda self: self.restored == self.reported == self.newest_here)
    @rule()
    def what_it_began_from_is_lost_and_the_worker_too(self) -> None:
        """Whatever else is in quarantine, it says nothing of this one."""
        self.newest_is_damaged_or_deleted(is_deleted=True)
        self.worker_is_killed()

    @rule(knows_all=st.booleans(), changes_directory=st.booleans())
    def daemon_is_replaced(self, knows_all: bool, changes_directory: bool) -> None:
        """By one that has all of the ledger, or only the account; after an update, `checkpoint_dir` may be another."""
        if self.job.state in ALIVE:
            self.worker_is_killed()
        if self.job.state in ALIVE:
            self.post(events.WorkerExited(self.job.facts.attempt, signal=9))
        self.in_memory = self.salvaged = self.being_written = self.left = self.from_memory = None
        before = self.job.facts
        self.waiting, self.withdrawn = [], set()
        if changes_directory:
            self.home = next(home for home in HOMES if home != self.home)
        self.job = Job(self.policy())
        self.job.skip_attempts(before.attempt)
        self.job.facts.account = before.account
        if knows_all:
            self.job.recall_persisted(facts_to_persist(before, self.now), self.now, 0.0)
        else:
            self.asked = None
        self.goes = []
        self.post(events.StartRequested(resumes=True))

    @precondition(lambda self: self.job.state is State.RUNNING)
    @rule(diverges=st.booleans(), has_begun_next=st.booleans())
    def daemon_dies_as_it_decides_about_an_end(self, diverges: bool, has_begun_next: bool) -> None:
        """The ledger has nothing of that end; the worker's last words, and perhaps the next process, are there."""
        number, step = self.job.facts.attempt, self.job.facts.current.step or 0
        stored = facts_to_persist(self.job.facts, self.now)
        if diverges:
            self.note(self.reported, OlderBecause.ROLLED_BACK)
            self.job.handle(events.FailureReported(number, "nan", step, go_back=True), self.now)
        else:
            self.note(self.restored, OlderBecause.SUSPECT)
            self.note(self.reported, OlderBecause.SUSPECT)
        self.job.handle(events.WorkerExited(number, WorkerExit.DIVERGED if diverges else 9), self.now)
        decided = self.job.facts
        self.goes, self.waiting, self.withdrawn = [], [], set()
        self.in_memory = self.salvaged = self.being_written = self.left = self.from_memory = None
        self.job = Job(self.policy())
        self.job.skip_attempts(number)
        self.job.facts.account, self.job.facts.wanted = decided.account, True
        self.job.facts.attempts_used = number + has_begun_next
        self.job.recall_persisted(stored, self.now, 0.0)
        here = self.machine.at(self.home).committed
        saved = max((name.step for name in here if name.attempt == number), default=None)
        if saved is not None and (self.reported is None or saved >= self.reported.step):
            self.reported = CheckpointName(saved, number)
        words = {"error": "nan", "step": step, "go_back": True, "code": int(WorkerExit.DIVERGED)} if diverges else {}
        effects = self.job.handle(events.AttemptLost(number, committed_step=saved, **words), self.now)
        if diverges:
            assert self.job.facts.divergence == decided.divergence
        self.carry_out(effects)

    @rule(step=st.integers(0, 60))
    def operator_chooses_a_step(self, step: int) -> None:
        if self.job.state in (State.STARTING, State.RUNNING):
            self.post(events.StopRequested())
            self.post(events.WorkerExited(self.job.facts.attempt, WorkerExit.STOPPED))
        self.post(events.BeginAtRequested(step))
        self.asked = step
        self.post(events.StartRequested())

    @rule()
    def operator_stops(self) -> None:
        """What was chosen before is withdrawn, also if the disk has kept it waiting."""
        self.post(events.StopRequested())
        if self.job.state is State.STOPPING:
            self.post(events.WorkerExited(self.job.facts.attempt, signal=15))
        self.asked = None

    @rule()
    def disk_hangs(self) -> None:
        self.hangs = True

    @precondition(lambda self: self.hangs)
    @rule()
    def disk_answers(self) -> None:
        """What was asked meanwhile is done in its order; an order that was withdrawn is not."""
        self.hangs = False
        waiting, self.waiting = self.waiting, []
        for effect in waiting:
            is_withdrawn = effect.attempt in self.withdrawn
            if effect.attempt == self.job.facts.attempt and self.job.state is State.STARTING:
                self.select(effect)
            elif effect.begin_at is not None and not (is_withdrawn or self.machine.is_away(self.home, effect.newest)):
                assert effect.begin_at == self.asked, "an order is carried out that was withdrawn"
                self.machine.set_newer_aside(self.home, effect.begin_at, None)
        self.withdrawn = set()

    @precondition(lambda self: self.waiting)
    @rule()
    def daemon_dies_after_an_order_was_carried_out(self) -> None:
        """Whoever was told of it is dead, too."""
        last = self.waiting[-1]
        if last.begin_at is not None and last.attempt == self.job.facts.attempt and last.attempt not in self.withdrawn:
            self.machine.select(self.home, last)
        self.hangs = False
        self.daemon_is_replaced(knows_all=True, changes_directory=False)

    @rule()
    def operator_starts(self) -> None:
        if self.job.state not in ALIVE:
            self.post(events.StartRequested())

    @invariant()
    def account_is_what_was_told(self) -> None:
        newest = self.job.facts.account.newest
        assert (None if newest is None else parse_name(newest.name)) == self.reported


Histories.TestCase.settings = cases(400, stateful_step_count=60, deadline=None)


@pytest.mark.fuzz
@pytest.mark.slow
class TestNoStartIsBehindWithoutAReason(Histories.TestCase):
    """Run as hypothesis runs a state machine."""
