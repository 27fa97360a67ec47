"""One worker's share of a checkpoint that several write: how it gets onto the disk, and what is reported of it.

The theory of the commit, in which the chief waits for all reports, is in `sharded_writer.py`.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.disk_space import DISK_FULL
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.tensorbundle import verify
from worker.checkpoint.bundle_writer import BundleCopy, Written, data_name, encode_index
from worker.checkpoint.save_link import GangLost, SaveLink
from worker.checkpoint.shares import Shares
from worker.checkpoint.snapshot import TensorSnapshot
from worker.checkpoint.tensorflow_writer import not_finite_text
from worker.saving.commit import NotFinite, OtherDiskFull, SaveError, save_error_text

SEEN_S = 5.0  # until the chief sees what another host has written: network file systems remember sizes for about 3 s


@dataclass(frozen=True, slots=True)
class ShareReport:
    """What a worker says of its share: the files, or why there are none. `files`: name, size and hash.

    `error`: in words, with its `errno` and `file` where a system call failed. `not_finite`: names of tensors.
    """

    files: Sequence[tuple[str, int, str]] = ()
    checksums: Sequence[int] = ()
    error: str | None = None
    errno: int | None = None
    file: str | None = None
    not_finite: Sequence[str] = ()


class ChiefShare:
    """The chief's share of a bundle; its writing is that of all."""

    def __init__(
        self,
        name: CheckpointName,
        own: BundleCopy | TensorSnapshot,
        shares: Shares,
        link: SaveLink,
        has_own_folders: bool,
    ) -> None:
        self._name, self._own, self._shares, self._link = name, own, shares, link
        self._has_own_folders = has_own_folders

    def write(self, folder: NewFolder, prefix: str) -> None:
        """Has all write, and writes the index over their files. Raises what a share failed with; SaveError."""
        workers = len(self._shares.tensors)
        failure: Exception | None = None
        written: Written = []
        try:
            self._link.order_round()
            try:
                written = self._own.write_data(folder.create(data_name(prefix, 0, workers)))
            except OSError as error:
                failure = error
            texts = [self._link.wait_for_report(rank) for rank in range(1, workers)]  # from now on nobody writes
        except GangLost as error:
            raise SaveError(save_error_text(self._name, str(error))) from error
        if failure is not None:
            raise failure
        by_rank = [written]
        for rank, text in enumerate(texts, 1):
            report = self._accepted(rank, text)
            for file, size, digest in report.files:
                if self._has_own_folders:
                    folder.record_elsewhere(file, size, digest)
                    continue
                _wait_until_seen(folder.path / file, size)
                folder.record(file, size, digest)
            by_rank.append(list(zip(self._shares.slots(rank), report.checksums, strict=True)))
        folder.add(f"{prefix}{verify.INDEX}", encode_index(by_rank))

    def _accepted(self, rank: int, text: str) -> ShareReport:
        """What a worker reports, if it has written its share. Raises what it failed with."""
        report = ShareReport(**json.loads(text))
        if report.not_finite:
            raise NotFinite(not_finite_text(report.not_finite))
        if report.errno in DISK_FULL and self._has_own_folders:
            raise OtherDiskFull(save_error_text(self._name, f"worker {rank}: {report.file}: {report.error}"))
        if report.errno is not None:
            raise OSError(report.errno, f"{report.error} (on worker {rank})", report.file)
        if report.error is not None:
            raise SaveError(save_error_text(self._name, f"worker {rank}: {report.error}"))
        return report

    def elements(self) -> Iterable[tuple[str, np.ndarray]]:
        return self._own.elements()

    def release(self) -> None:
        self._link.end()
        self._own.release()


def _wait_until_seen(path: Path, size: int) -> None:
    """Returns once a file has the size that its writer reports, at the latest after SEEN_S."""
    deadline = time.monotonic() + SEEN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # it is not there yet; `record` raises what remains
            if path.lstat().st_size == size:
                return
        time.sleep(0.05)


class MemberShare:
    """The share of another worker, which takes part in the chief's rounds."""

    def __init__(self, own: BundleCopy | TensorSnapshot, rank: int, workers: int) -> None:
        self._own, self._rank, self._workers = own, rank, workers

    def write(self, folder: NewFolder, prefix: str) -> None:
        """Writes its data file alone."""
        self.write_data(folder, prefix)

    def write_data(self, folder: NewFolder, prefix: str) -> Written:
        """Writes its data file."""
        return self._own.write_data(folder.create(data_name(prefix, self._rank, self._workers)))

    def elements(self) -> Iterable[tuple[str, np.ndarray]]:
        return self._own.elements()

    def release(self) -> None:
        self._own.release()
