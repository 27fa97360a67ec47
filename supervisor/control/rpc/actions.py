"""What Supervisor's methods do: each a call of our own command table, in Supervisor's arguments, results and faults."""

import os
from collections.abc import Iterable
from pathlib import Path

from supervisor import __version__
from supervisor.control.base.context import Daemon
from supervisor.control.base.faults import FaultCode, RpcFault
from supervisor.control.commands import answers, groups, start_stop
from supervisor.control.rpc.calls import (
    Struct,
    as_rpc,
    do,
    results,
    runner_of,
)
from supervisor.control.rpc.info import config_info, process_info, uids
from supervisor.core.program.facts import State
from supervisor.runner.fleet.ordering import (
    Turn,
    Turns,
    by_priority,
    last_first,
)
from supervisor.runner.program.runner import Runner

API_VERSION = "3.0"  # the one handshake of Supervisor's client

UP = frozenset({"STARTING", "RUNNING", "BACKOFF"})  # these a start refuses and a stop takes
SIGNALLABLE = frozenset({"STARTING", "RUNNING", "STOPPING"})

USERS = Path("/etc/passwd")  # who asks for users shares a thread, as who asks for files of one folder does


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


async def shut_down(daemon: Daemon) -> bool:
    """Flushes and stops everything, then ends the daemon; true at once."""
    await do(daemon, "shutdown")
    return True


async def restart(daemon: Daemon) -> bool:
    """Stops everything and begins anew with the configuration read again; true at once."""
    await do(daemon, "reload")
    return True


# --- the configuration ----------------------------------------------------------------------------------------------


async def reload_config(daemon: Daemon) -> list[list[list[str]]]:
    """Reads the configuration, changes nothing; names of groups that are added, changed, removed."""
    await do(daemon, "reread")
    return [list(groups.changed(daemon.programs, daemon.programs.changes()))]


async def add_group(daemon: Daemon, name: str) -> bool:
    """Takes a group of the configuration last read into use."""
    if groups.members(daemon.programs, name):
        raise RpcFault(FaultCode.ALREADY_ADDED, name)
    names = groups.configured(daemon.programs.configured, name)
    if not names:
        raise RpcFault(FaultCode.BAD_NAME, name)
    await daemon.programs.update(names)
    return True


async def remove_group(daemon: Daemon, name: str) -> bool:
    """Takes a group of which nothing runs out of use."""
    runners = _group(daemon, name)
    if any(_word(each) in (*UP, "STOPPING") for each in runners):
        raise RpcFault(FaultCode.STILL_RUNNING, name)
    for runner in runners:
        await do(daemon, "remove", name=runner.name)
    return True


async def all_config_info(daemon: Daemon) -> list[Struct]:
    """Every configured program, in use or not."""
    programs = daemon.programs
    configured = sorted(programs.configured.values(), key=lambda each: (each.process, each.group))
    known = await daemon.disks.run(USERS, uids, {each.user for each in configured})
    return [config_info(each, each.name in programs.runners, known[each.user]) for each in configured]


# --- programs -------------------------------------------------------------------------------------------------------


async def info(daemon: Daemon, name: str) -> Struct:
    """Where a program stands."""
    return process_info(runner_of(daemon, name))


async def all_info(daemon: Daemon) -> list[Struct]:
    """Where every program stands, by group and name."""
    return [process_info(runner) for runner in groups.in_order(daemon.programs.runners.values())]


async def start(daemon: Daemon, name: str, wait: bool = True) -> bool | list[Struct]:
    """Starts a program; with `wait`, returns when it has started."""
    if groups.is_group(name):
        return await start_group(daemon, name, wait)
    await _start(daemon, runner_of(daemon, name).name, wait)
    return True


async def start_group(daemon: Daemon, name: str, wait: bool = True) -> list[Struct]:
    """Starts what does not run of a group."""
    return await _start_each(daemon, _group(daemon, name), wait)


async def start_all(daemon: Daemon, wait: bool = True) -> list[Struct]:
    """Starts every program that does not run, in the order of their priority."""
    return await _start_each(daemon, by_priority(daemon.programs.runners.values()), wait)


async def _start_each(daemon: Daemon, runners: Iterable[Runner], wait: bool) -> list[Struct]:
    down = [each for each in runners if _word(each) not in UP]
    turns = Turns(len(down))
    starts = [(each, _start(daemon, each.name, wait, turn)) for each, turn in zip(down, turns, strict=True)]
    (started,) = await turns.during([results(starts)])
    return started


async def _start(daemon: Daemon, name: str, wait: bool, turn: Turn | None = None) -> None:
    try:
        await _start_in_turn(daemon, name, wait, turn)
    finally:
        if turn is not None:
            turn.give_up()


async def _start_in_turn(daemon: Daemon, name: str, wait: bool, turn: Turn | None) -> None:
    runner = daemon.programs.runners.get(name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    if runner.state is State.BACKOFF:
        raise RpcFault(FaultCode.ALREADY_STARTED, name)
    try:
        await as_rpc(start_stop.start_in_turn(daemon, {"name": name, "wait": wait}, turn))
    except RpcFault as fault:
        if fault.code is FaultCode.ABNORMAL_TERMINATION and runner.state in (State.BACKOFF, State.FAILED):
            raise RpcFault(FaultCode.SPAWN_ERROR, f"{name}: {runner.reason}") from fault
        raise


async def stop(daemon: Daemon, name: str, wait: bool = True) -> bool | list[Struct]:
    """Flushes and stops a program; with `wait`, returns when its process is gone."""
    if groups.is_group(name):
        return await stop_group(daemon, name, wait)
    runner = runner_of(daemon, name)
    if _word(runner) == "STOPPING" and not _starts_again(runner):
        raise RpcFault(FaultCode.NOT_RUNNING, name)
    await do(daemon, "stop", name=runner.name, wait=wait)
    return True


async def stop_group(daemon: Daemon, name: str, wait: bool = True) -> list[Struct]:
    """Stops what runs of a group."""
    return await _stop_each(daemon, _group(daemon, name), wait)


async def stop_all(daemon: Daemon, wait: bool = True) -> list[Struct]:
    """Stops every program that runs, side by side; they are told in the reverse order of their start."""
    return await _stop_each(daemon, daemon.programs.runners.values(), wait)


async def _stop_each(daemon: Daemon, runners: Iterable[Runner], wait: bool) -> list[Struct]:
    in_order = list(last_first(runners))
    for each in in_order:
        await each.looked_back.wait()  # before that nobody knows whether it has a worker of an earlier daemon
    chosen = [each for each in in_order if _word(each) in UP or _starts_again(each)]
    return await results([(each, do(daemon, "stop", name=each.name, wait=wait)) for each in chosen])


async def signal(daemon: Daemon, name: str, signal: str) -> bool | list[Struct]:
    """Sends a signal, by name or number, to a program's process."""
    if groups.is_group(name):
        return await signal_group(daemon, name, signal)
    await do(daemon, "signal", name=runner_of(daemon, name).name, signal=signal)
    return True


async def signal_group(daemon: Daemon, name: str, signal: str) -> list[Struct]:
    """Sends a signal to what runs of a group."""
    return await _signal_each(daemon, _group(daemon, name), signal)


async def signal_all(daemon: Daemon, signal: str) -> list[Struct]:
    """Sends a signal to every program that runs."""
    return await _signal_each(daemon, by_priority(daemon.programs.runners.values()), signal)


async def _signal_each(daemon: Daemon, runners: Iterable[Runner], signal: str) -> list[Struct]:
    chosen = [each for each in runners if _word(each) in SIGNALLABLE]
    return await results([(each, do(daemon, "signal", name=each.name, signal=signal)) for each in chosen])


def _group(daemon: Daemon, name: str) -> list[Runner]:
    runners = groups.members(daemon.programs, groups.group_of(name))
    if not runners:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runners


def _starts_again(runner: Runner) -> bool:
    """Whether it stops, as one that is not well does, to start again; Supervisor's programs stop only when told to."""
    return runner.is_stopping and runner.wanted


def _word(runner: Runner) -> str:
    return answers.wire_state(runner)[0]
