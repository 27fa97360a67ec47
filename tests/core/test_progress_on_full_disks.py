"""Random histories of a job whose disk is full now and then, and that keeps few checkpoints: what retention and
`checkpoint_make_room` delete, while newer ones are suspect or were left in memory by dead workers, and the wall clock
jumps.

As in the histories before, no start is behind the newest checkpoint that was told without a true reason. None of them
is ever that this program has deleted it.
"""

import errno

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from supervisor.core.failures.suspects import DEATHS
from supervisor.core.program import events
from supervisor.core.program.effects import SelectCheckpoint, SendGo
from supervisor.core.program.facts import ALIVE
from supervisor.protocol.checkpoints.quarantine import UNRECORDED
from supervisor.protocol.checkpoints.retention import (
    RetainedCheckpoint,
    RetentionPolicy,
    select_expendable,
    select_for_room,
)
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.layout import CheckpointName, parse_name
from tests.core.test_progress_across_daemons import AcrossDaemons
from tests.core.test_progress_histories import INITIAL_PATH, Directory
from tests.fuzzing import cases

DAY_S = 86400.0


class SmallDirectory(Directory):
    """`is_full`: its disk takes neither a new folder nor what is said of one that is moved into quarantine."""

    is_full = False

    def set_aside(self, name: CheckpointName, because: OlderBecause) -> RejectedCheckpoint:
        if self.is_full and not self.quarantine:
            if because is OlderBecause.ROLLED_BACK:
                raise OSError(errno.ENOSPC, "no space left")
            return RejectedCheckpoint(str(name), "words (could not be set aside)", because)
        rejected = super().set_aside(name, because)
        self.unrecorded = {*self.unrecorded, name} if self.is_full else self.unrecorded - {name}
        return rejected

    unrecorded: frozenset[CheckpointName] | set[CheckpointName] = frozenset()


class FullDisks(AcrossDaemons):
    """`was_left`: what dead workers left in memory; `made_at`: when each checkpoint was made, by the clock of then.
    `began_from`: what the present attempt began from, until it has saved. `last_saved`: by a worker that lived.
    """

    def __init__(self) -> None:
        super().__init__()
        for disk in (self.machine.on_disk, self.machine.below):
            for home in disk:
                disk[home] = SmallDirectory()
        self.keep, self.makes_room, self.room, self.wall_at = RetentionPolicy(1), False, 1, 1e9
        self.was_left: set[CheckpointName] = set()
        self.made_at: dict[CheckpointName, float] = {}
        self.deleted: set[CheckpointName] = set()
        self.began_from: CheckpointName | None = None
        self.last_saved: CheckpointName | None = None
        self.is_full = False

    @initialize(
        keep=st.integers(1, 3),
        every=st.sampled_from([None, 6.0]),
        makes_room=st.booleans(),
        room=st.integers(1, 3),
    )
    def begin_with_policy(self, keep: int, every: float | None, makes_room: bool, room: int) -> None:
        """`room`: how many checkpoints have to go so that one more finds room."""
        self.keep, self.makes_room, self.room = RetentionPolicy(keep, every), makes_room, room

    # --- the disk ----------------------------------------------------------------------------------------------------

    @rule()
    def disk_is_full_or_has_room(self) -> None:
        self.is_full = not self.is_full
        for disk in (self.machine.on_disk, self.machine.below, self.machine.moved_away):
            for directory in disk.values():
                directory.is_full = self.is_full  # type: ignore[attr-defined]

    @rule(jump_s=st.sampled_from([-DAY_S, 3600.0, DAY_S]))
    def wall_clock_jumps(self, jump_s: float) -> None:
        self.wall_at += jump_s

    def folder_is_copied_below_the_mount_point(self, home: str) -> None:
        if not self.machine.is_mounted:
            return
        disk, copy = self.machine.on_disk[home], SmallDirectory()
        copy.committed, copy.damaged, copy.quarantine = {*disk.committed}, {*disk.damaged}, {**disk.quarantine}
        copy.is_full = self.is_full
        self.machine.below[home] = copy

    @rule(to_the_other=st.booleans())
    def folder_is_moved(self, to_the_other: bool) -> None:
        self.machine.moved_away.setdefault(self.home, SmallDirectory())
        super().folder_is_moved(to_the_other)

    @precondition(lambda self: self.job.state not in ALIVE and not self.hangs)
    @rule(steps=st.integers(1, 30))
    def another_host_trains_in_the_directory(self, steps: int) -> None:
        before = {*self.machine.at(self.home).committed}
        super().another_host_trains_in_the_directory(steps)
        if self.machine.at(self.home).committed != before:
            self.last_saved = None  # this host's is not the newest any more

    def select(self, effect: SelectCheckpoint) -> None:
        try:
            super().select(effect)
        except OSError:
            self.post(events.SelectionFailed(effect.attempt, "the disk is full", permanent=True, errno=errno.ENOSPC))

    # --- what deletes ------------------------------------------------------------------------------------------------

    def delete(self, here: Directory, name: CheckpointName) -> None:
        """What the program deletes by itself is neither what was told last, nor the last that is sound."""
        assert name != self.reported, "the newest that was told"
        assert name != self.last_saved, "the last that a worker that lived has saved"
        assert name != self.began_from, "what the attempt began from, which has saved none yet"
        here.committed.remove(name)
        self.deleted.add(name)

    def has_room(self, here: Directory, spared: list[CheckpointName]) -> bool:
        """Whether one more checkpoint finds room; as `Retention.free_space` and the salvage make it."""
        for _ in range(self.room if self.is_full else 0):
            whole = {name: name in self.was_left for name in here.committed - here.damaged}
            oldest = select_for_room(whole, spared) if self.makes_room else None
            if oldest is None:
                return False
            self.delete(here, oldest)
        return True

    def apply_policy(self, here: Directory, newest: CheckpointName, spared: list[CheckpointName]) -> None:
        checkpoints = [
            RetainedCheckpoint(name, self.made_at.get(name, 0.0), {}, name in self.was_left) for name in here.committed
        ]
        for name in select_expendable(checkpoints, self.keep):
            if name != newest and name not in spared:
                self.delete(here, name)

    def write(self, name: CheckpointName) -> bool:
        here = self.machine.at(self.worker_home)
        if self.machine.mount == self.job.facts.mount:
            spared = [] if self.began_from is None else [self.began_from]
            if not self.has_room(here, spared):
                return False
        if not super().write(name):
            return False
        self.made_at[name], self.began_from, self.last_saved = self.wall_at, None, name
        before, self.reported = self.reported, name  # it is about to be told, and retention comes after that
        self.apply_policy(here, name, [])
        self.reported = before
        return True

    def end_writing(self, is_full: bool = False) -> None:
        effect, name, here = self.being_written, self.left, self.machine.at(self.home)
        if effect is None or name is None:
            return
        restored = None if effect.restored is None else parse_name(effect.restored)
        spared = [restored] if restored is not None and restored in here.committed else []
        is_new = name not in here.committed
        is_newest = all(
            saved.attempt < name.attempt or (saved.attempt == name.attempt and saved.step < name.step)
            for saved in here.committed
        )
        is_written = self.machine.mount == effect.mount and is_newest
        if is_full or (is_written and not self.has_room(here, spared)):
            return
        super().end_writing()
        if is_new and name in here.committed:
            self.was_left.add(name)
            if self.job.facts.restore_below_step is not None:
                self.note(name, OlderBecause.ROLLED_BACK)  # a later attempt has diverged before that was written
            self.made_at[name] = self.wall_at
            self.apply_policy(here, name, spared)

    # --- what follows ------------------------------------------------------------------------------------------------

    def on_go(self, go: SendGo) -> None:
        older, here = self.job.facts.current.older, self.machine.at(self.home)
        if older is not None and older.because is OlderBecause.DELETED:
            assert self.reported not in self.deleted, "this program has deleted it"
        if older is not None and UNRECORDED in older.text and self.reported is not None:
            assert "in quarantine" in older.text
            assert self.reported in here.quarantine
            self.note(self.reported, older.because)  # nothing else is known of it
        if older is not None and self.reported is not None:
            for name, because in here.quarantine.items():
                if name.step >= self.reported.step and name.attempt > self.reported.attempt:
                    self.note(self.reported, because)  # another host's has taken its place
        told_in = dict(self.told_in)
        super().on_go(go)
        self.told_in = told_in  # once it has restored that, and not before
        is_own = go.restore is not None and go.restore != INITIAL_PATH
        self.began_from = self.restored if is_own else None
        if self.last_saved not in here.committed - here.damaged:
            self.last_saved = None

    # --- what leads there, which at random is seldom -----------------------------------------------------------------

    @precondition(lambda self: self.trains)
    @rule()
    def what_it_begins_from_becomes_suspect(self) -> None:
        """As workers die again and again right after they have begun."""
        for _ in range(DEATHS + 2):
            if self.trains:
                self.worker_is_killed()
            self.end_writing()
            self.time_passes(40.0)
            if self.job.facts.suspects.avoid:
                return
            if self.waits_for_go:
                self.train(1, commits=False)

    @precondition(lambda self: self.trains)
    @rule(saves=st.integers(0, 2), steps=st.integers(1, 5), is_full=st.booleans())
    def worker_saves_and_dies_with_more_in_memory(self, saves: int, steps: int, is_full: bool) -> None:
        for _ in range(saves):
            self.train_on(steps)
        if self.is_full is not is_full:
            self.disk_is_full_or_has_room()
        if self.trains:
            self.train_on_in_memory(steps)
            self.worker_is_killed()
            self.end_writing()

    @precondition(lambda self: self.trains)
    @rule(steps=st.integers(1, 10))
    def worker_saves_on_a_full_disk(self, steps: int) -> None:
        if not self.is_full:
            self.disk_is_full_or_has_room()
        self.train_on(steps)

    @precondition(lambda self: self.trains and self.restored is not None)
    @rule(steps=st.integers(1, 10))
    def training_diverges_on_a_full_disk(self, steps: int) -> None:
        self.train_on(steps)
        if not self.is_full:
            self.disk_is_full_or_has_room()
        if self.trains:
            self.training_diverges()

    @invariant()
    def account_is_what_was_told(self) -> None:
        newest = self.job.facts.account.newest
        name = None if newest is None else parse_name(newest.name)
        if name is not None and self.reported is not None and name.step == self.reported.step:
            self.reported = name  # a folder of another run was moved here, and has that step too
        if newest is not None and name is not None:
            self.told_in[name] = newest.directory
        super().account_is_what_was_told()


FullDisks.TestCase.settings = cases(150, stateful_step_count=60, deadline=None)


@pytest.mark.fuzz
@pytest.mark.slow
class TestNothingIsDeletedThatAStartMayNeed(FullDisks.TestCase):
    """Run as hypothesis runs a state machine."""
