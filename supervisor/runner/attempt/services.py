"""What the runners of all programs share."""

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.host.commands.hooks import Hooks
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.host.resources.cgroup import Cgroups
from supervisor.host.resources.gpus import Gpus
from supervisor.host.storage.checkpoint_store import CheckpointStore
from supervisor.runner.listeners.dispatch import Listening
from supervisor.runner.records.saves import Saves

STOPS_AT_ONCE = 64  # threads, made when needed: all programs are stopped side by side


@dataclass(slots=True)
class Turn:
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
    environment: Mapping[str, str]
    server_url: str | None
    cgroups: Cgroups | None = None
    gpus: Gpus | None = None
    saves: Saves = field(default_factory=Saves)
    notice_grace: float = 60.0
    hooks: Hooks = field(default_factory=Hooks)
    hook_commands: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    listening: Listening = field(default_factory=Listening)
    stops: Executor = field(default_factory=lambda: ThreadPoolExecutor(STOPS_AT_ONCE, "stop_command"))
    turn: Turn = field(default_factory=Turn)
