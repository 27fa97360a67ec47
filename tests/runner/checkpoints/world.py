"""What the hosts of a history share, and what stands for the rest of a machine: store, ledger, log, clock and disk."""

import asyncio
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, invariant

from supervisor.config import ProgramConfig, load_config
from supervisor.core.program.persisted_facts import PersistedFacts
from supervisor.core.series import MetricSeries
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.job_states import StoredJobState
from supervisor.host.mirror import messages, process
from supervisor.host.mirror.epochs import EpochLost, TakenOver
from supervisor.host.mirror.run import LocalDamaged, MirroredRun, PartDamaged
from supervisor.protocol.checkpoints.account import ProgressAccount
from supervisor.protocol.checkpoints.directory import DirectoryView
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.checkpoints.selection import Selection
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.folder_epochs import known_epoch
from supervisor.protocol.mirror.other_run import OtherRun
from supervisor.protocol.mirror.store import Store, StoreError
from tests.host.mirror.test_run import made


class ModelLog:
    """Keeps what is logged; an internal error breaks the claim."""

    def __init__(self, world: "World", name: str) -> None:
        self._world, self._name = world, name

    def bind(self, **facts: object) -> "ModelLog":
        return self

    def _say(self, event: str, **facts: object) -> None:
        self._world.log.append(f"{self._name}: log {event} {facts}")
        self._world.claim(event != "internal.failed", event, facts)

    debug = info = warning = error = _say

    def exception(self, event: str, **facts: object) -> None:
        self._say(event, **facts, text=traceback.format_exc())


TURNS = 60  # of the loop, until all that was begun is done or waits for the clock


class SteppedLoop(asyncio.SelectorEventLoop):
    """Its clock stands until it is moved."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def do(self, call: Callable[..., object], *given: object) -> None:
        """Calls it in the loop, and has all happen that follows before the clock moves."""

        async def turns() -> None:
            call(*given)
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.run_until_complete(turns())


class DirectStore(CheckpointStore):
    """Answers at once, without a thread. `mount`: the file system that it finds; None: the one that is there."""

    def __init__(self, mount: Callable[[], str | None]) -> None:
        super().__init__()
        self._mount = mount

    async def _run(self, directory: Path, work: Callable[[], Any]) -> Any:
        answer, mount = work(), self._mount()
        if mount is not None and isinstance(answer, DirectoryView):
            return replace(answer, mount=mount)
        if mount is not None and isinstance(answer, Selection):
            return replace(answer, seen=replace(answer.seen, mount=mount))
        return answer


class ModelLedger:
    """What is stored of one job on one host, as later daemons find it."""

    def __init__(self) -> None:
        self.account = ProgressAccount()
        self.stored: PersistedFacts | None = None
        self.digest = ""
        self.last_attempt = 0
        nothing = SimpleNamespace(checkpoint_refused=lambda *said: None)
        self.checkpoints = nothing
        self.wanted = SimpleNamespace(
            progress=lambda name: self.account, record_progress=self._record, progress_in=lambda *asked: None
        )
        self.job_states = SimpleNamespace(
            store=self._store, load=self._load, has_to_read=lambda name: False, hang_history=lambda name: {}
        )
        self.attempts = SimpleNamespace(ended_attempts=lambda name: [], attempt_older=lambda *said: None)
        self.accounts = SimpleNamespace(load_last=lambda name: None)
        self.series = SimpleNamespace(load=lambda name: MetricSeries())

    async def until_written(self, limit_s: float) -> None:
        return None

    def _record(self, name: str, account: ProgressAccount) -> None:
        self.account = account

    def _store(self, name: str, facts: PersistedFacts, digest: str, *others: Any, **more: Any) -> bool:
        self.stored, self.digest = facts, digest
        return True

    def _load(self, name: str) -> StoredJobState | None:
        return None if self.stored is None else StoredJobState(self.stored, 0.0, self.digest)


class ModelStore(Store):
    """A store that can be away."""

    def __init__(self, url: str, run: str, world: "World") -> None:
        super().__init__(url, run)
        self._world = world

    def _require_folder(self) -> None:
        super()._require_folder()
        if getattr(self, "_world", None) is not None and self._world.is_away:
            raise StoreError("cannot reach it")

    def read(self, key: str, limit: int) -> bytes | None:
        self._require_folder()
        return super().read(key, limit)

    def look(self, key: str) -> tuple[int, str | None] | None:
        self._require_folder()
        return super().look(key)


@dataclass
class World:
    """All hosts, and the store. `told`: the newest checkpoint that is in the store as a host was told, unless a start
    from an older one has said why. `uploaders`: the disks from which the store's came. `is_away`: the store can't be
    reached; it `leaves_at_go`: from the next start on."""

    folder: Path
    config: ProgramConfig
    loop: SteppedLoop
    is_away: bool = False
    leaves_at_go: bool = False
    told: CheckpointName | None = None
    holder: str | None = None
    uploaders: dict[str, Path] = field(default_factory=dict)
    hosts: list[Any] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def store(self) -> str:
        return f"file://{self.folder}/store"

    def claim(self, holds: bool, *said: object) -> None:
        """Raises later: here an error may be caught."""
        if not holds:
            self.broken.append(" ".join(map(str, said)))

    def write(self, folder: Path, name: CheckpointName) -> None:
        if not (folder / str(name)).exists():
            made(folder, name.step, name.attempt)


def step_of(name: CheckpointName | None) -> int:
    return -1 if name is None else name.step


class ModelProcess:
    """The mirror's process of one job."""

    def __init__(self, world: World, url: str, folder: Path) -> None:
        self._world, self._url, self._folder = world, url, folder
        self._run: MirroredRun | None = None

    def answer(self, question: messages.Question) -> messages.Answer:
        try:
            if self._run is None:
                self._run = MirroredRun(ModelStore(self._url, "j", self._world), self._folder, 3)
            if isinstance(question, messages.WatchRequest):
                known = question.epoch or known_epoch(self._folder, self._run.epochs())
                later = self._run.later_epoch(known)
                return messages.WatchAnswer(question.id) if later is None else process._fenced(question.id, later)
            return process._answer(self._run, question)
        except TakenOver as error:
            return process._fenced(question.id, error.epoch)
        except (StoreError, ManifestError, OSError) as error:
            self._run = None
            gone = isinstance(error, FileNotFoundError | PartDamaged)
            other = process._steps_of(error) if isinstance(error, OtherRun) else None
            return messages.FailureAnswer(
                question.id,
                str(error)[:1000],
                gone,
                isinstance(error, EpochLost),
                isinstance(error, LocalDamaged),
                other,
            )


_CONFIG: list[ProgramConfig] = []


def config() -> ProgramConfig:
    if not _CONFIG:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "test.conf"
            path.write_text(
                "[supervisord]\n[program:j]\ncommand=/bin/true\ncheckpoint_dir=/x\nmirror=file:///x\nstartretries=1000\n"
            )
            _CONFIG.append(load_config(path, os.environ).programs["j"])
    return _CONFIG[0]


class WorldHistories(RuleBasedStateMachine):
    """Histories of one world, in a folder of its own."""

    def begin_world(self, program: ProgramConfig) -> None:
        self.folder = tempfile.TemporaryDirectory()
        (Path(self.folder.name) / "store" / "j").mkdir(parents=True)
        self.loop = SteppedLoop()
        self.world = World(Path(self.folder.name), program, self.loop)

    def end_world(self) -> None:
        self.loop.close()
        self.folder.cleanup()

    @invariant()
    def claims_hold(self) -> None:
        if getattr(self, "world", None) is not None and self.world.broken:
            raise AssertionError("\n".join([*self.world.log[-60:], *self.world.broken]))
