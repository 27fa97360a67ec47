"""What a running program costs the daemon: there may be a thousand, each with objects of its own."""

import asyncio
import gc
import os
import tracemalloc
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.core.program.facts import State
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.programs import Programs

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy
MANY = 50
MOST_BYTES = 15_000  # some 14,000 measured; each extra Event, set or bound logger takes 200 to 900


async def test_a_running_program_takes_little_memory(tmp_path: Path, services: Services):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{section('first', 5)}")  # what is made once is made
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    await programs.start_all()
    path.write_text(path.read_text() + section("many", MANY))

    gc.collect()
    tracemalloc.start()
    try:
        await programs.configuration.reread()
        await programs.updating.update()
        await asyncio.wait_for(all_run(programs), PATIENCE_S)
        gc.collect()
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await asyncio.wait_for(programs.stop_all(), PATIENCE_S)

    assert taken_bytes / MANY < MOST_BYTES


def section(name: str, numprocs: int) -> str:
    return (
        f"[program:{name}]\ncommand=/bin/sleep 100000\nstartsecs=0\nstdout_logfile=NONE\nstderr_logfile=NONE\n"
        f"numprocs={numprocs}\nprocess_name={name}_%(process_num)02d\n"
    )


async def all_run(programs: Programs) -> None:
    for runner in programs.runners.values():
        await runner.wait_until(lambda runner=runner: True if runner.state is State.RUNNING else None)
