"""Starts that fail in the middle: nobody is left behind, and the job goes on. Real processes, on a host that fails."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.config import load_config
from supervisor.control.commands.descriptions import full_description
from supervisor.core.gpus.verdict import Gpu
from supervisor.core.program.facts import State
from supervisor.core.standby import machine
from supervisor.host.processes import marks
from supervisor.host.resources.cgroup import Cgroup
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.gpus.guard import GpuLook
from supervisor.runner.program.runner import Runner
from tests.places import CHILDREN
from tests.waiting import wait_until_async

pytestmark = pytest.mark.integration

TRAINER = CHILDREN / "trainer.py"
PATIENCE_S = 60.0  # for what takes about a second; the machine may be busy


class BrokenCgroups:
    """A host whose control groups fail in a way that nobody foresaw, once `error` is set."""

    controllers: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.error: Exception | None = None

    def remove_empty_groups(self, program: str, below: int) -> None:
        pass

    def create(self, *about: object) -> None:
        pass

    def create_for_standby(self, program: str, token: str) -> Cgroup:
        return Cgroup(Path("/nonexistent") / token)

    def groups_of(self, program: str) -> list[Cgroup]:
        return []

    def limit(self, *about: object) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error


class BrokenGpus:
    """A guard that fails the first time, in a way that nobody foresaw."""

    is_started = True

    def __init__(self) -> None:
        self.asked = 0

    async def start_once(self) -> None:
        pass

    def take_verdict(self, program: str, attempt: int) -> str | None:
        return None

    async def look(self) -> GpuLook:
        self.asked += 1
        if self.asked == 1:
            raise ZeroDivisionError("no GPU is that small")
        return GpuLook((Gpu(0, "GPU-a"),), frozenset({"GPU-a"}))

    async def catch_up(self) -> None:
        pass

    def recent_faults(self, pids: object, since: float, program: str) -> tuple[str, ...]:
        return ()


async def begun(tmp_path: Path, services: Services, keys: str = "") -> tuple[Programs, Runner]:
    path = tmp_path / "test.conf"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand={sys.executable} {TRAINER}\n"
        f'checkpoint_dir={tmp_path}/c\nenvironment=STEPS="1000000",GRANDCHILD="1",STRAY="1"\nstopwaitsecs=5\n'
        f"{keys or 'standby=off'}\n"
    )
    config = load_config(path, os.environ)
    config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
    programs = Programs(config, lambda: config, services)
    await programs.start_all()
    return programs, programs.runners["digits"]


async def until(runner: Runner, look: Any) -> Any:
    return await wait_until_async(look, timeout_s=PATIENCE_S)


def trains(runner: Runner, attempt: int) -> bool:
    return runner.state is State.RUNNING and runner.attempt >= attempt


def strays(services: Services, standby: int) -> set[int]:
    """What the standby started and nobody's descendant is any more."""
    mark = marks.read_mark(standby)
    return {process.pid for process in marks.processes_of_daemon(services.state_dir).get(mark or "", [])} - {standby}


def left(services: Services) -> set[int]:
    return {each.pid for found in marks.processes_of_daemon(services.state_dir).values() for each in found}


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ZeroDivisionError("a cgroup of nobody")])
async def test_a_standby_that_cannot_be_the_attempt_is_ended_and_another_process_trains(
    tmp_path: Path, services: Services, error: Exception
):
    cgroups = BrokenCgroups()
    services = replace(services, cgroups=cgroups)  # type: ignore[arg-type]
    programs, runner = await begun(tmp_path, services, "standby=warm")
    await until(runner, lambda: trains(runner, 1))
    standby = await until(runner, lambda: "ready" in str(runner.standby.status()) and runner.standby.pid)
    others = await until(runner, lambda: strays(services, standby))

    cgroups.error = error
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    await until(runner, lambda: trains(runner, 3))

    assert runner.pid != standby
    await until(runner, lambda: not any(map(psutil.pid_exists, {standby, *others})))
    texts = [(each.cause, each.text) for each in await asyncio.to_thread(services.ledger.attempts.history, "digits", 9)]
    assert texts[1][0] == "spawn" and str(error.args[-1]) in str(texts[1][1]), texts
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
    await until(runner, lambda: not left(services))


@pytest.mark.slow
async def test_a_standby_whose_pipes_cannot_be_moved_is_ended_and_a_new_process_is_the_attempt(
    tmp_path: Path, services: Services
):
    programs, runner = await begun(tmp_path, services, "standby=warm")
    await until(runner, lambda: trains(runner, 1))
    standby = await until(runner, lambda: "ready" in str(runner.standby.status()) and runner.standby.pid)
    others = await until(runner, lambda: strays(services, standby))

    folder = next(path for path in (services.runtime_dir / "digits").iterdir() if path.name.startswith("s"))
    folder.rename(folder.with_name("elsewhere"))
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    assert await until(runner, lambda: runner.pid not in (None, standby) and trains(runner, 2))

    await until(runner, lambda: not any(map(psutil.pid_exists, {standby, *others})))
    assert standby not in runner.standby.pids
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
    await until(runner, lambda: not left(services))


async def test_none_is_prepared_where_memory_is_short_and_status_says_so(
    tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(machine, "AUTO_SETTLE_S", 0.1)
    services = replace(services, available_memory=lambda: (1200 << 20, 16 << 30))
    programs, runner = await begun(tmp_path, services, "standby=auto")

    reason = await until(runner, lambda: runner.standby.status()["reason"])

    assert reason == "memory: it needs 640.0 MB, 1.2 GB is available, and 1.6 GB of that must stay free"
    assert f"no standby: {reason}" in full_description(runner) and runner.standby.pid is None
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
    await until(runner, lambda: not left(services))


async def test_a_driver_that_fails_unexpectedly_costs_an_attempt_and_not_the_whole_startup_timeout(
    tmp_path: Path, services: Services
):
    gpus = BrokenGpus()
    services = replace(services, gpus=gpus)  # type: ignore[arg-type]
    programs, runner = await begun(tmp_path, services)

    await until(runner, lambda: trains(runner, 2))

    first = (await asyncio.to_thread(services.ledger.attempts.history, "digits", 9))[0]
    assert first.cause == "spawn" and "no GPU is that small" in str(first.text)
    assert not runner.current.waits_for_gpus
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
