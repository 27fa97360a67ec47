"""The checkpoint that an attempt begins from."""

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from supervisor.config import load_config
from supervisor.core.program.effects import SelectCheckpoint
from supervisor.core.program.events import CheckpointSelected, Event, SelectionFailed
from supervisor.protocol import layout
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.checkpoints.manifest import Manifest, record_files
from supervisor.runner.attempt.background import BackgroundTasks
from supervisor.runner.attempt.program_services import ProgramServices
from supervisor.runner.attempt.services import GangPlace, Services
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.program.checkpoints import CheckpointSelector
from supervisor.runner.records.observers import ProgramObserver
from supervisor.runner.records.program import ProgramRecords

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy


def selector_of(
    path: Path, services: Services, post: Callable[[Event], None], observer: ProgramObserver | None = None
) -> CheckpointSelector:
    config, log = load_config(path, os.environ).programs["digits"], structlog.get_logger()
    assert config.job is not None
    records = ProgramRecords(config, services.ledger, services.save_durations, log)
    program = ProgramServices(config, services, records, observer or ProgramObserver(), post, BackgroundTasks(log), log)
    return CheckpointSelector(program, config.job, MemoryHolder(program, config.job, lambda: None))


async def test_a_host_without_a_free_thread_is_a_selection_failure_that_may_pass(
    tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch
):
    path, told = tmp_path / "test.conf", asyncio.Queue[Event]()
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/digits\n")
    selector = selector_of(path, services, told.put_nowait)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        await asyncio.wait_for(selector.execute(SelectCheckpoint(1)), PATIENCE_S)
        failed = told.get_nowait()

    assert isinstance(failed, SelectionFailed)
    assert (failed.attempt, failed.permanent) == (1, False)
    assert "can't start new thread" in failed.error


class RefusalObserver(ProgramObserver):
    """Holds the names of the checkpoints that were refused."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def on_checkpoint_refused(self, name: str, reason: str) -> None:
        self.refused.append(name)


async def test_a_checkpoint_in_quarantine_is_counted_as_refused_only_once(tmp_path: Path, services: Services):
    path, posted, observer = tmp_path / "test.conf", list[Event](), RefusalObserver()
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/digits\n")
    (tmp_path / "digits" / "step-0000000100.a1").mkdir(parents=True)  # damaged: it has no manifest
    selector = selector_of(path, services, posted.append, observer)

    for attempt in (1, 2):
        await selector.select(SelectCheckpoint(attempt))

    assert observer.refused == ["step-0000000100.a1"]
    assert [isinstance(each, SelectionFailed) and "step-0000000100.a1" in each.error for each in posted] == [True, True]


@pytest.mark.parametrize(
    ("rank", "nodes", "save_shards", "is_left"),
    [
        (0, 2, "always", False),
        (1, 2, "always", True),
        (1, 8, "never", False),
        (1, 8, "auto", True),
        (1, 7, "auto", False),
    ],
)
async def test_nodes_whose_workers_read_together_leave_the_proof_to_them(
    tmp_path: Path, services: Services, rank: int, nodes: int, save_shards: str, is_left: bool
):
    path, posted, folder = tmp_path / "test.conf", list[Event](), tmp_path / "digits" / "step-0000000100.a1"
    path.write_text(
        f"[supervisord]\n[program:digits]\ncommand=/bin/true\ncheckpoint_dir={folder.parent}\n"
        f"save_shards={save_shards}\n"
    )
    folder.mkdir(parents=True)
    (folder / "x").write_text("whole")
    made = Manifest("digits", 1, 100, 0.0, record_files(folder, ("x",)))
    (folder / layout.MANIFEST).write_bytes(made.to_bytes())
    (folder / "x").write_text("whale")
    place = Allocation(1, rank, tuple(f"node{number}" for number in range(nodes)), 0, 1)
    selector = selector_of(path, replace(services, gang=GangPlace(place)), posted.append)

    await selector.select(SelectCheckpoint(1))

    (selected,) = posted
    assert isinstance(selected, CheckpointSelected) == is_left
    assert folder.exists() == is_left
