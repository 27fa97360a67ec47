"""A job that becomes slower is said once, everywhere, and taken back. The worker is real, its step times are not."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.core.program.facts import State
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.watches.speed import SpeedWatch
from supervisor.runner.program.runner import Runner
from tests.places import CHILDREN
from tests.waiting import TIMEOUT_S, wait_until_async

pytestmark = pytest.mark.integration


@pytest.fixture
async def runner(tmp_path: Path, services: Services) -> AsyncIterator[Runner]:
    """A job that trains, whose hook writes what it gets into the file `hooked`."""
    path, hook = tmp_path / "test.conf", tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/hooked.new && mv {tmp_path}/hooked.new {tmp_path}/hooked\n")
    hook.chmod(0o755)
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand={sys.executable} {CHILDREN}/trainer.py\n"
        f'checkpoint_dir={tmp_path}/digits\nenvironment=STEPS=1,STEP_S="600"\nstandby=off\nhook_slower={hook}\nstdout_logfile=NONE\nstderr_logfile=NONE\n'
        "flush_timeout=0.2\nstopwaitsecs=1\n"
    )
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    await programs.start_all()
    digits = programs.runners["digits"]
    # its own report is there, and none comes after those of the test, which would begin a new measurement
    await wait_until_async(lambda: digits.state is State.STARTING and digits.facts.current.start_step is not None)
    yield digits
    await asyncio.wait_for(programs.stop_all(), TIMEOUT_S)


class Reports:
    """Reports of the worker to the record of its speed, a window each, at times of the test's own."""

    def __init__(self, runner: Runner) -> None:
        assert runner.records.speed is not None
        self._speed = runner.records.speed
        self._at, self._step = 0.0, 1

    def train(self, for_s: float, step_s: float, data_share: float = 0.0) -> None:
        for _ in range(round(for_s / 10.0)):
            self._at += 10.0
            self._step += round(10.0 / step_s)
            progress = messages.Progress(1, self._step, step_s=step_s, data_s=10.0 * data_share)
            self._speed.on_message(progress, self._at)


async def test_it_is_said_once_with_the_reason_and_taken_back(runner: Runner, tmp_path: Path):
    watch = SpeedWatch({"digits": runner})
    runner.current.on_message(messages.Restored(1, 0, None, 0.0))
    runner.current.on_message(messages.Progress(1, 1))
    assert runner.state is State.RUNNING
    reports = Reports(runner)
    reports.train(3000.0, 0.1)
    watch.judge(runner)
    assert runner.facts.current.slowdown is None

    reports.train(400.0, 0.2, data_share=0.5)
    watch.judge(runner)

    slowdown = runner.facts.current.slowdown
    assert slowdown is not None
    assert str(slowdown).startswith(
        "100 % slower than usual (a step takes 200 ms, usually 100 ms): it waits for data 50%"
    )
    await wait_until_async((tmp_path / "hooked").exists, "the hook ran")
    told = json.loads((tmp_path / "hooked").read_text())
    assert (told["event"], told["text"], told["usual_step_s"]) == ("slower", str(slowdown), pytest.approx(0.1))

    reports.train(400.0, 0.1)
    watch.judge(runner)

    # what it posts waits while the runner is busy with something else, such as the hook's end
    await wait_until_async(lambda: runner.facts.current.slowdown is None, "it is taken back")
