"""Random histories of hosts that share one run: whoever begins, begins from the newest checkpoint that was uploaded.

And not behind what it has on its own disk, unless another host has taken the run over since. And if something that a
live worker saved counts in the store, something of that kind does so after each upload.

Hosts are lost with their disks or without, come back, meet a store that does not answer, go on although another one has
the run, and are killed between any two changes of a disk or of the store. `Host.start` does what
`runner/checkpoints/mirror_selection.py` does, `Host.step` what `runner/mirror/job_mirror.py` does.
"""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.mirror.epochs import TakenOver
from supervisor.host.mirror.run import MirroredRun
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.directory import committed_checkpoints, highest_attempt
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.keys import RemoteCheckpoint
from supervisor.protocol.mirror.line import checkpoints_on_line
from supervisor.protocol.mirror.remote_run import RemoteRun, committed
from supervisor.protocol.mirror.store import Store
from tests.fuzzing import cases
from tests.host.mirror.test_run import made

HOSTS = 3
NEVER = 1_000_000


class Killed(BaseException):
    """The process is gone; nothing of what would have followed happens."""


class Killer:
    """Kills before the change number `at` of a disk or of the store, counted while it is `armed`; then all stays."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._on_audit)

    def _on_audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.left is None:
            return
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o103
        if is_write or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            self.point()

    def point(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    @contextlib.contextmanager
    def armed(self, at: int):
        self.left = at
        try:
            yield
        finally:
            self.left = None


KILLER = Killer()


class KilledStore(Store):
    """Its changes are points at which the process may be killed, before and after."""

    def create(self, key: str, content: bytes) -> bool:
        KILLER.point()
        created = super().create(key, content)
        KILLER.point()
        return created

    def upload(self, key: str, path: Path, pieces_of: Callable[[RawIOBase], Iterable[bytes]]) -> None:
        KILLER.point()
        super().upload(key, path, pieces_of)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            KILLER.point()
            super().delete([key])


class World:
    """The store, and all hosts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "store").mkdir()
        self.hosts = [Host(self, number) for number in range(HOSTS)]

    told = 0
    """The step of the newest checkpoint of which a host was told that it is in the store."""

    def saved_by_live_workers(self) -> set[RemoteCheckpoint]:
        """What counts in the store, without what dead workers left in memory."""
        run = RemoteRun(Store(f"file://{self.folder}/store"))
        files = run.files()
        line = checkpoints_on_line(run.epochs(), committed(files))
        return {checkpoint for checkpoint in line if layout.FROM_MEMORY not in files[checkpoint]}

    def epochs(self) -> int:
        return len(list(self.folder.glob("store/epoch/????")))


class Host:
    """One disk, and what runs there."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number, self.disks = world, number, 0
        self.lose_disk()

    def lose_disk(self) -> None:
        self.disks += 1
        self.folder = self.world.folder / f"host{self.number}-{self.disks}"
        self.attempt = 0  # the ledger's
        self.committed = 0
        """The step of the newest checkpoint on this disk, if no other host has taken the run over since."""
        self.is_stale = False  # one has, since this one looked
        self.stop()

    def stop(self) -> None:
        self.is_running, self.has_looked, self.epoch, self.known = False, False, None, 0
        self.start_from: CheckpointName | None = None
        self.newest: CheckpointName | None = None
        self.seen: CheckpointName | None = None

    @property
    def run(self) -> MirroredRun:
        return MirroredRun(KilledStore(f"file://{self.world.folder}/store"), self.folder, 3)

    def local(self) -> CheckpointName | None:
        return max(committed_checkpoints(self.folder), default=None) if self.folder.exists() else None

    def start(self, is_reachable: bool) -> None:
        self.stop()
        if self.folder.exists():
            self.attempt = max(self.attempt, highest_attempt(self.folder))
        self.attempt += 1
        while is_reachable:
            found = self.run.fetch(self.local(), None)
            for name in found.left_behind:
                move_to_quarantine(self.folder, name, "left behind")
            if found.left_behind:
                continue
            self.known, self.seen, self.has_looked = found.epoch, found.seen, True
            if found.attempt < self.attempt:
                break
            self.attempt = found.attempt + 1  # the worker is killed, and the next attempt looks again
        if not is_reachable and self.local() is None:
            return  # it waits
        self.start_from = self.newest = self.local()
        self.is_running = True
        if self.has_looked:
            begins = 0 if self.start_from is None else self.start_from.step
            assert begins >= self.world.told, f"begins at {begins}, although {self.world.told} was uploaded"
            assert begins >= self.committed, f"begins at {begins}, although {self.committed} was committed here"
            self.is_stale, self.committed = False, begins

    def train(self, saves: int, is_left: bool = False) -> None:
        """`is_left`: workers that die leave these in memory."""
        for _ in range(saves if self.is_running else 0):
            step = (0 if self.newest is None else self.newest.step) + 10
            self.newest = CheckpointName(step, self.attempt)
            if not (self.folder / str(self.newest)).exists():
                made(self.folder, step, self.attempt, *([layout.FROM_MEMORY] if is_left else []))
            if not self.is_stale:
                self.committed = max(self.committed, step)

    def step(self) -> None:
        """The first step is done: the run is taken."""
        if not self.is_running or self.epoch is not None:
            return
        before = self.world.epochs()
        try:
            epoch, newer = self.run.take_over(self.newest, self.known, self.seen)
        finally:
            if self.world.epochs() > before:
                for other in self.world.hosts:
                    if other is not self:
                        other.is_stale, other.committed = True, 0
        if newer is not None:
            self.start(is_reachable=True)
        else:
            begins = 0 if self.newest is None else self.newest.step
            assert begins >= self.world.told, f"goes on from {begins}, although {self.world.told} was uploaded"
            self.epoch = epoch

    def upload(self) -> None:
        if self.is_running and self.epoch is not None and self.newest is not None:
            before = self.world.saved_by_live_workers()
            self.run.upload(self.newest, self.epoch)
            assert self.world.saved_by_live_workers() or not before, "there is nothing to go back to"
            self.world.told = max(self.world.told, self.newest.step)


@dataclass(frozen=True)
class Life:
    """What one host does next: it starts, unless it only goes on; saves and uploads; saves more; ends, or does not.

    `is_left`: what is saved was in memory as workers died.
    """

    host: int
    starts: bool
    is_reachable: bool
    uploads: int
    saves: int
    end: str
    killed_at: int
    is_left: bool = False

    def happens_to(self, host: Host) -> None:
        try:
            with KILLER.armed(self.killed_at):
                if self.starts:
                    host.start(self.is_reachable)
                for _ in range(self.uploads):
                    host.step()
                    host.train(1, self.is_left)
                    host.upload()
                host.train(self.saves, self.is_left)
        except (Killed, TakenOver):
            host.stop()
        match self.end:
            case "killed":
                host.stop()
            case "lost":
                host.lose_disk()


@st.composite
def histories(draw: st.DrawFn) -> list[Life]:
    """Drawn as one number: what hypothesis draws piece by piece is too often the same short history."""
    random = Random(draw(st.integers(0, 2**32)))
    hosts = random.randint(2, HOSTS)
    return [
        Life(
            host=random.randrange(hosts),
            starts=random.random() < 0.6,
            is_reachable=random.random() < 0.8,
            uploads=random.choice([0, 0, 1, 1, 2, 3]),
            saves=random.choice([0, 0, 1, 3]),
            end=random.choice(["goes on", "goes on", "goes on", "killed", "lost"]),
            killed_at=random.choice([NEVER, NEVER, NEVER, random.randrange(70)]),
            is_left=random.random() < 0.4,
        )
        for _ in range(random.randrange(3, 13))
    ]


EMPTY_HOST = [Life(0, False, True, 0, 0, "lost", NEVER), Life(0, True, True, 1, 0, "killed", NEVER)]


@pytest.mark.slow
@cases(40, deadline=None)
@given(histories())
def test_nobody_begins_behind_the_newest_checkpoint_that_was_uploaded(history: list[Life]):
    live(history)


@pytest.mark.nightly  # as the one before, with more histories
@pytest.mark.slow
@cases(400, deadline=None)
@given(histories())
def test_in_no_history_of_many_anybody_begins_behind_it(history: list[Life]):
    live(history)


def live(history: list[Life]) -> None:
    """Has it happen, to hosts with a store of their own."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for life in [*history, *EMPTY_HOST]:
            life.happens_to(world.hosts[life.host])
