"""What a dead worker left in memory is restored from there by TensorFlow, or not at all."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol import layout as names
from supervisor.protocol.checkpoints.manifest import read_manifest
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.memory_tier import layout
from supervisor.protocol.memory_tier.layout import NoCopy
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Go
from tests.reading import descriptors
from tests.worker.daemon_end import DaemonEnd
from tests.worker.saving.test_memory_tier import Listener
from worker.checkpoint.restore import restore_checkpoint
from worker.checkpoint.restore_in_place import LEAST_BYTES
from worker.checkpoint.tensorflow_writer import StepBoundary, TensorFlowWriter
from worker.process.attempt import Attempt
from worker.process.requests import PendingRequests
from worker.saving import memory_checkpoint
from worker.saving.commit import CheckpointOrigin
from worker.saving.memory_checkpoint import MemoryCheckpoint, open_memory
from worker.saving.memory_file import MemoryFile
from worker.state.state_file import Position

pytestmark = [pytest.mark.tensorflow, pytest.mark.integration]


class Worker:
    """The state of a worker, and the memory into which it is copied as attempt 3."""

    def __init__(self, folder: Path) -> None:
        self.large = tf.Variable(tf.zeros([300_000]))  # TensorFlow reads what is larger than a buffer in another way
        self.words = tf.Variable(["none", "of"])
        self.count = tf.Variable(0, dtype=tf.int64)
        self.tracked = tf.train.Checkpoint(large=self.large, words=self.words, count=self.count)
        origin = CheckpointOrigin("digits", 3, {"tensorflow": "2"}, {"replicas": 1})
        self.writer = TensorFlowWriter(self.tracked, folder, origin, RetentionPolicy(checkpoint_keep=1), 1)
        self.file = MemoryFile(layout.half_bytes(2_000_000))

    def set(self, step: int) -> None:
        self.large.assign(tf.range(300_000, dtype=tf.float32) * step)
        self.words.assign([f"step {step}", "é"])
        self.count.assign(step)

    def copy(self, step: int) -> None:
        self.set(step)
        room = self.file.begin()
        room.seal(self.writer.copy_to_memory(StepBoundary(step, Position(), {"loss": 0.5}, {}), room)())

    def descriptor(self) -> int:
        return os.open(f"/proc/self/fd/{self.file.descriptor}", os.O_RDONLY)

    def damage(self, half: int) -> None:
        with open(f"/proc/self/fd/{self.file.descriptor}", "r+b", buffering=0) as memory:
            memory.seek(half * self.file.half_bytes + 100)
            memory.write(b"\xff\xff\xff\xff")


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Worker]:
    it = Worker(tmp_path)
    yield it
    it.file.close()


@pytest.mark.parametrize("copies", [1, 2, 3])  # the newest one lies in either half
def test_tensorflow_restores_the_newest_state_from_where_it_lies(dead: Worker, copies: int) -> None:
    for step in range(10, 10 + copies):
        dead.copy(step)
    newest = 9 + copies
    dead.set(0)

    memory = MemoryCheckpoint(dead.descriptor(), "digits", 3)
    with memory.as_folder() as folder:
        restored = restore_checkpoint(dead.tracked, folder, 1, memory=memory)
        manifest = read_manifest(folder)
        state = (folder / names.STATE).read_bytes()

    assert memory.name == CheckpointName(newest, 3)
    assert (restored.name, restored.state.step) == (str(memory.name), newest)
    assert dead.count.numpy() == newest
    assert [text.decode() for text in dead.words.numpy()] == [f"step {newest}", "é"]
    assert np.array_equal(dead.large.numpy(), np.arange(300_000, dtype=np.float32) * newest)
    assert (manifest.step, manifest.attempt, manifest.versions, manifest.metrics) == (
        newest,
        3,
        {"tensorflow": "2"},
        {"loss": 0.5},
    )
    assert manifest.size_bytes > 1_200_000
    assert b'"step"' in state
    assert not folder.exists()


def test_a_large_state_is_copied_without_checksums_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tf.Variable(tf.range(2 * LEAST_BYTES // 4, dtype=tf.float32))
    tracked = tf.train.Checkpoint(large=large)
    writer = TensorFlowWriter(
        tracked, tmp_path, CheckpointOrigin("digits", 3, {}, {}), RetentionPolicy(checkpoint_keep=1), 1
    )
    file = MemoryFile(layout.half_bytes(2 * LEAST_BYTES + 1_000_000))
    room = file.begin()
    room.seal(writer.copy_to_memory(StepBoundary(7, Position(), {}, {}), room)())
    before = large.numpy().copy()
    large.assign(tf.zeros_like(large))
    asked: list[Path] = []

    memory = MemoryCheckpoint(os.open(f"/proc/self/fd/{file.descriptor}", os.O_RDONLY), "digits", 3)
    with memory.as_folder() as folder, monkeypatch.context() as patch:
        patch.setattr(memory, "add_checksums", asked.append)
        restore_checkpoint(tracked, folder, 1, memory=memory)
        assert large.numpy().tobytes() == before.tobytes()
        large.assign(tf.zeros_like(large))
        patch.undo()
        memory.add_checksums(folder)
        tracked.read(str(folder / names.PREFIX)).assert_consumed()

    file.close()
    assert large.numpy().tobytes() == before.tobytes(), "TensorFlow's reader takes it too"
    assert asked == []


@pytest.mark.parametrize("lacks", ["space", "a folder"])
def test_a_full_place_for_small_files_is_no_reason_not_to_restore(
    dead: Worker, small_disk: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """/dev/shm is everybody's: another program may have filled it."""
    dead.copy(10)
    dead.set(0)
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass
    place = small_disk if lacks == "space" else small_disk / "none"
    monkeypatch.setattr(memory_checkpoint, "SHARED_MEMORY", place)
    before = descriptors()

    memory = MemoryCheckpoint(dead.descriptor(), "digits", 3)
    with memory.as_folder() as folder:
        restore_checkpoint(dead.tracked, folder, 1, memory=memory)

    assert dead.count.numpy() == 10
    assert descriptors() == before, "nothing stays open"
    assert not folder.exists()
    assert os.listdir(small_disk) == ["filler"]


def test_of_a_newest_copy_that_is_damaged_the_one_before_is_restored(dead: Worker) -> None:
    dead.copy(10)
    dead.copy(11)
    dead.damage(0)

    memory = MemoryCheckpoint(dead.descriptor(), "digits", 3)

    assert memory.name.step == 10
    memory.close()


def test_what_is_not_whole_or_of_others_is_refused_and_let_go(dead: Worker) -> None:
    dead.copy(10)
    before = descriptors()

    with pytest.raises(NoCopy, match="of attempt 3 of digits"):
        MemoryCheckpoint(dead.descriptor(), "digits", 2)
    with pytest.raises(NoCopy, match="of attempt 3 of digits"):
        MemoryCheckpoint(dead.descriptor(), "letters", 3)
    dead.damage(1)
    with pytest.raises(NoCopy, match="do not have the hash"):
        MemoryCheckpoint(dead.descriptor(), "digits", 3)
    with pytest.raises(ValueError, match="empty"):
        MemoryCheckpoint(os.memfd_create("empty"), "digits", 3)

    assert descriptors() == before


class Offer:
    """A daemon that hands the file over, once."""

    def __init__(self, name: str, descriptor: int | None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{name}")
        self._socket.listen()
        self._descriptor = descriptor
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection, self._socket:
            if self._descriptor is not None:
                socket.send_fds(connection, [b"memory"], [self._descriptor])


def begun(go: Go) -> tuple[MemoryCheckpoint | None, Listener]:
    listener = Listener()
    attempt = Attempt(Launch(job="digits"), PendingRequests(), listener, number=4)  # type: ignore[arg-type]
    return open_memory(attempt, go), listener


@pytest.mark.parametrize(
    ("restore", "is_used"),
    [
        (None, True),
        ("/c/step-0000000009.a3", True),
        ("/c/step-0000000010.a3", False),
        ("/c/step-0000000011.a2", False),
        ("/c/model.ckpt-12", True),
    ],
)
def test_the_newer_of_memory_and_disk_is_used(dead: Worker, restore: str | None, is_used: bool) -> None:
    dead.copy(10)
    Offer(f"stepkeeper-test-{os.getpid()}", dead.file.descriptor)

    memory, listener = begun(Go(4, restore, f"stepkeeper-test-{os.getpid()}", 3))

    assert (memory is not None) == is_used
    assert not listener.shown
    if memory is not None:
        memory.close()


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file another user's")
def test_who_has_taken_the_daemons_place_can_give_no_other_state(dead: Worker) -> None:
    """The name of the socket is anybody's once the daemon has closed it. All hashes are right."""
    dead.copy(10)
    os.fchown(dead.file.descriptor, 65534, 65534)
    name = f"stepkeeper-test-other-{os.getpid()}"
    Offer(name, dead.file.descriptor)

    memory, listener = begun(Go(4, "/c/step-0000000009.a3", name, 3))

    assert memory is None
    assert "a file of uid 65534" in listener.shown[0]


def test_without_the_memory_the_disk_is_used_and_that_is_said(dead: Worker) -> None:
    dead.copy(10)
    name = f"stepkeeper-test-refuses-{os.getpid()}"
    Offer(name, None)

    assert begun(Go(4, None))[0] is None
    for socket_name, why in ((name, "did not hand it over"), (f"{name}-gone", "refused")):
        memory, listener = begun(Go(4, "/c/step-0000000009.a3", socket_name, 3))
        assert memory is None
        assert why in listener.shown[0]


def test_variable_that_the_first_step_makes_is_restored_from_memory_too(
    dead: Worker, daemon: DaemonEnd, begin: Callable[[Launch], None], tmp_path: Path
) -> None:
    """TensorFlow reads its value when it is made, from the files that the restore has read."""
    _ = dead.tracked.save_counter  # as of a run
    dead.copy(10)
    name = f"stepkeeper-test-later-{os.getpid()}"
    Offer(name, dead.file.descriptor)
    begin(Launch(job="digits", control=daemon.control(), checkpoint_dir=tmp_path / "checkpoints"))
    daemon.send(Go(1, None, name, 3))

    tracked = tf.train.Checkpoint(words=tf.Variable(["none", "of"]), count=tf.Variable(0, dtype=tf.int64))
    with worker.Run(tracked) as run:
        for _ in run.range(1):
            tracked.large = tf.Variable(tf.zeros([300_000]))
            run.step_done()

    assert run.step == 11
    assert np.array_equal(tracked.large.numpy(), np.arange(300_000, dtype=np.float32) * 10)
