"""What the runners of all programs share, and what the parts of one program do."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.config import JobConfig, ProgramConfig
from supervisor.core.diagnosis.kernel_lines import may_matter
from supervisor.core.program.events import Event
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.blocking_calls import BlockingCalls, ThreadsOfUsers
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.hooks import HookRunner
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.host.resources.cgroup import Cgroups
from supervisor.host.resources.kernel_log import KernelReports
from supervisor.host.service.loop_share import LoopShare
from supervisor.protocol import available_memory
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.wire.launch import DaemonIdentity
from supervisor.runner.attempt.gang_parts import GangParts
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.gpus.guard import GpuGuard
from supervisor.runner.listeners.hub import ListenerHub
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords
from supervisor.runner.records.saves import SaveDurations
from supervisor.runner.records.uploads import UploadDurations

DEATHS_AT_ONCE = 8  # that are looked into at a time: each look takes many turns of the event loop, and threads
STOPS_AT_ONCE = 64  # threads for each user, made when needed: all programs are stopped side by side


@dataclass(slots=True)
class StandbyLoadingSlot:
    """One standby of all programs loads at a time. `holder`: the program whose does."""

    holder: str | None = None


@dataclass(frozen=True, slots=True)
class Services:
    """What all runners share."""

    ledger: Ledger
    logs: LogCapture
    checkpoints: CheckpointStore
    state_dir: Path
    runtime_dir: Path
    environment: dict[str, str]
    server_url: str | None
    lowest_attempt: int = 1
    daemon: DaemonIdentity | None = None
    """This process, for workers that must not outlive it for long; None: they train on until the next one comes."""
    gang: GangPlace | None = None
    """None if programs are not ranks of a gang."""
    is_chief: bool = True
    """False on the other nodes of a gang, whose checkpoints the chief's daemon mirrors for all."""
    cgroups: Cgroups | None = None
    gpus: GpuGuard | None = None
    save_durations: SaveDurations = field(default_factory=SaveDurations)
    upload_durations: UploadDurations = field(default_factory=UploadDurations)
    notice_grace: float = 60.0
    hooks: HookRunner = field(default_factory=HookRunner)
    hook_commands: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    listeners: ListenerHub = field(default_factory=ListenerHub)
    blocking_calls: BlockingCalls = field(default_factory=BlockingCalls)
    """For what may hang: reads of logs, of the kernel's log and of the configuration, looks at disks and processes."""
    kernel_reports: KernelReports = field(default_factory=lambda: KernelReports(may_matter))
    stops: ThreadsOfUsers = field(default_factory=lambda: ThreadsOfUsers(STOPS_AT_ONCE, "stop_command"))
    standby_loading: StandbyLoadingSlot = field(default_factory=StandbyLoadingSlot)
    loop_share: LoopShare = field(default_factory=LoopShare)
    listening_share: LoopShare = field(default_factory=LoopShare)
    """Of the event loop, for what workers say."""
    death_looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DEATHS_AT_ONCE))
    available_memory: Callable[[], tuple[int, int]] = available_memory.available_memory
    """Free and total bytes."""

    def parts_of(self, job: JobConfig) -> GangParts | None:
        """What the nodes of the gang tell each other of a job's checkpoints; None if they share a folder, or this is
        no gang."""
        return None if self.gang is None or job.checkpoint_dir_shared else self.gang.parts

    @property
    def place(self) -> Allocation | None:
        """This node's, in the gang; None if programs are not ranks of one."""
        return self.gang.allocation if self.gang is not None else None

    @property
    def generation(self) -> int | None:
        """Of the gang; None if programs are not ranks of one."""
        return self.gang.allocation.generation if self.gang is not None else None


@dataclass(frozen=True, slots=True)
class ProgramServices:
    """One program, for whatever works for it: what it is, what it may use, whom it tells.

    `records`: what is known of it. `observers`: who follow it, as one. `post`: takes what happens to it. `tasks`: what
    takes a while and nobody waits for. `log`: names the program in each line.
    """

    config: ProgramConfig
    services: Services
    records: ProgramRecords
    observers: ProgramObserver
    post: Callable[[Event], None]
    tasks: BackgroundTasks
    log: FilteringBoundLogger
