"""What an earlier daemon left, while commands arrive."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.config import load_config
from supervisor.core.program.facts import ALIVE
from supervisor.host.processes import process_status
from supervisor.runner.attempt.adopting import Leftovers, LeftoverWorker
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.configuration import ConfigurationReader
from supervisor.runner.fleet.gates import DependencyGates
from supervisor.runner.fleet.leftovers import LeftoverProcesses
from supervisor.runner.fleet.ordering import StartTurns
from supervisor.runner.fleet.takeover import Takeover, UsedAttempts
from supervisor.runner.fleet.updating import Updating
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from tests.waiting import stays_async, wait_until_async

EXITS_SLOWLY = "trap 'echo told; read line; exit' TERM; echo runs; while :; do sleep 0.02; done"


@pytest.fixture
def old() -> Iterator[subprocess.Popen[str]]:
    """A worker that has been told to exit only once its standard input ends."""
    with subprocess.Popen(
        ["/bin/bash", "-c", EXITS_SLOWLY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        yield process
        process.kill()


@pytest.mark.integration
async def test_a_program_that_is_configured_again_starts_once_its_old_worker_has_ended(
    tmp_path: Path, services: Services, old: subprocess.Popen[str]
):
    """Two workers of one program would train side by side."""
    path = tmp_path / "test.conf"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:again]\ncommand=/bin/sleep 60\n"
        "stdout_logfile=NONE\nstderr_logfile=NONE\n"
    )
    runner = Runner(load_config(path, os.environ).programs["again"], services)
    gates = DependencyGates({runner.name: runner}, services.ledger, services.loop_share)
    takeover = Takeover(services, LeftoverProcesses(), gates, lambda: False)
    (turn,) = StartTurns(1)
    runner.set_wanted(True)
    assert old.stdin is not None
    assert old.stdout is not None

    left = Leftovers(strays=(psutil.Process(old.pid),))
    ending = asyncio.create_task(takeover.end_unconfigured(runner.name, left))
    assert await asyncio.to_thread(old.stdout.readline) == "told\n"
    starting = asyncio.create_task(takeover.bring_up(runner, Leftovers(), UsedAttempts(), turn))
    await stays_async(lambda: runner.state not in ALIVE, "it waits", 0.2)
    old.stdin.close()
    await asyncio.gather(ending, starting)

    await wait_until_async(lambda: runner.state in ALIVE, "it starts")
    await retire(runner, "test")


@pytest.mark.integration
async def test_no_order_waits_until_what_is_left_of_an_added_program_has_ended(
    tmp_path: Path, services: Services, old: subprocess.Popen[str]
):
    path = tmp_path / "test.conf"
    sections = [
        f"[program:{name}]\ncommand=/bin/sleep 60\nstdout_logfile=NONE\nstderr_logfile=NONE\n"
        for name in ("again", "other")
    ]
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n")
    config = load_config(path, os.environ)
    runners: dict[str, Runner] = {}
    takeover = Takeover(
        services, LeftoverProcesses(), DependencyGates(runners, services.ledger, services.loop_share), lambda: False
    )
    configuration = ConfigurationReader(config, lambda: load_config(path, os.environ), services, runners)
    settled = asyncio.Event()
    settled.set()
    updating = Updating(
        configuration,
        services,
        runners,
        takeover,
        settled,
        on_state_change=lambda: None,
        on_added=lambda runner: None,
    )
    assert old.stdin is not None
    assert old.stdout is not None
    ending = asyncio.create_task(takeover.end_unconfigured("again", Leftovers(strays=(psutil.Process(old.pid),))))
    assert await asyncio.to_thread(old.stdout.readline) == "told\n"

    for count in (1, 2):
        path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n" + "".join(sections[:count]))
        await configuration.reread()
        (action,) = await asyncio.wait_for(updating.update(), 20.0)
        assert action.action == "added"

    await wait_until_async(lambda: runners["other"].state in ALIVE, "the other one starts")
    assert runners["again"].state not in ALIVE
    old.stdin.close()
    await ending
    await wait_until_async(lambda: runners["again"].state in ALIVE, "it starts")
    await asyncio.gather(*(retire(runner, "test") for runner in runners.values()))


UNSEALED = """
import os, sys
os.truncate(os.memfd_create("stepkeeper-state", os.MFD_ALLOW_SEALING), 4096)
print("has it", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def out_of_reach() -> Iterator[subprocess.Popen[str]]:
    """A worker without pipes, whose memory nobody may read."""
    command = [sys.executable, "-c", UNSEALED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        yield process
        process.kill()


@pytest.mark.integration
async def test_what_a_worker_may_have_in_memory_and_nobody_can_reach_is_said_with_its_end(
    tmp_path: Path, services: Services, out_of_reach: subprocess.Popen[str]
):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\n[program:digits]\ncommand=/bin/sleep 60\ncheckpoint_dir={tmp_path}/ckpt\n")
    runner = Runner(load_config(path, os.environ).programs["digits"], services)
    gates = DependencyGates({runner.name: runner}, services.ledger, services.loop_share)
    takeover = Takeover(services, LeftoverProcesses(), gates, lambda: False)
    (turn,) = StartTurns(1)
    pid, start_time = out_of_reach.pid, process_status.read_start_time(out_of_reach.pid)
    assert start_time is not None
    services.ledger.attempts.attempt_started(runner.name, 1, pid, start_time, time.time(), 1)
    left = Leftovers(LeftoverWorker(1, pid, start_time), (psutil.Process(pid),), open_attempts=(1,))

    await takeover.bring_up(runner, left, UsedAttempts(1, 1), turn)

    assert await services.ledger.until_written(20.0)
    (attempt,) = await asyncio.to_thread(services.ledger.attempts.history, runner.name, 20)
    assert attempt.cause == "lost"
    why = "could not be taken over from a daemon that died; ended; what it may have had in memory can't be reached"
    assert attempt.text is not None
    assert attempt.text.startswith(f"{why} (its size is not sealed")
    await retire(runner, "test")
