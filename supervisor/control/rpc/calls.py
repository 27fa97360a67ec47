"""A command of our own table, or several side by side, with Supervisor's results and faults."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from supervisor.control.base import audit
from supervisor.control.base.context import Daemon
from supervisor.control.base.errors import CommandError
from supervisor.control.base.faults import FaultCode, RpcFault, fault_of
from supervisor.control.commands import groups
from supervisor.control.commands.table import TABLE
from supervisor.runner.program.runner import Runner

Struct = dict[str, Any]


def runner_of(daemon: Daemon, name: str) -> Runner:
    """The program of that name. Raises RpcFault."""
    runner = groups.find(daemon.programs, name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runner


async def do(daemon: Daemon, command: str, **arguments: object) -> Struct:
    """The command of our own table. Raises RpcFault."""
    return await as_rpc(TABLE[command].act(daemon, arguments))


async def as_rpc(work: Awaitable[Struct]) -> Struct:
    """What a command gives. Raises RpcFault where it raises CommandError."""
    try:
        return await work
    except CommandError as error:
        raise fault_of(error) from error


async def results(works: Iterable[tuple[Runner, Awaitable[object]]]) -> list[Struct]:
    """Does all of it side by side; how each ended, in the order they ended."""
    ended: list[Struct] = []

    async def book(runner: Runner, work: Awaitable[object]) -> None:
        status, text = FaultCode.SUCCESS, "OK"
        try:
            await work
        except RpcFault as fault:
            status, text = fault.code, str(fault)
        good = status is FaultCode.SUCCESS
        audit.ended(audit.OK if good else status.name, None if good else text, runner.name)
        config = runner.config
        ended.append({"name": config.process, "group": config.group, "status": int(status), "description": text})

    await asyncio.gather(*(book(runner, work) for runner, work in works))
    return ended
