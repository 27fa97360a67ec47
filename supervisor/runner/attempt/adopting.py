"""What an earlier daemon left of each program: a worker to take over, processes to end, attempts without an end."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from supervisor.config import ProgramConfig
from supervisor.core.program.events import AttemptLost
from supervisor.host.checkpoint_store import CheckpointStore, ListedCheckpoint
from supervisor.host.ledger.ledger import OpenAttempt
from supervisor.host.pipes import control_pipes
from supervisor.host.processes import marks, process_status
from supervisor.protocol import layout, messages
from supervisor.protocol.messages import Flush, Then

SLOW_DISK_S = 5.0  # how long the end of an attempt waits for a checkpoint directory's listing
REMOVED_FLUSH_ID = 1 << 40  # higher than any that a daemon counted up to, so that no answer can be mistaken


@dataclass(frozen=True, slots=True)
class LeftoverWorker:
    """A process that the ledger knows as an attempt's worker, and whose mark says the same. `start_time` in ticks.

    `mark`: of it and all it started, None for a zombie; `began_wall_at`: when the attempt began, by the ledger.
    """

    attempt: int
    pid: int
    start_time: int
    mark: str | None = None
    began_wall_at: float | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the attempt began, time asleep included; one that was a standby is younger than its process."""
        process_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_time / os.sysconf("SC_CLK_TCK")
        if self.began_wall_at is None or self.mark is None or not marks.is_standby(self.mark):
            return process_s
        return min(process_s, max(0.0, time.time() - self.began_wall_at))


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What there is of one program.

    `worker`: its newest attempt's process, alive; `with_it`: what belongs to that attempt besides. `strays`: what other
    attempts left. `open_attempts`: those whose end was never written, the worker's among them; `cut_off`: those of
    them that the host took with it.
    """

    worker: LeftoverWorker | None = None
    companions: tuple[psutil.Process, ...] = ()
    strays: tuple[psutil.Process, ...] = ()
    open_attempts: tuple[int, ...] = ()
    cut_off_by_host: frozenset[int] = frozenset()

    def without_worker(self) -> "Leftovers":
        """The same, where the worker can't be taken over: all of it has to end."""
        return Leftovers(None, (), self.strays + self.companions, self.open_attempts, self.cut_off_by_host)


def leftovers_by_program(
    unfinished: Iterable[OpenAttempt], marked: Mapping[str, list[psutil.Process]]
) -> dict[str, Leftovers]:
    """What an earlier daemon left, by program; reads /proc."""
    opened: dict[str, list[OpenAttempt]] = {}
    for each in unfinished:
        opened.setdefault(each.program, []).append(each)
    names = {*opened, *(marks.program_of(value) for value in marked)}
    return {
        name: _leftovers_of(name, sorted(opened.get(name, []), key=lambda each: each.attempt), marked) for name in names
    }


def _leftovers_of(name: str, opened: list[OpenAttempt], marked: Mapping[str, list[psutil.Process]]) -> Leftovers:
    mine = {value: found for value, found in marked.items() if marks.program_of(value) == name}
    newest = max([*map(marks.attempt_of, mine), *(each.attempt for each in opened)])
    worker = _find_worker(opened[-1], mine) if opened and opened[-1].attempt == newest else None
    its = {value for value in mine if worker is not None and _is_mark_of(value, worker)}
    strays = [each for value, found in mine.items() for each in found if value not in its]
    with_it = [each for value in its for each in mine[value]]
    cut_off = frozenset(each.attempt for each in opened if not each.of_this_boot)
    return Leftovers(worker, tuple(with_it), tuple(strays), tuple(each.attempt for each in opened), cut_off)


def _is_mark_of(value: str, worker: LeftoverWorker) -> bool:
    """Whether a mark is that of the worker's attempt; one that was a standby keeps the mark it was started with."""
    return value == worker.mark or (not marks.is_standby(value) and marks.attempt_of(value) == worker.attempt)


def _find_worker(opened: OpenAttempt, marked: Mapping[str, list[psutil.Process]]) -> LeftoverWorker | None:
    """The ledger's process, if pid, start time and mark agree; a zombie has no mark any more, but an exit status."""
    if not opened.of_this_boot or opened.pid <= 0 or process_status.read_start_time(opened.pid) != opened.start_time:
        return None
    its = next((value for value, found in marked.items() if any(each.pid == opened.pid for each in found)), None)
    if its is None and not process_status.is_zombie(opened.pid):
        return None
    if its is not None and not marks.is_standby(its) and marks.attempt_of(its) != opened.attempt:
        return None
    return LeftoverWorker(opened.attempt, opened.pid, opened.start_time, its, opened.started_at)


async def reconstruct_end(
    config: ProgramConfig, attempt: int, host_left: bool, runtime_dir: Path, checkpoints: CheckpointStore
) -> tuple[AttemptLost, list[messages.FromWorker], float | None]:
    """How an attempt ended that nobody saw: from its last words, which are given too, and from its checkpoints.

    Last, how many seconds ago it saved for the last time, None if that is not known. A checkpoint directory that does
    not answer is not waited for.
    """
    folder = layout.attempt_folder(runtime_dir, config.name, attempt)
    words = await asyncio.to_thread(control_pipes.read_last_words, folder, attempt)
    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    done = any(isinstance(each, messages.Done) for each in words)
    failed = next((each for each in words if isinstance(each, messages.Failed)), None)
    newest = await _newest_checkpoint(config, attempt, checkpoints)
    step = None if newest is None else newest.step
    saved_wall_at = None if newest is None else newest.created_wall_at
    ago_s = None if saved_wall_at is None else time.time() - saved_wall_at
    lived_s_ago = None if ago_s is None or ago_s < 0 else ago_s  # a clock that was set back knows nothing
    lost = AttemptLost(attempt, done, None, step, host_left)
    if failed is not None:
        lost = replace(
            lost,
            error=failed.error,
            step=failed.step,
            out_of_memory=failed.out_of_memory,
            rolls_back=failed.go_back,
            code=failed.code,
        )
    return lost, words, lived_s_ago


async def _newest_checkpoint(
    config: ProgramConfig, attempt: int, checkpoints: CheckpointStore
) -> ListedCheckpoint | None:
    if config.job is None:
        return None
    with contextlib.suppress(TimeoutError, OSError):
        listing = await asyncio.wait_for(
            checkpoints.list_checkpoints(config.job.checkpoint_dir, verify=False), SLOW_DISK_S
        )
        mine = [each for each in listing if each.attempt == attempt and not each.quarantined]
        return max(mine, key=lambda each: each.step, default=None)
    return None


def request_flush_and_exit(runtime_dir: Path, name: str, attempt: int, patience_s: float) -> bool:
    """Asks the worker of a program that nobody configures any more to flush and leave; False if it can't hear."""
    folder = layout.attempt_folder(runtime_dir, name, attempt)
    return control_pipes.send_once(folder, Flush(attempt, REMOVED_FLUSH_ID, "update", Then.STOP, patience_s))
