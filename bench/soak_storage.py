"""Faults of what jobs and the ledger are stored on. When a function returns, its fault is over."""

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.soak_hostile import HOSTILE_STEP
from bench.soak_site import START_S, Running, Site, send_signal
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.system.harness import Refused
from tests.waiting import wait_until

PAUSE_S = 4.0  # at most: of what is taken away and given back
NOTICED_S = 90.0  # until the daemon has seen something, on a busy machine
NOT_RUNNING = ("STOPPED", "STOPPING", "SUCCEEDED", "FAILED", "EXITED")


def folder_away(site: Site, worker: Running, chance: random.Random) -> None:
    """Moves the job's checkpoints away and back, as a disk that is unmounted; mostly the worker dies meanwhile."""
    if site.kind(worker.program).has_mirror:
        return  # it would go on from the store, in a new folder
    directory = site.directory(worker.program)
    away = directory.with_name(f"{directory.name}.away")
    try:
        directory.rename(away)
    except OSError:  # it was not made yet
        return
    if chance.random() < 0.7:
        send_signal(worker, signal.SIGKILL)
    time.sleep(chance.uniform(0, PAUSE_S))
    try:
        if directory.exists():
            names = sorted(path.name for path in directory.iterdir())
            assert not selection.committed_checkpoints(directory), f"it trained on in a new folder: {names}"
            shutil.rmtree(directory)
    finally:
        if not directory.exists():
            away.rename(directory)


def folder_gone(site: Site, worker: Running, chance: random.Random) -> None:
    """Deletes the job's checkpoints while it trains and kills it. With a mirror it goes on; else it waits, until it is
    told to begin from scratch."""
    directory = site.directory(worker.program)
    if site.kind(worker.program).has_mirror:
        _lose_disk(site, worker, directory)
        return
    had_any = bool(selection.committed_checkpoints(directory))
    with contextlib.suppress(OSError):
        directory.rename(directory.with_name(f"{directory.name}.gone{time.monotonic_ns()}"))
    send_signal(worker, signal.SIGKILL)
    if had_any:
        _until(site, worker.program, "waits for its folder", lambda status: "from-scratch" in (status["reason"] or ""))
    site.try_call("stop", name=worker.program)
    site.call("start", name=worker.program, wait=False, from_scratch=True)


def _lose_disk(site: Site, worker: Running, directory: Path) -> None:
    """At most what the store lacks may be lost, and nobody has to help."""
    job = site.status(worker.program)["job"]
    mirrored = None if job is None or job["mirror"] is None else job["mirror"]["newest_step"]
    with contextlib.suppress(OSError):
        directory.rename(directory.with_name(f"{directory.name}.lost{time.monotonic_ns()}"))
    send_signal(worker, signal.SIGKILL)
    if mirrored is None:
        return

    def is_back(status: dict[str, Any]) -> bool:
        now = status["job"]
        return bool(now["attempt"] > worker.attempt and now["restored"] is not None)

    _until(site, worker.program, "goes on from the mirror", is_back)
    restored = site.status(worker.program)["job"]["restored"]
    name = None if restored is None else layout.parse_name(restored)
    assert name is None or name.step >= mirrored, f"{name} was restored, step {mirrored} was in the mirror"


def other_jobs_checkpoint(site: Site, worker: Running, chance: random.Random) -> None:
    """Copies a later checkpoint of another job into the folder. The job fails, until it is taken out again."""
    send_signal(worker, signal.SIGSTOP)  # so that no later one of its own follows
    copied = _copy_of_another(site, worker, chance)
    send_signal(worker, signal.SIGKILL)
    if copied is None:
        return
    program, folder = copied
    try:
        _until(
            site,
            worker.program,
            f"fails for {program}'s checkpoint",
            lambda status: program in (status["reason"] or ""),
        )
    finally:
        shutil.rmtree(folder)
        site.call("start", name=worker.program, wait=False)


def _copy_of_another(site: Site, worker: Running, chance: random.Random) -> tuple[str, Path] | None:
    own = selection.committed_checkpoints(site.directory(worker.program))
    others = [running.program for running in site.workers() if running.program != worker.program]
    for program in chance.sample(others, len(others)):
        newest = next(iter(selection.committed_checkpoints(site.directory(program))), None)
        if newest is None or not own or not own[0].step < newest.step < HOSTILE_STEP:
            continue
        source, target = (site.directory(name) / str(newest) for name in (program, worker.program))
        partial = target.with_name("copied")
        try:
            shutil.copytree(source, partial)
            partial.rename(target)
        except OSError:  # retention has deleted it, or the disk is full
            shutil.rmtree(partial, ignore_errors=True)
            continue
        return program, target
    return None


def lock_deleted(site: Site, worker: Running, chance: random.Random) -> None:
    """Deletes the lock of the folder while the worker holds it; with luck the daemon is replaced."""
    (site.directory(worker.program) / layout.LOCK).unlink(missing_ok=True)
    if chance.random() < 0.5:
        site.daemon.stop(signal.SIGKILL)
        site.daemon.start(START_S)


def disk_read_only(site: Site, worker: Running, chance: random.Random) -> None:
    """That of the checkpoints, for a moment."""
    if "small" in site.mounted:
        with site.read_only("small"):
            time.sleep(chance.uniform(0, PAUSE_S))


def disk_full(site: Site, worker: Running, chance: random.Random) -> None:
    """Of the checkpoints."""
    if "small" in site.mounted:
        with _filled(site.folder / "small"):
            time.sleep(chance.uniform(0, PAUSE_S))


def state_disk_full(site: Site, worker: Running, chance: random.Random) -> None:
    """Of the ledger."""
    if "state" in site.mounted:
        with _filled(site.folder / "state"):
            time.sleep(chance.uniform(0, PAUSE_S))


def stopped_while_ledger_full(site: Site, worker: Running, chance: random.Random) -> None:
    """A stop that is acknowledged holds for the next daemon, too; one that can't be recorded is refused."""
    if "state" not in site.mounted:
        return
    is_acknowledged = True
    with _filled(site.folder / "state"):
        try:
            site.daemon.call("stop", name=worker.program, wait=False)
        except (Refused, OSError, ValueError):
            is_acknowledged = False
        if is_acknowledged:
            site.daemon.stop(signal.SIGKILL)
    if is_acknowledged:
        site.daemon.start(START_S)
        state = site.status(worker.program)["state"]
        assert state in NOT_RUNNING, f"{worker.program} is {state} after a stop that was acknowledged"
    site.try_call("start", name=worker.program, wait=False)


@contextlib.contextmanager
def _filled(folder: Path) -> Iterator[None]:
    """Takes all the room on a disk for the duration of the context."""
    path = folder / "filler"
    try:
        for size in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
                while file.write(bytes(size)):
                    pass
        yield
    finally:
        path.unlink(missing_ok=True)


def _until(site: Site, program: str, what: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
    def look() -> bool:
        status = site.status(program)
        return is_so(status) or status["state"] == "SUCCEEDED"  # it ended at the same moment

    wait_until(look, f"{program} {what}", NOTICED_S, lambda: str(site.status(program)))
