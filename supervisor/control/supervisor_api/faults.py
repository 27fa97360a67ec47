"""The faults of Supervisor's XML-RPC interface, and our commands run with its faults and results."""

import asyncio
from collections.abc import Awaitable, Iterable
from enum import IntEnum
from typing import Any, TypeVar

from supervisor.control.base import audit
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError, RequestFailed
from supervisor.control.commands import groups
from supervisor.runner.program.runner import Runner

Struct = dict[str, Any]
Answer = TypeVar("Answer")


class FaultCode(IntEnum):
    """Numbers of API version 3.0. SUCCESS is only for results of several programs."""

    UNKNOWN_METHOD = 1
    INCORRECT_PARAMETERS = 2
    BAD_ARGUMENTS = 3
    SIGNATURE_UNSUPPORTED = 4
    SHUTDOWN_STATE = 6
    BAD_NAME = 10
    BAD_SIGNAL = 11
    NO_FILE = 20
    NOT_EXECUTABLE = 21
    FAILED = 30
    ABNORMAL_TERMINATION = 40
    SPAWN_ERROR = 50
    ALREADY_STARTED = 60
    NOT_RUNNING = 70
    SUCCESS = 80
    ALREADY_ADDED = 90
    STILL_RUNNING = 91
    CANT_REREAD = 92


class RpcFault(RequestFailed):
    """A call that was not carried out; the text begins with the fault's name, as Supervisor's clients expect."""

    def __init__(self, code: FaultCode, detail: str | None = None) -> None:
        super().__init__(code.name if detail is None else f"{code.name}: {detail}")
        self.code = code
        self.fault = code.name


_NAMED_DIFFERENTLY: dict[Code, FaultCode] = {
    Code.NOT_A_JOB: FaultCode.BAD_NAME,
    Code.UNKNOWN_COMMAND: FaultCode.UNKNOWN_METHOD,
    Code.NOT_SAVED: FaultCode.FAILED,
    Code.CANT_RESTART: FaultCode.FAILED,
    Code.FORBIDDEN: FaultCode.FAILED,  # the one whose text stock clients show as it is
    Code.WAITING: FaultCode.FAILED,
}


def fault_of(error: CommandError) -> RpcFault:
    """The fault for a command's refusal: mostly the one of the same name."""
    code = _NAMED_DIFFERENTLY.get(error.code)
    return RpcFault(FaultCode[error.code.name] if code is None else code, str(error))


def find_runner(context: CommandContext, name: str) -> Runner:
    """The program of that name. Raises RpcFault."""
    runner = groups.find(context.programs, name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runner


async def with_faults(command: Awaitable[Answer]) -> Answer:
    """The result of one of our commands. Raises RpcFault where the command raises CommandError."""
    try:
        return await command
    except CommandError as error:
        raise fault_of(error) from error


async def run_side_by_side(commands: Iterable[tuple[Runner, Awaitable[object]]]) -> list[Struct]:
    """Runs a command for each program, all at once; how each ended, in the order in which they ended."""
    outcomes: list[Struct] = []

    async def run(runner: Runner, command: Awaitable[object]) -> None:
        status, text = FaultCode.SUCCESS, "OK"
        try:
            await with_faults(command)
        except RpcFault as fault:
            status, text = fault.code, str(fault)
        is_ok = status is FaultCode.SUCCESS
        audit.record_outcome(audit.OK if is_ok else status.name, None if is_ok else text, runner.name)
        config = runner.config
        outcomes.append({"name": config.process, "group": config.group, "status": int(status), "description": text})

    await asyncio.gather(*(run(runner, command) for runner, command in commands))
    return outcomes
