"""The action gpus: the GPUs of the daemon's host, and the return of one that was left out."""

from typing import Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError
from supervisor.ctl.terminal import ExitStatus, Terminal

RETURN = "--return"
HEAD = ("GPU", "UUID", "NAME", "USED BY", "STATE", "FAULTS", "LAST FAULT", "LEFT OUT BECAUSE")


def gpus(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists the GPUs, or returns one."""
    if not arguments:
        return _list(terminal)
    option, equals, gpu = arguments[0].partition("=")
    gpu = gpu if equals else "".join(arguments[1:])
    if option != RETURN or len(arguments) > (1 if equals else 2):
        raise UsageError("Error: gpus accepts no arguments but --return UUID")
    if not gpu:
        raise UsageError(f"Error: {RETURN} requires the UUID of a GPU; `gpus` lists them")
    answer = terminal.client.call("gpu_return", gpu=gpu)
    terminal.print_result(answer, [f"{answer['gpu']}: returned; jobs get it with their next start"])
    return ExitStatus.OK


def _list(terminal: Terminal) -> ExitStatus:
    answer = terminal.client.call("gpus")
    rows = [_row(gpu) for gpu in answer["gpus"]]
    lines = render.table(HEAD, rows) if rows else [_nothing(answer)]
    if not answer["acts"]:
        lines.append("faults are only reported (on_gpu_fault = report)")
    lines += [f"trouble: {trouble}" for trouble in answer["troubles"]]
    terminal.print_result(answer, lines)
    return ExitStatus.OK


def _nothing(answer: dict[str, Any]) -> str:
    return "no GPU is known yet" if answer["is_watched"] else "no GPUs: this host has no driver of NVIDIA's"


def _row(gpu: dict[str, Any]) -> tuple[str, ...]:
    at = gpu["last_fault_wall_at"]
    because = gpu["left_out"] or gpu["trouble"] or ""
    if gpu["action"] is not None:
        because = f"{because} ({gpu['action']})"
    return (
        "" if gpu["index"] is None else str(gpu["index"]),
        gpu["uuid"] or gpu["address"],
        gpu["name"],
        ", ".join(gpu["used_by"]),
        gpu["state"],
        str(gpu["faults"] or ""),
        "" if gpu["last_fault"] is None else f"{render.moment(at)} {gpu['last_fault']}",
        because,
    )
