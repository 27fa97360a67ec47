"""Writes checkpoints of which each worker of a gang writes its share: one commit in two phases.

Capture is common to all, on the threads that train: they agree, before and after it, whether each can copy its share.
If one can't, nobody saves; if the state can't be divided, or is small, the chief writes all as `TensorFlowWriter` does.

1. The chief makes the `.partial` folder and orders a round. Each worker writes its share into a data file of its own
   there, and what only it has into `worker-N.npz`; hashes both while it writes; syncs them and the folder; and reports
   names, sizes, hashes, and the checksum of each tensor. The layout of a file follows from what the workers agreed on.
2. When all have reported, and not before, the chief compares the sizes with the files, writes the index over all data
   files, its own files and the manifest, syncs, and renames: the commit that `saving/commit.py` describes.
3. The chief orders the end. Only then do the others let go of their copies: after a disk that was full, there may be
   another round, into a new folder.

Where nodes have folders of their own, each writes into one there that is no checkpoint, the chief too, and the commit
is that of the mirror (`run/own_folders.py`).

After a save that failed for another reason than a full disk, the chief writes alone for the rest of the attempt: a file
system that hosts share may show one what another wrote too late, or differently.

A worker that dies before it reported is one report too few: the chief writes no index, and what is left is a
`.partial`, as after a crash of the chief at any point before the rename. One that dies later has nothing in the
checkpoint that is not synced. A worker that is late can't spoil another save: it ends one before it begins the next,
and the chief waits for the reports of that very round of that very save, after which nobody writes.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import count
from typing import Any

import tensorflow as tf

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.disk_space import full_disk_reason
from supervisor.protocol.layout import CheckpointName
from worker.checkpoint import snapshot
from worker.checkpoint.bundle_writer import BundleCopy
from worker.checkpoint.checkpoint_tensors import SnapshotImpossible
from worker.checkpoint.save_link import GangLost, SaveLink
from worker.checkpoint.shares import Shares, divide
from worker.checkpoint.snapshot import Snapshot, TensorSnapshot
from worker.checkpoint.tensorflow_writer import CapturedTensors, StepBoundary, TensorFlowWriter
from worker.checkpoint.written_shares import ChiefShare, MemberShare, ShareReport
from worker.data.collectives import Gang
from worker.process.reporting import describe_error, print_message
from worker.saving.commit import (
    NotFinite,
    NotPublished,
    OtherDiskFull,
    SaveError,
    is_disk_full,
    save_error_text,
)
from worker.state.plain_values import NotSaveable

_WHOLE, _FAILED, _READY = 0, 1, 2  # in the place of a digest: it can't be divided here; it failed; it may be divided


class ShardedWriter(TensorFlowWriter):
    """Writes the checkpoints of one attempt together with the other workers. Not for two threads at once."""

    def __init__(
        self,
        *arguments: Any,
        gang: Gang,
        link: SaveLink,
        chief_attempt: int,
        least_bytes: int,
        own_files: Callable[[], Mapping[str, bytes]],
        has_own_folders: bool = False,
        **named: Any,
    ) -> None:
        """`chief_attempt`: after which checkpoints are named; of a node that was a spare one, its own is another.
        `least_bytes`: the chief writes a smaller state alone. `own_files`: called between steps, for the files of
        this worker: contents by name. `has_own_folders`: the nodes do not share the directory. The rest is as for
        TensorFlowWriter."""
        super().__init__(*arguments, **named)
        self._gang, self._link, self._attempt = gang, link, chief_attempt
        self._least_bytes = least_bytes
        self._own_files = own_files
        self._has_own_folders = has_own_folders
        self._saves = 0  # that were divided
        self.is_trusted = True
        """Whether no divided save has failed. What the chief's writer says decides for all."""

    def capture(self, boundary: StepBoundary, copied: bool) -> CapturedTensors:
        """The present state of this worker's share. All call it between the same steps; a SaveError is for all."""
        name = CheckpointName(boundary.step, self._attempt)
        files: Mapping[str, bytes] = {}
        failure: SaveError | None = None
        try:
            files = self._own_files()
        except NotSaveable as error:
            failure = SaveError(save_error_text(name, str(error)))
        is_ready = self._can_capture and self.is_trusted
        # before anything is read: of some variables all have to read, or none
        answers = self._agree(name, _READY if is_ready else _WHOLE, failure)
        if _WHOLE in answers:
            return super().capture(boundary, copied and self._gang.is_chief)
        captured: tuple[CapturedTensors, Shares] | None = None
        try:
            captured = self._capture_share(name, boundary, files, copied)
        except SnapshotImpossible:
            pass  # the chief says so when it captures all of it
        except (tf.errors.OpError, MemoryError) as error:
            failure = SaveError(save_error_text(name, describe_error(error)))
        is_divided = False
        try:
            answers = self._agree(name, _WHOLE if captured is None else captured[1].digest, failure)
            is_divided = captured is not None and set(answers) == {captured[1].digest}
        finally:
            for bundle in (captured[0].bundles or {}).values() if captured is not None and not is_divided else ():
                bundle.release()
        if captured is None or not is_divided:
            return super().capture(boundary, copied and self._gang.is_chief)
        self._saves += 1
        if self._gang.is_chief:
            self._link.begin(self._saves)
        return captured[0]

    def _agree(self, name: CheckpointName, said: int, failure: SaveError | None) -> list[int]:
        """What all workers say, by rank. Raises SaveError on all if one of them has failed."""
        mine = said if failure is None else _FAILED
        answers = self._gang.sum([mine if rank == self._gang.rank else 0 for rank in range(self._gang.size)])
        if _FAILED in answers:
            why = f"worker {answers.index(_FAILED)} could not copy its share of the state"
            raise failure or SaveError(save_error_text(name, why))
        return answers

    def commit(self, taken: CapturedTensors) -> Manifest:
        """As TensorFlowWriter; after a failure that a single writer may not have, the chief writes alone."""
        try:
            return super().commit(taken)
        except SaveError as error:
            is_divided = isinstance((taken.bundles or {}).get(layout.PREFIX), ChiefShare)
            is_anyones = isinstance(error, NotFinite | NotPublished | OtherDiskFull) or is_disk_full(error.__cause__)
            if is_divided and not is_anyones:
                self.is_trusted = False
                print_message("a worker could not write its share; from now on, the chief writes checkpoints alone")
            raise

    def _capture_share(
        self, name: CheckpointName, boundary: StepBoundary, files: Mapping[str, bytes], copied: bool
    ) -> tuple[CapturedTensors, Shares] | None:
        """None if the state can't be divided, or is too small for that."""
        source = self._tensors[layout.PREFIX]
        names, slices, tensors = zip(*source.read(), strict=True)
        if not TensorSnapshot(names, slices, tensors).are_plain:
            return None
        named = list(zip(names, tensors, strict=True))
        shares = divide(named, source.mirrored, self._gang.size, self._least_bytes)
        if shares is None:
            return None
        try:
            bundles = self._take(name, shares, copied)
        except MemoryError as error:
            if not copied:
                raise
            self._blocking_notice.explain_memory(error)
            copied = False
            bundles = self._take(name, shares, copied)
        return CapturedTensors(name, self._training_state(boundary), bundles, files, copied), shares

    def _take(self, name: CheckpointName, shares: Shares, copied: bool) -> dict[str, Snapshot]:
        """Raises MemoryError."""
        rank, mine = self._gang.rank, shares.tensors[self._gang.rank]
        own: BundleCopy | TensorSnapshot
        if copied:
            own = BundleCopy(mine, self._buffer_pools[layout.PREFIX])
        else:
            own = TensorSnapshot(tuple(key for key, _ in mine), ("",) * len(mine), tuple(item for _, item in mine))
        if not self._gang.is_chief:
            return {layout.PREFIX: MemberShare(own, rank, self._gang.size)}
        others = {
            prefix: snapshot.capture_tensors(tensors, copied, self._buffer_pools[prefix])
            for prefix, tensors in self._tensors.items()
            if prefix != layout.PREFIX
        }
        return {layout.PREFIX: ChiefShare(name, own, shares, self._link, self._has_own_folders), **others}

    def write_share(self, captured: CapturedTensors) -> None:
        """Takes part in the save of what a worker other than the chief captured, on any thread. Returns at its end.

        What fails is the chief's to report; returns too if the gang is lost.
        """
        share = (captured.bundles or {}).get(layout.PREFIX)
        if not isinstance(share, MemberShare):
            return  # the chief writes it all
        save = self._saves
        try:
            for number in count():
                if not self._link.wait_for_round(save, number):
                    return
                report = self._write_round(captured, share)
                self._link.report(save, number, json.dumps(asdict(report)))
        except GangLost:
            return  # the thread that trains will hear of it from its next collective
        finally:
            share.release()

    def _write_round(self, captured: CapturedTensors, share: MemberShare) -> ShareReport:
        try:
            if bad := self.names_not_finite(captured):
                return ShareReport(not_finite=bad)
            partial = self._directory / captured.name.partial
            if self._has_own_folders:
                shutil.rmtree(partial, ignore_errors=True)  # of a round before this one
            with NewFolder(partial, is_there=not self._has_own_folders) as folder:
                written = share.write_data(folder, layout.PREFIX)
                for name, content in captured.extra_files.items():
                    folder.add(name, content)
                files = [(name, size, digest) for name, (size, digest) in folder.finish().items()]
                if self._has_own_folders:
                    part = self._directory / captured.name.part
                    shutil.rmtree(part, ignore_errors=True)
                    folder.commit(part)
                else:
                    folder.sync()
            return ShareReport(files, [crc for _, crc in written])
        except OSError as error:
            reason = full_disk_reason(error, self._directory)
            return ShareReport(error=reason, errno=error.errno, file=error.filename)
        except Exception as error:  # noqa: BLE001 - the chief waits for a report, and reports this
            return ShareReport(error=describe_error(error))
