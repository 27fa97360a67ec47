"""What Supervisor's methods do: each a call of our own command table, in Supervisor's arguments, results and faults."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supervisor import __version__
from supervisor.control import log_reading, wire
from supervisor.control.asked import Daemon
from supervisor.control.commands import TABLE
from supervisor.control.errors import CommandError
from supervisor.control.faults import FaultCode, RpcFault, fault_of
from supervisor.control.rpc_info import config_info, process_info
from supervisor.core.facts import State
from supervisor.runner.runner import Runner

API_VERSION = "3.0"  # the one handshake of Supervisor's client

UP = frozenset({"STARTING", "RUNNING", "BACKOFF"})  # these a start refuses and a stop takes
SIGNALLABLE = frozenset({"STARTING", "RUNNING", "STOPPING"})

Struct = dict[str, Any]


# --- the daemon -----------------------------------------------------------------------------------------------------


async def api_version(daemon: Daemon) -> str:
    """The interface's version."""
    return API_VERSION


async def daemon_version(daemon: Daemon) -> str:
    """The daemon's own version."""
    return __version__


async def identification(daemon: Daemon) -> str:
    """The daemon's name: `identifier` in [supervisord]."""
    return daemon.settings.identifier


async def state(daemon: Daemon) -> Struct:
    """Whether the daemon runs (1), shuts down (-1) or is about to begin anew (0)."""
    if not daemon.programs.closing:
        return {"statecode": 1, "statename": "RUNNING"}
    if daemon.is_reloading():
        return {"statecode": 0, "statename": "RESTARTING"}
    return {"statecode": -1, "statename": "SHUTDOWN"}


async def daemon_pid(daemon: Daemon) -> int:
    """The daemon's process id."""
    return os.getpid()


async def read_log(daemon: Daemon, offset: int, length: int) -> str:
    """A piece of the daemon's log."""
    return await asyncio.to_thread(log_reading.read, daemon.settings.logfile, offset, length)


async def clear_log(daemon: Daemon) -> bool:
    """Empties the daemon's log and deletes its backups."""
    await asyncio.to_thread(log_reading.clear, daemon.settings.logfile)
    return True


async def shut_down(daemon: Daemon) -> bool:
    """Flushes and stops everything, then ends the daemon; true at once."""
    await _do(daemon, "shutdown")
    return True


async def restart(daemon: Daemon) -> bool:
    """Stops everything and begins anew with the configuration read again; true at once."""
    await _do(daemon, "reload")
    return True


# --- the configuration ----------------------------------------------------------------------------------------------


async def reload_config(daemon: Daemon) -> list[list[list[str]]]:
    """Reads the configuration, changes nothing; names that are added, changed, removed."""
    changes = await _do(daemon, "reread")
    return [[changes["added"], changes["changed"], changes["removed"]]]


async def add_group(daemon: Daemon, name: str) -> bool:
    """Takes a program of the configuration last read into use."""
    await _do(daemon, "add", name=name)
    return True


async def remove_group(daemon: Daemon, name: str) -> bool:
    """Takes a stopped program out of use."""
    await _do(daemon, "remove", name=name)
    return True


async def all_config_info(daemon: Daemon) -> list[Struct]:
    """Every configured program, in use or not."""
    programs = daemon.programs
    return [config_info(config, name in programs.runners) for name, config in sorted(programs.configured.items())]


# --- programs -------------------------------------------------------------------------------------------------------


async def info(daemon: Daemon, name: str) -> Struct:
    """Where a program stands."""
    return process_info(_runner(daemon, name))


async def all_info(daemon: Daemon) -> list[Struct]:
    """Where every program stands, by name."""
    return [process_info(runner) for _, runner in sorted(daemon.programs.runners.items())]


async def start(daemon: Daemon, name: str, wait: bool = True) -> bool | list[Struct]:
    """Starts a program; with `wait`, returns when it has started."""
    if _is_group(name):
        return await start_group(daemon, name, wait)
    await _start(daemon, _runner(daemon, name).name, wait)
    return True


async def start_group(daemon: Daemon, name: str, wait: bool = True) -> list[Struct]:
    """Starts what does not run of a group: here a program is a group of its own."""
    return await _start_each(daemon, [_group(daemon, name)], wait)


async def start_all(daemon: Daemon, wait: bool = True) -> list[Struct]:
    """Starts every program that does not run."""
    return await _start_each(daemon, _by_priority(daemon), wait)


async def _start_each(daemon: Daemon, runners: Iterable[Runner], wait: bool) -> list[Struct]:
    return await _results([(each.name, _start(daemon, each.name, wait)) for each in runners if _word(each) not in UP])


async def _start(daemon: Daemon, name: str, wait: bool) -> None:
    runner = daemon.programs.runners[name]
    if runner.state is State.BACKOFF:
        raise RpcFault(FaultCode.ALREADY_STARTED, name)
    try:
        await _do(daemon, "start", name=name, wait=wait)
    except RpcFault as fault:
        if fault.code is FaultCode.ABNORMAL_TERMINATION and runner.state in (State.BACKOFF, State.FAILED):
            raise RpcFault(FaultCode.SPAWN_ERROR, f"{name}: {runner.reason}") from fault
        raise


async def stop(daemon: Daemon, name: str, wait: bool = True) -> bool | list[Struct]:
    """Flushes and stops a program; with `wait`, returns when its process is gone."""
    if _is_group(name):
        return await stop_group(daemon, name, wait)
    runner = _runner(daemon, name)
    if _word(runner) == "STOPPING":
        raise RpcFault(FaultCode.NOT_RUNNING, name)
    await _do(daemon, "stop", name=runner.name, wait=wait)
    return True


async def stop_group(daemon: Daemon, name: str, wait: bool = True) -> list[Struct]:
    """Stops what runs of a group."""
    return await _stop_each(daemon, [_group(daemon, name)], wait)


async def stop_all(daemon: Daemon, wait: bool = True) -> list[Struct]:
    """Stops every program that runs, side by side."""
    return await _stop_each(daemon, _by_priority(daemon), wait)


async def _stop_each(daemon: Daemon, runners: Iterable[Runner], wait: bool) -> list[Struct]:
    names = [each.name for each in runners if _word(each) in UP]
    return await _results([(name, _do(daemon, "stop", name=name, wait=wait)) for name in names])


async def signal(daemon: Daemon, name: str, signal: str) -> bool | list[Struct]:
    """Sends a signal, by name or number, to a program's process."""
    if _is_group(name):
        return await signal_group(daemon, name, signal)
    await _do(daemon, "signal", name=_runner(daemon, name).name, signal=signal)
    return True


async def signal_group(daemon: Daemon, name: str, signal: str) -> list[Struct]:
    """Sends a signal to what runs of a group."""
    return await _signal_each(daemon, [_group(daemon, name)], signal)


async def signal_all(daemon: Daemon, signal: str) -> list[Struct]:
    """Sends a signal to every program that runs."""
    return await _signal_each(daemon, _by_priority(daemon), signal)


async def _signal_each(daemon: Daemon, runners: Iterable[Runner], signal: str) -> list[Struct]:
    names = [each.name for each in runners if _word(each) in SIGNALLABLE]
    return await _results([(name, _do(daemon, "signal", name=name, signal=signal)) for name in names])


# --- what programs print and are told -------------------------------------------------------------------------------


async def read_stdout(daemon: Daemon, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard output."""
    return await asyncio.to_thread(log_reading.read, logfile(_runner(daemon, name), "stdout"), offset, length)


async def read_stderr(daemon: Daemon, name: str, offset: int, length: int) -> str:
    """A piece of the log of a program's standard error."""
    return await asyncio.to_thread(log_reading.read, logfile(_runner(daemon, name), "stderr"), offset, length)


async def tail_stdout(daemon: Daemon, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard output: text, size of the file, whether it holds more than that."""
    path = logfile(_runner(daemon, name), "stdout")
    return list(await asyncio.to_thread(log_reading.tail, path, offset, length))


async def tail_stderr(daemon: Daemon, name: str, offset: int, length: int) -> list[Any]:
    """The end of the log of standard error: text, size of the file, whether it holds more than that."""
    path = logfile(_runner(daemon, name), "stderr")
    return list(await asyncio.to_thread(log_reading.tail, path, offset, length))


async def clear_logs(daemon: Daemon, name: str) -> bool:
    """Empties a program's logs and deletes their backups."""
    await _do(daemon, "clear", name=_runner(daemon, name).name)
    return True


async def clear_all_logs(daemon: Daemon) -> list[Struct]:
    """Empties every program's logs and deletes their backups."""
    names = [runner.name for runner in _by_priority(daemon)]
    results = await _results([(name, _do(daemon, "clear", name=name)) for name in names])
    return sorted(results, key=lambda result: names.index(result["name"]))


async def send_stdin(daemon: Daemon, name: str, chars: str) -> bool:
    """Would write to a program's standard input, which is empty here: NO_FILE, as where a program has closed it."""
    runner = _runner(daemon, name)
    if runner.acts.pid is None:
        raise RpcFault(FaultCode.NOT_RUNNING, name)
    raise RpcFault(FaultCode.NO_FILE, f"{name} is not read from: programs have no standard input here")


async def send_event(daemon: Daemon, type: str, data: str) -> bool:
    """Tells every event listener; there are none, so nobody hears it."""
    return True


# --- common to them -------------------------------------------------------------------------------------------------


def logfile(runner: Runner, channel: str) -> Path | None:
    """The file that a channel (stdout or stderr) is kept in."""
    return runner.config.stdout_logfile if channel == "stdout" else runner.config.stderr_logfile


def find(daemon: Daemon, name: str) -> Runner | None:
    """The program called `NAME` or `NAME:NAME`."""
    group, colon, process = name.partition(":")
    return daemon.programs.runners.get(group) if not colon or process == group else None


def _runner(daemon: Daemon, name: str) -> Runner:
    runner = find(daemon, name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runner


def _is_group(name: str) -> bool:
    return name.endswith((":", ":*"))


def _group(daemon: Daemon, name: str) -> Runner:
    runner = daemon.programs.runners.get(name.removesuffix("*").removesuffix(":") if _is_group(name) else name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runner


def _by_priority(daemon: Daemon) -> list[Runner]:
    return sorted(daemon.programs.runners.values(), key=lambda runner: (runner.config.priority, runner.name))


def _word(runner: Runner) -> str:
    return wire.wire_state(runner)[0]


async def _do(daemon: Daemon, command: str, **arguments: object) -> Struct:
    """The command of our own table. Raises RpcFault."""
    try:
        return await TABLE[command].act(daemon, arguments)
    except CommandError as error:
        raise fault_of(error) from error


async def _results(works: list[tuple[str, Any]]) -> list[Struct]:
    """Does all of it side by side; how each ended, in the order they ended."""
    results: list[Struct] = []

    async def book(name: str, work: Any) -> None:
        status, text = FaultCode.SUCCESS, "OK"
        try:
            await work
        except RpcFault as fault:
            status, text = fault.code, str(fault)
        results.append({"name": name, "group": name, "status": int(status), "description": text})

    await asyncio.gather(*(book(name, work) for name, work in works))
    return results
