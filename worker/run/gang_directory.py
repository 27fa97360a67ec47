"""The checkpoints of a gang, apart from when they are saved: who opens their directory, restores, writes and reports.

The chief alone selects the checkpoint and reports; the others restore what it selected. Each writes its share of a
checkpoint (`checkpoint/sharded_writer.py`), or they send the chief the state that only they hold, and it writes all.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from worker.base.run_settings import RunSettings
from worker.checkpoint.replica_parts import PART, metrics_of, part_of_process
from worker.checkpoint.restore import RestoredCheckpoint
from worker.checkpoint.save_link import SaveLink
from worker.checkpoint.sharded_writer import ShardedWriter
from worker.checkpoint.shares import LEAST_BYTES
from worker.checkpoint.tensorflow_writer import TensorFlowWriter
from worker.checks.findings import Finding
from worker.checks.reachability import Root
from worker.data.collectives import Gang, jobs_of
from worker.devices.tensorflow_conditions import replica_count
from worker.internals.tensorflow_internals import CAN_WAIT_FOR_TEXTS
from worker.process.attempt import Attempt
from worker.run import own_folders
from worker.run.gang_restore import GangRestore
from worker.run.run_checkpoints import RunCheckpoints, SavedState
from worker.saving.directory import OpenedDirectory, open_checkpoint_directory
from worker.state import extra_state
from worker.state.replica_values import Place


class GangDirectory(RunCheckpoints):
    """The checkpoints of one of several workers. All workers call the same methods between the same steps."""

    def __init__(
        self,
        gang: Gang,
        attempt: Attempt,
        settings: RunSettings,
        state: SavedState,
        not_finite: Callable[[int, str, int], NoReturn] | None,
    ) -> None:
        super().__init__(attempt, settings, state, not_finite)
        self._gang = gang
        self._place = Place(gang.rank, gang.size)
        self._gang_restore = GangRestore(gang, attempt, state)
        self._link: SaveLink | None = None
        self._on_nan = settings.on_nan

    def _open_directory(self, directory: Path) -> OpenedDirectory:
        if self._gang_restore.has_own_folders and self._on_nan == "skip":
            own_folders.refuse(
                self._attempt, "the other nodes don't see which batches are left out; set on_nan = rollback"
            )
        return self._gang_restore.open_directory(
            directory, partial(open_checkpoint_directory, self._attempt, has_parts=True)
        )

    def _make_writer(self, *arguments: Any, **named: Any) -> TensorFlowWriter:
        if has_own_folders := self._gang_restore.has_own_folders:
            named |= {"publish": partial(own_folders.publish, self._attempt)}
        save_shards = self._gang_restore.save_shards
        if save_shards == "never" or not CAN_WAIT_FOR_TEXTS or self._state.strategy is None:
            return super()._make_writer(*arguments, **named)
        self._link = SaveLink(self._gang.rank, jobs_of(self._state.strategy))
        least_bytes = LEAST_BYTES if save_shards == "auto" else 0
        return ShardedWriter(
            *arguments,
            gang=self._gang,
            link=self._link,
            chief_attempt=self._gang_restore.chief_attempt,
            least_bytes=least_bytes,
            own_files=self._own_files,
            has_own_folders=has_own_folders,
            **named,
        )

    def _readable(self, path: Path) -> AbstractContextManager[Path]:
        return self._gang_restore.readable(path)

    def _restore_from(self, path: Path) -> RestoredCheckpoint:
        started = time.monotonic()
        checkpoint = self._gang_restore.complete(path, super()._restore_from(path))
        return replace(checkpoint, took_s=time.monotonic() - started)

    def _record_conditions(self, present: Any, directory: Path) -> None:
        if self._gang.is_chief:
            super()._record_conditions(present, directory)

    def _show_changes(self, text: str) -> None:
        if self._gang.is_chief:
            super()._show_changes(text)

    def check_completeness(
        self,
        roots: Iterable[Root],
        exempt: Iterable[Any],
        step: int,
        remedy: str,
        find_problems: Callable[[], Sequence[Finding]],
    ) -> None:
        """The chief checks for all, as they run the same program."""
        if self._gang.is_chief:
            super().check_completeness(roots, exempt, step, remedy, find_problems)

    def report_findings(
        self, findings: Sequence[Finding], step: int, missing: Sequence[str] = (), remedy: str = ""
    ) -> None:
        """The chief reports for all."""
        if self._gang.is_chief:
            super().report_findings(findings, step, missing, remedy)

    def _extra_files(self) -> Mapping[str, bytes]:
        """Contents by file name of what the workers hold for themselves; all call it for the same step."""
        mine = b"" if self._gang.is_chief else self._own_part()
        parts = {PART.format(rank): part for rank, part in enumerate(self._gang.gather(mine)) if rank > 0}
        return {**super()._extra_files(), **parts}

    def _own_files(self) -> Mapping[str, bytes]:
        """Contents by file name of what this worker writes besides its share."""
        return super()._extra_files() if self._gang.is_chief else {PART.format(self._gang.rank): self._own_part()}

    def _own_part(self) -> bytes:
        variables = extra_state.extra_variables(self._state.tracked).saved_apart(replica_count(self._state.strategy))
        return part_of_process(variables, metrics_of(self._state.tracked, self._state.values), self._state.generators)
