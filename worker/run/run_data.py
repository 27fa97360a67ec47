"""The data of one run: who reads it, which batches are left out of it, and how long training waits for it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol.layout import SKIPPED
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.exits import WorkerExit
from worker.data.batches import BatchReader
from worker.data.collectives import Gang
from worker.data.resume_dataset import Batch
from worker.process.attempt import Attempt
from worker.progress.divergence import read_skipped
from worker.progress.progress_reports import PROGRESS_INTERVAL_S, ProgressReports
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position


class RunData:
    """What a run reads batches from, one source after another."""

    def __init__(
        self,
        attempt: Attempt,
        strategy: tf.distribute.Strategy | None,
        gang: Gang | None,
        digest_generators: Callable[[], bytes],
    ) -> None:
        self.passes = PassLog(digest=digest_generators)
        """The passes over the data."""
        self.reader: BatchReader | None = None
        """The one in use; None before the first batch."""
        self._attempt = attempt
        self._strategy = strategy
        self._gang = gang
        self._digest_generators = digest_generators
        self._left_out: frozenset[tuple[int, int]] = frozenset()
        self._waited_s = 0.0  # since the last report

    def restore_passes(self, saved: Mapping[str, Any]) -> None:
        """Goes on with the passes of a checkpoint."""
        self.passes = PassLog(saved, self._digest_generators)
        self.passes.put_back_seeds()

    def read_left_out(self, directory: Path) -> None:
        """Reads which batches were left out before; a restart leaves them out too, to train on the same data.

        Exits with DIRECTORY_UNUSABLE if that can't be read.
        """
        try:
            self._left_out = read_skipped(directory)
        except (OSError, ValueError) as error:
            self._attempt.exit_with_error(
                WorkerExit.DIRECTORY_UNUSABLE,
                f"cannot read which batches to leave out: {error}",
                errno=error.errno if isinstance(error, OSError) else None,
            )
        if self._left_out:
            batches = counted(len(self._left_out), "batch", "batches")
            self._attempt.reporter.show_message(f"leaving out {batches} on which training diverged (see {SKIPPED})")

    def reader_of(self, source: Any, position: Position) -> BatchReader:
        """The reader in use, if it reads this source and its position is that of training; else a new one."""
        if self.reader is None or self.reader.data is not source or self.reader.position != position:
            self.reader = BatchReader(source, self._strategy, position, self._left_out, self._gang, self.passes)
        return self.reader

    @property
    def rows(self) -> int | None:
        """How many examples a batch has, as far as that is known."""
        return None if self.reader is None else self.reader.rows

    def pop_handed_out(self) -> Sequence[tuple[int, int]]:
        """(epoch, batch) of the batches read since the last call."""
        return () if self.reader is None else self.reader.pop_handed_out()

    def report_waits(
        self, batches: Iterator[Batch], reports: ProgressReports, report_section: Callable[[str | None], None]
    ) -> Iterator[Batch]:
        """Passes batches on and measures the waits for them; reports each wait where steps are slow."""
        while True:
            is_slow = (reports.step_s or 0.0) >= PROGRESS_INTERVAL_S
            if is_slow:
                report_section("data")
            began = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._waited_s += time.monotonic() - began
                if is_slow:
                    report_section(None)
            yield batch

    def pop_wait_s(self) -> float | None:
        """How long training has waited for batches since the last call; None if it reads none."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return None if self.reader is None else waited_s

    def close(self) -> None:
        """Lets go of the reader."""
        if self.reader is not None:
            self.reader.abandon()
