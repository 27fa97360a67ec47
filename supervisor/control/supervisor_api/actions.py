"""Supervisor's methods on the daemon, its configuration and its programs: our commands, its arguments and faults."""

import os
from collections.abc import Iterable
from pathlib import Path

from supervisor import __version__
from supervisor.control.base.context import CommandContext, ProgramName
from supervisor.control.commands import configuration, descriptions, groups, start_stop, table
from supervisor.control.commands.processes import SignalRequest, send_signal
from supervisor.control.commands.start_stop import StartRequest, StopRequest
from supervisor.control.supervisor_api.faults import (
    FaultCode,
    RpcFault,
    Struct,
    find_runner,
    run_side_by_side,
    with_faults,
)
from supervisor.control.supervisor_api.process_info import config_info, process_info, uids
from supervisor.core.program.facts import State
from supervisor.runner.fleet.ordering import StartTurn, StartTurns, in_start_order, in_stop_order
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

API_VERSION = "3.0"  # the one handshake of Supervisor's client

UP = frozenset({"STARTING", "RUNNING", "BACKOFF"})  # a start is refused for these, and a stop accepted
SIGNALLABLE = frozenset({"STARTING", "RUNNING", "STOPPING"})

USERS = Path("/etc/passwd")  # the key by which look-ups of users share a thread


# --- the daemon -----------------------------------------------------------------------------------------------------


async def api_version(context: CommandContext) -> str:
    """The interface's version."""
    return API_VERSION


async def daemon_version(context: CommandContext) -> str:
    """The daemon's own version."""
    return __version__


async def identification(context: CommandContext) -> str:
    """The daemon's name: `identifier` in [supervisord]."""
    return context.settings.identifier


async def state(context: CommandContext) -> Struct:
    """Whether the daemon runs (1), shuts down (-1) or restarts (0)."""
    if not context.programs.closing:
        return {"statecode": 1, "statename": "RUNNING"}
    if context.is_reloading():
        return {"statecode": 0, "statename": "RESTARTING"}
    return {"statecode": -1, "statename": "SHUTDOWN"}


async def daemon_pid(context: CommandContext) -> int:
    """The daemon's process id."""
    return os.getpid()


async def shut_down(context: CommandContext) -> bool:
    """Flushes and stops everything, then ends the daemon; true at once."""
    await with_faults(table.shutdown(context, table.ShutdownRequest()))
    return True


async def restart(context: CommandContext) -> bool:
    """Restarts the daemon with the configuration read again; true at once."""
    await with_faults(table.reload(context))
    return True


# --- the configuration ----------------------------------------------------------------------------------------------


async def reload_config(context: CommandContext) -> list[list[list[str]]]:
    """Reads the configuration, changes nothing; gives the names of groups that would be added, changed, removed."""
    await with_faults(configuration.reread_with(context, is_whole=True))
    return [list(groups.changed(context.programs, context.programs.configuration.changes()))]


async def add_group(context: CommandContext, name: str) -> bool:
    """Begins to supervise a group of the configuration last read."""
    if groups.members(context.programs, name):
        raise RpcFault(FaultCode.ALREADY_ADDED, name)
    names = groups.configured(context.programs.configuration.programs, name)
    if not names:
        raise RpcFault(FaultCode.BAD_NAME, name)
    await with_faults(configuration.add(context, ProgramName(name)))
    return True


async def remove_group(context: CommandContext, name: str) -> bool:
    """Ceases to supervise a group of which nothing runs."""
    runners = _group(context, name)
    if any(_word(member) in (*UP, "STOPPING") for member in runners):
        raise RpcFault(FaultCode.STILL_RUNNING, name)
    for runner in runners:
        await with_faults(configuration.remove(context, configuration.RemoveRequest(runner.name)))
    return True


async def all_config_info(context: CommandContext) -> list[Struct]:
    """Every configured program, in use or not."""
    programs = context.programs
    configured = sorted(programs.configuration.programs.values(), key=lambda config: (config.process, config.group))
    known = await context.disks.run(USERS, uids, {program.user for program in configured})
    return [config_info(program, program.name in programs.runners, known[program.user]) for program in configured]


# --- programs -------------------------------------------------------------------------------------------------------


async def info(context: CommandContext, name: str) -> Struct:
    """The state of a program."""
    return process_info(find_runner(context, name))


async def all_info(context: CommandContext) -> list[Struct]:
    """The state of every program, by group and name."""
    return [process_info(runner) for runner in groups.in_order(context.programs.runners.values())]


async def start(context: CommandContext, name: str, wait: bool = True) -> bool | list[Struct]:
    """Starts a program; with `wait`, returns when it has started."""
    if groups.is_group(name):
        return await start_group(context, name, wait)
    await _start(context, find_runner(context, name).name, wait)
    return True


async def start_group(context: CommandContext, name: str, wait: bool = True) -> list[Struct]:
    """Starts the programs of a group that do not run."""
    return await _start_each(context, _group(context, name), wait)


async def start_all(context: CommandContext, wait: bool = True) -> list[Struct]:
    """Starts every program that does not run, in the order of their priority."""
    return await _start_each(context, in_start_order(context.programs.runners.values()), wait)


async def _start_each(context: CommandContext, runners: Iterable[Runner], wait: bool) -> list[Struct]:
    down = [runner for runner in runners if _word(runner) not in UP]
    turns = StartTurns(len(down))
    starts = [(runner, _start(context, runner.name, wait, turn)) for runner, turn in zip(down, turns, strict=True)]
    (started,) = await turns.run_all([run_side_by_side(starts)])
    return started


async def _start(context: CommandContext, name: str, wait: bool, turn: StartTurn | None = None) -> None:
    try:
        await _start_in_turn(context, name, wait, turn)
    finally:
        if turn is not None:
            turn.give_up()


async def _start_in_turn(context: CommandContext, name: str, wait: bool, turn: StartTurn | None) -> None:
    runner = context.programs.runners.get(name)
    if runner is None:
        raise RpcFault(FaultCode.BAD_NAME, name)
    if runner.state in (State.BACKOFF, State.STARTING):
        raise RpcFault(FaultCode.ALREADY_STARTED, name)
    try:
        await with_faults(start_stop.start(context, StartRequest(name, wait), turn))
    except RpcFault as fault:
        if fault.code is FaultCode.SPAWN_ERROR:
            raise RpcFault(FaultCode.SPAWN_ERROR, f"{name}: {runner.reason}") from fault
        raise


async def stop(context: CommandContext, name: str, wait: bool = True) -> bool | list[Struct]:
    """Flushes and stops a program; with `wait`, returns when its process is gone."""
    if groups.is_group(name):
        return await stop_group(context, name, wait)
    runner = find_runner(context, name)
    if _word(runner) == "STOPPING" and not _starts_again(runner):
        raise RpcFault(FaultCode.NOT_RUNNING, name)
    await _stop(context, runner.name, wait)
    return True


async def _stop(context: CommandContext, name: str, wait: bool) -> None:
    """Stops a program. Raises RpcFault also if it has stopped but its last steps are not saved: FAILED is the fault
    whose text stock clients show as it is.
    """
    stopped = await with_faults(start_stop.stop(context, StopRequest(name, wait)))
    if stopped.is_loss:
        raise RpcFault(FaultCode.FAILED, f"{name}: {stopped.text}")


async def stop_group(context: CommandContext, name: str, wait: bool = True) -> list[Struct]:
    """Stops the programs of a group that run."""
    return await _stop_each(context, _group(context, name), wait)


async def stop_all(context: CommandContext, wait: bool = True) -> list[Struct]:
    """Stops every program that runs, side by side, the signals sent in the reverse order of their start."""
    return await _stop_each(context, context.programs.runners.values(), wait)


async def _stop_each(context: CommandContext, runners: Iterable[Runner], wait: bool) -> list[Struct]:
    in_order = list(in_stop_order(runners))
    for runner in in_order:
        # only then it is known whether a worker of an earlier daemon runs
        await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)
    chosen = [runner for runner in in_order if _word(runner) in UP or _starts_again(runner)]
    return await run_side_by_side([(runner, _stop(context, runner.name, wait)) for runner in chosen])


async def signal(context: CommandContext, name: str, signal: str) -> bool | list[Struct]:
    """Sends a signal, by name or number, to a program's process."""
    if groups.is_group(name):
        return await signal_group(context, name, signal)
    await with_faults(send_signal(context, SignalRequest(find_runner(context, name).name, signal)))
    return True


async def signal_group(context: CommandContext, name: str, signal: str) -> list[Struct]:
    """Sends a signal to the programs of a group that run."""
    return await _signal_each(context, _group(context, name), signal)


async def signal_all(context: CommandContext, signal: str) -> list[Struct]:
    """Sends a signal to every program that runs."""
    return await _signal_each(context, in_start_order(context.programs.runners.values()), signal)


async def _signal_each(context: CommandContext, runners: Iterable[Runner], signal: str) -> list[Struct]:
    chosen = [runner for runner in runners if _word(runner) in SIGNALLABLE]
    return await run_side_by_side(
        [(runner, send_signal(context, SignalRequest(runner.name, signal))) for runner in chosen]
    )


def _group(context: CommandContext, name: str) -> list[Runner]:
    runners = groups.members(context.programs, groups.group_of(name))
    if not runners:
        raise RpcFault(FaultCode.BAD_NAME, name)
    return runners


def _starts_again(runner: Runner) -> bool:
    """Whether it is being stopped to start again, as an unhealthy one is; Supervisor's stop only on request."""
    return runner.is_stopping and runner.wanted


def _word(runner: Runner) -> str:
    return descriptions.wire_state(runner)[0]
