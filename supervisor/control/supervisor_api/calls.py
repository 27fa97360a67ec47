"""A command of our own table, or several side by side, with Supervisor's results and faults."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from supervisor.control.base import audit
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import CommandError
from supervisor.control.base.faults import FaultCode, RpcFault, fault_of
from supervisor.control.commands import groups
from supervisor.control.commands.table import TABLE
from supervisor.runner.program.runner import Runner

Struct = dict[str, Any]


def runner_of(context: CommandContext, name: str) -> Runner:
    """The program of that name. Raises RpcFault."""
    runner = groups.find(context.programs, name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runner


async def run_command(context: CommandContext, command: str, **arguments: object) -> Struct:
    """The command of our own table. Raises RpcFault."""
    return await faults_from_errors(TABLE[command].act(context, arguments))


async def faults_from_errors(work: Awaitable[Struct]) -> Struct:
    """What a command gives. Raises RpcFault where it raises CommandError."""
    try:
        return await work
    except CommandError as error:
        raise fault_of(error) from error


async def run_side_by_side(works: Iterable[tuple[Runner, Awaitable[object]]]) -> list[Struct]:
    """Does all of it side by side; how each ended, in the order they ended."""
    ended: list[Struct] = []

    async def book(runner: Runner, work: Awaitable[object]) -> None:
        status, text = FaultCode.SUCCESS, "OK"
        try:
            await work
        except RpcFault as fault:
            status, text = fault.code, str(fault)
        good = status is FaultCode.SUCCESS
        audit.record_outcome(audit.OK if good else status.name, None if good else text, runner.name)
        config = runner.config
        ended.append({"name": config.process, "group": config.group, "status": int(status), "description": text})

    await asyncio.gather(*(book(runner, work) for runner, work in works))
    return ended
