"""Actions on checkpoints: checkpoint, export, checkpoints."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor.ctl import render
from supervisor.ctl.actions.base import Arguments, UsageError, call_for_program, one_name
from supervisor.ctl.actions.bulk import BulkCommand, Outcome, run_bulk
from supervisor.ctl.actions.start_stop import expand_names
from supervisor.ctl.naming import Program
from supervisor.ctl.terminal import ExitStatus, Terminal
from supervisor.protocol.installation import install_extra
from supervisor.protocol.layout import parse_name

if TYPE_CHECKING:
    from supervisor.protocol.checkpoints.verification import VerifiedCheckpoint

RUNNING = 20


def checkpoint(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Makes each job write a checkpoint now and train on."""
    if not arguments:
        raise UsageError("Error: checkpoint requires a process name")
    return run_bulk(terminal, BulkCommand("checkpoint", _saved), expand_names(terminal, arguments, _is_training))


def export(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Makes each job export its model as it is now and train on."""
    if not arguments:
        raise UsageError("Error: export requires a process name")
    command = BulkCommand("export", lambda outcome: f"exported to {outcome.result['path']}")
    return run_bulk(terminal, command, expand_names(terminal, arguments, _is_training))


def _is_training(program: Program) -> bool:
    return program["job"] is not None and program["wire_code"] == RUNNING


def _saved(outcome: Outcome) -> str:
    done = outcome.result
    mirrored = "" if done.get("upload_s") is None else f", in the mirror {done['upload_s']:.1f} s later"
    return f"saved {done['checkpoint']} ({render.size(done['size_bytes'])} in {done['save_s']:.1f} s{mirrored})"


def checkpoints(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Lists a job's checkpoints, newest first, and verifies them unless told otherwise."""
    if "--verify" in arguments:
        return _verify_folder(terminal, [argument for argument in arguments if argument != "--verify"])
    verify = "--no-verify" not in arguments
    name = one_name("checkpoints", [argument for argument in arguments if argument != "--no-verify"])
    answer = call_for_program(terminal, "checkpoints", name, verify=verify)
    if answer is None:
        return ExitStatus.ERROR
    terminal.print_result(answer, _table(answer["checkpoints"], answer.get("mirror")) or ["no checkpoints yet"])
    return ExitStatus.OK


def _verify_folder(terminal: Terminal, arguments: Arguments) -> ExitStatus:
    """Verifies the checkpoints at a path or URL without a daemon; OK if at least one counts and all are whole."""
    if len(arguments) != 1:
        raise UsageError("Error: checkpoints --verify requires one folder, checkpoint or URL")
    place = arguments[0]
    try:
        listed = [asdict(verified_checkpoint) for verified_checkpoint in _verified(place)]
    except _CannotVerify as error:
        terminal.print_line(f"{place}: ERROR ({error})")
        return ExitStatus.ERROR
    hint = "" if "/" in place else f"; those of a program: supervisorctl checkpoints {place}"
    terminal.print_result({"checkpoints": listed}, _table(listed) or [f"{place}: ERROR (no checkpoints there{hint})"])
    proven = [entry for entry in listed if not entry["quarantined"]]
    is_proven = any(entry["counts"] for entry in proven) and all(entry["valid"] for entry in proven)
    return ExitStatus.OK if is_proven else ExitStatus.ERROR


class _CannotVerify(Exception):
    """Nothing can be said about the checkpoints; the text says why."""


def _verified(place: str) -> "list[VerifiedCheckpoint]":
    """The checkpoints in a folder, or below the URL of a store. Raises _CannotVerify."""
    try:
        if "://" in place:
            return _verified_in_store(place)
        # only here: it takes a fifth of the time supervisorctl starts in
        from supervisor.protocol.checkpoints.verification import verify_all

        return verify_all(Path(place).expanduser())
    except OSError as error:
        raise _CannotVerify(error.strerror or str(error)) from error


def _verified_in_store(url: str) -> "list[VerifiedCheckpoint]":
    from supervisor.protocol.mirror.keys import store_url

    try:
        store_url(url)
    except ValueError as error:
        raise _CannotVerify(f"the URL {error}") from error
    try:
        from supervisor.protocol.mirror.store import StoreError
        from supervisor.protocol.mirror.verification import verify_url
    except ModuleNotFoundError as error:
        remedy = f"install it with: {install_extra('mirror')}"
        raise _CannotVerify(f"it needs the package {error.name}; {remedy}") from error
    try:
        return verify_url(url)
    except StoreError as error:
        raise _CannotVerify(str(error)) from error


def _table(checkpoints: Iterable[dict[str, Any]], mirror: Sequence[str] | None = None) -> list[str]:
    """`mirror`: the names of those in the object store; None for a job without one."""
    now, checkpoints = time.time(), list(checkpoints)
    rows = [
        (
            render.number(entry["step"]),
            entry["name"],
            render.age(entry["created_wall_at"], now),
            render.size(entry["size_bytes"]),
            _verdict(entry)
            + (", mirrored" if not entry["quarantined"] and entry["name"] in (mirror or ()) else "")
            + (", replayed" if entry.get("replayed") else ""),
        )
        for entry in checkpoints
    ]
    here = {entry["name"] for entry in checkpoints if not entry["quarantined"]}
    rows += [
        (render.number(name.step), str(name), "unknown", "unknown", "in the mirror only")
        for name in map(parse_name, mirror or ())
        if name is not None and str(name) not in here
    ]
    return render.table(("STEP", "CHECKPOINT", "AGE", "SIZE", "STATE"), rows) if rows else []


def _verdict(entry: dict[str, Any]) -> str:
    if entry["quarantined"]:
        return f"quarantined: {entry['reason'] or 'reason not recorded'}"
    whole = f"whole, {entry['reason']}" if entry["reason"] else "whole"
    words = {True: whole, False: f"damaged: {entry['reason']}", None: "not verified"}
    return words[entry["valid"]]
