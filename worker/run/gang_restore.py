"""How several workers of one gang begin from the same checkpoint: the one that the chief selected and verified.

The chief opens the directory and names the checkpoint to the others. They read it together where that pays, and before
training all make sure that they have restored the same.
"""

import contextlib
import json
import platform
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import ManifestError, verify_checkpoint
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import reads_together
from worker.checkpoint.replica_parts import ReplicaParts
from worker.checkpoint.restore import RestoredCheckpoint, has_place_for_all
from worker.checkpoint.shared_read import ALWAYS, IF_IT_PAYS, CannotShare, read_together
from worker.data.collectives import Gang
from worker.process import local_processes
from worker.process.attempt import Attempt
from worker.run import own_folders
from worker.run.run_checkpoints import SavedState
from worker.saving.directory import OpenedDirectory
from worker.saving.directory_lock import NoLock
from worker.state import extra_state

SHARED_S = 10.0  # until what one host has written is seen by all; network file systems take a second or three


class GangRestore:
    """The restore of one of several workers. All of them call the same methods in the same order."""

    def __init__(self, gang: Gang, attempt: Attempt, state: SavedState) -> None:
        self._gang = gang
        self._attempt = attempt
        self._state = state
        self.save_shards = attempt.launch.save_shards
        """Of the chief, once the directory is open."""
        self.chief_attempt = attempt.number
        """The chief's, once the directory is open."""
        self.has_own_folders = own_folders.has_own_folders(attempt)
        """Whether each node has a folder of its own."""

    def open_directory(self, directory: Path, open_own: Callable[[Path], OpenedDirectory]) -> OpenedDirectory:
        """The directory with the checkpoint that all restore. `open_own`: as the chief opens it and selects.

        Exits with STOPPED if the chief belongs to another generation, and as `_require_shared` and `open_own` do.
        """
        gang, attempt = self._gang, self._attempt
        if self.has_own_folders and attempt.has_begun_run:
            own_folders.refuse(attempt, "a script's second run could not be restored; train each in a job of its own")
        if gang.is_chief:
            opened = open_own(directory)
            if (started := local_processes.find_local_processes()) is not None:
                started.require_all_alive()  # also if the script trains a second time
            restore = str(opened.restore) if opened.restore else None
            mark = None if self.has_own_folders else _make_mark(directory)
            proof = own_folders.proof_of(opened.restore) if mark is None else ""
            self._name_checkpoints_after(attempt.number)  # without a daemon, it has one only now
            mark_name = None if mark is None else mark.name
            start = [attempt.number, restore, attempt.launch.generation, mark_name, self.save_shards, proof]
            gang.text_from_chief(json.dumps(start))
            if mark is None:
                own_folders.require_same(opened.restore, proof, gang, attempt)
            else:
                _require_shared(mark, gang, attempt)
            return opened
        if attempt.channel is not None:
            attempt.channel.wait_for_go()  # the daemon of this host selected one too, perhaps an older one
        number, path, generation, mark_name, self.save_shards, proof = json.loads(gang.text_from_chief(""))
        self._name_checkpoints_after(number)
        if generation != attempt.launch.generation:
            attempt.exit_with_error(
                WorkerExit.STOPPED,
                f"cannot train: this worker is of generation {attempt.launch.generation} of its gang, and the chief of "
                f"{generation}; it belongs to a gang that is over",
            )
        if (mark_name is None) is not self.has_own_folders:
            own_folders.refuse(attempt, "the nodes' files differ in this line; give all nodes the same file")
        if mark_name is None:
            opened = open_own(directory)
            own_folders.require_same(opened.restore, proof, gang, attempt)
            return opened
        _require_shared(directory / mark_name, gang, attempt)
        if attempt.channel is None:
            attempt.number = number
        return OpenedDirectory(directory, NoLock(), Path(path) if path is not None else None)

    def _name_checkpoints_after(self, chief_attempt: int) -> None:
        self.chief_attempt = chief_attempt
        if self._attempt.launch.generation is not None:
            self._attempt.gang_attempt = chief_attempt

    @contextlib.contextmanager
    def readable(self, path: Path) -> Iterator[Path]:
        """A copy that all workers have read together, or else the checkpoint's own folder."""
        with contextlib.ExitStack() as stack:
            copy: Path | None = None
            if not self.has_own_folders and reads_together(self.save_shards, self._gang.size):
                rule = ALWAYS if self.save_shards == "always" else IF_IT_PAYS
                try:
                    copy = stack.enter_context(read_together(path, self._gang, rule))
                except CannotShare as error:
                    text = f"each worker reads all of {path.name}, as they can't share that: {error}"
                    self._attempt.reporter.show_message(text)
            if copy is not None and not has_place_for_all(self._state.tracked, str(copy / layout.PREFIX)):
                copy = None  # what TensorFlow reads later, it looks for in the same files
            if copy is None and not self.has_own_folders:  # there the daemon of each node has proven it
                self._prove(path)
            yield copy or path

    def _prove(self, path: Path) -> None:
        """Reads every byte, where this node's daemon leaves that to the worker (`CheckpointSelector`)."""
        launch, gang = self._attempt.launch, self._gang
        if gang.is_chief or launch.generation is None or not reads_together(launch.save_shards, gang.size):
            return
        try:
            verify_checkpoint(path)
        except (ManifestError, OSError) as error:
            self._attempt.exit_with_error(
                WorkerExit.DIRECTORY_UNUSABLE,
                f"cannot restore {path.name} on {platform.node()}: {error}, and the chief's node saw it whole; all "
                f"begin again, and the chief proves it once more",
            )

    def complete(self, path: Path, checkpoint: RestoredCheckpoint) -> RestoredCheckpoint:
        """The checkpoint, after its objects were restored from `path`, with what this worker alone has in it.

        Raises RuntimeError unless all workers have restored the same.
        """
        missing = self._restore_own_generators(path) if path.is_dir() else ()
        self._require_same_state(path, checkpoint)
        return replace(checkpoint, unmatched=(*checkpoint.unmatched, *missing))

    def _restore_own_generators(self, path: Path) -> tuple[str, ...]:
        """Restores this worker's random generators. Returns what could not be restored, in words."""
        if self._gang.is_chief:
            return ()
        parts = ReplicaParts(path)
        part = parts.part(self._gang.rank)
        if part is None:
            saved = counted(parts.processes, "worker")
            return (f"the random state of worker {self._gang.rank} (saved with {saved}: it gets the chief's)",)
        extra_state.write_generators(part.generators, self._state.generators)
        return ()

    def _require_same_state(self, path: Path, checkpoint: RestoredCheckpoint) -> None:
        """Raises RuntimeError unless all restored the same: a shared file system may show an old state to a host."""
        proof = (path / layout.MANIFEST).read_bytes() if path.is_dir() else path.name.encode()
        mine = [checkpoint.state.step, zlib.crc32(proof)]
        theirs = self._gang.from_chief(mine)
        differ = self._gang.sum([int(theirs != mine)])[0]
        if differ:
            raise RuntimeError(
                f"cannot train: {differ} of {self._gang.size} workers restored another state than the chief, which has "
                f"step {theirs[0]} (this worker has step {mine[0]}); let all of them share one checkpoint_dir"
            )


def _make_mark(directory: Path) -> Path:
    """A file of a name that nobody has looked for yet: a network file system remembers what was not there."""
    for left in directory.glob(f"{layout.GANG_MARK}*"):
        left.unlink(missing_ok=True)
    mark = directory / f"{layout.GANG_MARK}{secrets.token_hex(8)}"
    durable.write_file(mark, b"")
    return mark


def _require_shared(mark: Path, gang: Gang, attempt: Attempt) -> None:
    """Ends all workers unless each of them sees the chief's `mark`.

    A gang of which one worker has another directory under the chief's path would train and save, and could not go on
    from what it saved.
    """
    is_seen = _is_seen(mark)
    missing = gang.sum([int(not is_seen)])[0]
    if gang.is_chief:
        mark.unlink(missing_ok=True)
    if missing:
        where = "" if is_seen else f" on {platform.node()}"
        who = f"{missing} of {gang.size} workers do" if is_seen else "this worker does"
        attempt.exit_with_error(
            WorkerExit.DIRECTORY_UNUSABLE,
            f"cannot train: checkpoint_dir {mark.parent}{where} must be shared by all nodes of the gang, and {who} "
            f"not see what the chief writes there; put it on a file system that all of them mount, or give the job a "
            f"mirror and checkpoint_dir_shared = false",
        )


def _is_seen(mark: Path) -> bool:
    deadline = time.monotonic() + SHARED_S
    while not mark.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
