"""Supervisor's XML-RPC methods in one fixed table; names from outside are looked up here and nowhere else."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from supervisor.control.base import audit
from supervisor.control.base.audit import Caller
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import CommandError
from supervisor.control.supervisor_api import actions, logs
from supervisor.control.supervisor_api.faults import FaultCode, RpcFault, fault_of
from supervisor.control.supervisor_api.logs import MAX_BYTES
from supervisor.control.supervisor_api.xmlrpc import Value, text_size

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the table. `changes`: requires the right to change things; refused during a shutdown."""

    act: Callable[..., Awaitable[Any]]
    returns: str
    parameters: tuple[str, ...] = ()
    optional: int = 0
    changes: bool = False

    @property
    def signature(self) -> list[str]:
        """The types of the result and of the parameters, in XML-RPC's words."""
        return [self.returns, *(_TYPES[kind][0] for kind in self.parameters)]

    def arguments(self, values: Sequence[Value]) -> list[Value]:
        """The arguments, checked and converted for the method. Raises RpcFault."""
        if not len(self.parameters) - self.optional <= len(values) <= len(self.parameters):
            raise RpcFault(FaultCode.INCORRECT_PARAMETERS)
        return [_argument(kind, value) for kind, value in zip(self.parameters, values, strict=False)]


_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "name": ("string", (str,)),
    "text": ("string", (str,)),
    "secret": ("string", (str,)),
    "data": ("string", (str, bytes)),
    "signal": ("string", (str, int)),
    "count": ("int", (int,)),
    "flag": ("boolean", (bool, int)),
    "calls": ("array", (list,)),
}
"""Kinds of parameter: XML-RPC's type, and the accepted Python types (Supervisor accepts numbers for signals, flags)."""


def _argument(kind: str, value: Value) -> Value:
    if not isinstance(value, _TYPES[kind][1]) or (kind == "count" and isinstance(value, bool)):
        raise RpcFault(FaultCode.INCORRECT_PARAMETERS, f"{value!r:.60}")
    if kind == "flag":
        return bool(value)
    return str(value) if kind == "signal" else value


_READ_LOG = Method(logs.read_log, "string", ("count", "count"))
_READ_STDOUT = Method(logs.read_stdout, "string", ("name", "count", "count"))
_TAIL_STDOUT = Method(logs.tail_stdout, "array", ("name", "count", "count"))
_CLEAR_LOGS = Method(logs.clear_logs, "boolean", ("name",), changes=True)

_SUPERVISOR: Mapping[str, Method] = {
    "addProcessGroup": Method(actions.add_group, "boolean", ("name",), changes=True),
    "clearAllProcessLogs": Method(logs.clear_all_logs, "array", changes=True),
    "clearLog": Method(logs.clear_log, "boolean", changes=True),
    "clearProcessLog": _CLEAR_LOGS,
    "clearProcessLogs": _CLEAR_LOGS,
    "getAPIVersion": Method(actions.api_version, "string"),
    "getAllConfigInfo": Method(actions.all_config_info, "array"),
    "getAllProcessInfo": Method(actions.all_info, "array"),
    "getIdentification": Method(actions.identification, "string"),
    "getPID": Method(actions.daemon_pid, "int"),
    "getProcessInfo": Method(actions.info, "struct", ("name",)),
    "getState": Method(actions.state, "struct"),
    "getSupervisorVersion": Method(actions.daemon_version, "string"),
    "getVersion": Method(actions.api_version, "string"),
    "readLog": _READ_LOG,
    "readMainLog": _READ_LOG,
    "readProcessLog": _READ_STDOUT,
    "readProcessStderrLog": Method(logs.read_stderr, "string", ("name", "count", "count")),
    "readProcessStdoutLog": _READ_STDOUT,
    "reloadConfig": Method(actions.reload_config, "array", changes=True),
    "removeProcessGroup": Method(actions.remove_group, "boolean", ("name",), changes=True),
    "restart": Method(actions.restart, "boolean", changes=True),
    "sendProcessStdin": Method(logs.send_stdin, "boolean", ("name", "data"), changes=True),
    "sendRemoteCommEvent": Method(logs.send_event, "boolean", ("text", "secret"), changes=True),
    "shutdown": Method(actions.shut_down, "boolean", changes=True),
    "signalAllProcesses": Method(actions.signal_all, "array", ("signal",), changes=True),
    "signalProcess": Method(actions.signal, "boolean", ("name", "signal"), changes=True),
    "signalProcessGroup": Method(actions.signal_group, "array", ("name", "signal"), changes=True),
    "startAllProcesses": Method(actions.start_all, "array", ("flag",), optional=1, changes=True),
    "startProcess": Method(actions.start, "boolean", ("name", "flag"), optional=1, changes=True),
    "startProcessGroup": Method(actions.start_group, "array", ("name", "flag"), optional=1, changes=True),
    "stopAllProcesses": Method(actions.stop_all, "array", ("flag",), optional=1, changes=True),
    "stopProcess": Method(actions.stop, "boolean", ("name", "flag"), optional=1, changes=True),
    "stopProcessGroup": Method(actions.stop_group, "array", ("name", "flag"), optional=1, changes=True),
    "tailProcessLog": _TAIL_STDOUT,
    "tailProcessStderrLog": Method(logs.tail_stderr, "array", ("name", "count", "count")),
    "tailProcessStdoutLog": _TAIL_STDOUT,
}


async def _list_methods(context: CommandContext) -> list[str]:
    """The names of all methods."""
    return sorted([*METHODS, MULTICALL])


async def _method_help(context: CommandContext, name: str) -> str:
    """What a method does."""
    return _find(name).act.__doc__ or ""


async def _method_signature(context: CommandContext, name: str) -> list[str]:
    """The types of a method's result and parameters."""
    return _find(name).signature


def _find(name: str) -> Method:
    method = _MULTICALL if name == MULTICALL else METHODS.get(name)
    if method is None:
        raise RpcFault(FaultCode.SIGNATURE_UNSUPPORTED)
    return method


METHODS: Mapping[str, Method] = {
    **{f"supervisor.{name}": method for name, method in _SUPERVISOR.items()},
    "system.listMethods": Method(_list_methods, "array"),
    "system.methodHelp": Method(_method_help, "string", ("text",)),
    "system.methodSignature": Method(_method_signature, "array", ("text",)),
}
MULTICALL = "system.multicall"


async def _next_turn() -> None:
    await asyncio.sleep(0)


async def call(
    context: CommandContext,
    caller: Caller,
    name: str,
    arguments: Sequence[Value],
    take_turn: Callable[[], Awaitable[None]] = _next_turn,
) -> Value:
    """The result of a method. Raises RpcFault, and CommandError if the caller may not change anything.

    `take_turn`: returns in the turn of the event loop in which the next call of a multicall may be made.
    """
    if name == MULTICALL:
        (calls,) = _MULTICALL.arguments(arguments)
        assert isinstance(calls, list)
        return await _multicall_results(context, caller, calls, take_turn)
    method = METHODS.get(name)
    if method is None:
        raise RpcFault(FaultCode.UNKNOWN_METHOD)
    if not method.changes:
        result: Value = await method.act(context, *method.arguments(arguments))
        return result
    with audit.audited(audit.Change(caller, name, dict(zip(method.parameters, arguments, strict=False)))):
        caller.require_change_rights()
        if context.programs.closing:
            raise RpcFault(FaultCode.SHUTDOWN_STATE)
        changed: Value = await method.act(context, *method.arguments(arguments))
        return changed


async def _multicall_results(
    context: CommandContext, caller: Caller, calls: Sequence[Value], take_turn: Callable[[], Awaitable[None]]
) -> list[Value]:
    """The results of a multicall. Other tasks run after each call; the size of all results is limited.

    If it is cancelled, the call that is being made goes on, and no further one begins.
    """
    size_bytes, results = 0, list[Value]()
    for item in calls:
        await take_turn()
        if size_bytes < MAX_BYTES:
            results.append(await asyncio.shield(_call_result(context, caller, item)))
            size_bytes += text_size(results[-1])
        else:
            results.append(
                _struct(RpcFault(FaultCode.FAILED, "the earlier calls gave 16 MiB, the limit; make another multicall"))
            )
    return results


async def _call_result(context: CommandContext, caller: Caller, described: Value) -> Value:
    """One call of a multicall: its result, or its fault as a struct."""
    try:
        name, parameters = _call_in(described)
        return await call(context, caller, name, parameters)
    except RpcFault as fault:
        return _struct(fault)
    except CommandError as error:
        return _struct(fault_of(error))


def _struct(fault: RpcFault) -> dict[str, Value]:
    return {"faultCode": int(fault.code), "faultString": str(fault)}


def _call_in(described: Value) -> tuple[str, Sequence[Value]]:
    if not isinstance(described, dict):
        raise RpcFault(FaultCode.INCORRECT_PARAMETERS, "a call is a struct of methodName and params")
    name, parameters = described.get("methodName"), described.get("params", [])
    if not isinstance(name, str):
        raise RpcFault(FaultCode.INCORRECT_PARAMETERS, "No methodName")
    if name == MULTICALL:
        raise RpcFault(FaultCode.INCORRECT_PARAMETERS, "Recursive system.multicall forbidden")
    if not isinstance(parameters, list):
        raise RpcFault(FaultCode.INCORRECT_PARAMETERS, "params is an array")
    return name, parameters


async def _multicall(context: CommandContext, calls: list[Value]) -> list[Value]:
    """Several calls, an array of structs of methodName and params, one after another: an array of their results."""
    raise NotImplementedError  # `call` runs it, because it needs to know the caller


_MULTICALL = Method(_multicall, "array", ("calls",))
