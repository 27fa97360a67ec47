"""What a user's programs have run as that user keeps nobody else's waiting. Real commands of users that Debian has."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.core.program import events
from supervisor.host.blocking_calls import ThreadsOfUsers
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.watches.resources import CHECKS_AT_ONCE, ResourceWatch
from tests.system.harness import let_others_in

pytestmark = [
    pytest.mark.integration,
    pytest.mark.hostile,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

PATIENCE_S = 60.0  # for what takes about a second; the machine may be busy
HANGING = "[program:hanging]\nprocess_name=%(process_num)d\ncommand=/bin/sleep 600\nuser=games\nstartsecs=0\n"
OTHER = "[program:other]\ncommand=/bin/sleep 600\nuser=nobody\nstartsecs=0\nstopwaitsecs=4\n"


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[Callable[[str, Services], Programs]]:
    """Makes programs of a configuration; all end with the test."""
    let_others_in(tmp_path)
    made = list[Programs]()

    def make(text: str, services: Services) -> Programs:
        path = tmp_path / "test.conf"
        path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{text}")
        config = load_config(path, os.environ)
        config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
        made.append(Programs(config, lambda: config, services))
        return made[-1]

    yield make
    for each in made:
        await asyncio.wait_for(each.stop_all(), PATIENCE_S)


async def test_health_checks_that_hang_keep_no_other_user_s_waiting(
    programs: Callable[[str, Services], Programs], services: Services
) -> None:
    hanging = f"{HANGING}numprocs={CHECKS_AT_ONCE}\nhealthcheck_command=/bin/sleep 600\nhealthcheck_interval=0.1\n"
    other = f"{OTHER}healthcheck_command=/bin/false\nhealthcheck_interval=2\nhealthcheck_retries=1\n"
    made = programs(f"{hanging}healthcheck_timeout=600\n{other}", services)
    watch = ResourceWatch(made.runners, services)
    watching = asyncio.create_task(watch.watch())
    await made.start_all()
    watch.on_change()
    runner = made.runners["other"]

    try:
        async with asyncio.timeout(20.0):
            await runner.wait_until(lambda: runner.attempt > 1 or None)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_stop_commands_that_hang_keep_no_other_user_s_waiting(
    programs: Callable[[str, Services], Programs], services: Services
) -> None:
    """Who waits gets no signal either, until it is killed."""
    hanging = f"{HANGING}numprocs=1\nstop_command=/bin/sleep 600\nstopwaitsecs=6\n"
    other = f"{OTHER}stop_command=/bin/sh -c 'kill -USR1 $SUPERVISOR_PROGRAM_PID'\n"
    made = programs(hanging + other, replace(services, stops=ThreadsOfUsers(1, "stop_command")))
    await made.start_all()
    for runner in made.runners.values():
        runner.post(events.StopRequested())
    runner = made.runners["other"]

    ended = await asyncio.wait_for(runner.wait_until(lambda: runner.records.process.last_exit), PATIENCE_S)

    assert ended.signal == signal.SIGUSR1
