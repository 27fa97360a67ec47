"""What a dead worker left in memory becomes a checkpoint, or nothing at all. Real processes, memory and files."""

import contextlib
import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from supervisor.host.children import Identity
from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.memory_tier.salvage import NotSalvaged, Salvaged, SalvageRequest, salvage
from supervisor.protocol import layout as names
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.checkpoints.selection import select_checkpoint
from supervisor.protocol.memory_tier import layout
from supervisor.protocol.memory_tier.layout import BundlePlace, Description, FilePlace, TensorPlace
from supervisor.protocol.mounts import mount_of
from supervisor.protocol.tensorbundle import verify
from tests.system.harness import let_others_in
from tests.waiting import wait_until
from worker.saving.memory_file import MemoryFile

pytestmark = pytest.mark.integration

ELEMENTS = 5000
ALICE = Identity(41001, 41001, ())


class Job:
    """A worker's memory, as `worker/saving` writes it, and the daemon's hold of it."""

    def __init__(self, folder: Path, elements: int = ELEMENTS) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.elements = elements
        self.file = MemoryFile(layout.half_bytes(8 * elements + (1 << 16)))
        self.held = HeldMemory(os.getpid(), self.file.descriptor, None)
        self.request = SalvageRequest(folder, "digits", 3)

    def copy(self, step: int, **changes: object) -> None:
        room = self.file.begin()
        offset, memory = room.take(4 * self.elements)
        memory[:] = step.to_bytes(4, "little") * self.elements
        state, words = b'{"position": {"epoch": 1, "batch": %d}}' % step, self.elements * 4
        at, place = room.take(len(state))
        place[:] = state
        bundle = BundlePlace("ckpt", offset, words, (TensorPlace("count", 3, (self.elements,), 0, words),))
        files = (FilePlace(names.STATE, at, len(state)), FilePlace(names.FROM_MEMORY, at, 0))
        room.seal(replace(Description("digits", 3, step, 1.5e9, (bundle,), files), **changes))  # type: ignore[arg-type]

    def save(self, step: int, attempt: int = 2) -> str:
        """A checkpoint of a worker that lived."""
        name = names.CheckpointName(step, attempt)
        with NewFolder(self.folder / name.partial) as folder:
            folder.add("count", f"{step}\n".encode())
            files = tuple(manifest.FileRecord(file, *written) for file, written in folder.finish().items())
            made = manifest.Manifest(job="digits", attempt=attempt, step=step, created_wall_at=1.0, files=files)
            folder.add(names.MANIFEST, made.to_bytes())
            folder.commit(self.folder / str(name))
        return str(name)

    def salvage(self, user: Identity | None = None, **changes: object) -> Salvaged | NotSalvaged:
        return salvage(self.held, replace(self.request, **changes), user)  # type: ignore[arg-type]

    def damage(self, half: int, at: int = 100) -> None:
        with open(f"/proc/self/fd/{self.file.descriptor}", "r+b", buffering=0) as memory:
            memory.seek(half * self.file.half_bytes + at)
            memory.write(b"\xff\xff\xff\xff")

    @property
    def committed(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    it = Job(tmp_path / "ckpt")
    yield it
    it.held.close()
    it.file.close()


def test_the_newest_state_becomes_a_whole_checkpoint_that_is_selected(job: Job) -> None:
    job.copy(10)
    job.copy(11)

    salvaged = job.salvage()

    assert isinstance(salvaged, Salvaged)
    assert (salvaged.name, salvaged.step, job.committed) == ("step-0000000011.a3", 11, ["step-0000000011.a3"])
    folder = job.folder / salvaged.name
    assert manifest.verify_checkpoint(folder).created_wall_at == 1.5e9
    assert (folder / "ckpt.data-00000-of-00001").read_bytes() == (11).to_bytes(4, "little") * ELEMENTS
    verify.verify_bundle(folder / "ckpt")
    chosen = select_checkpoint(job.folder)
    assert (chosen.step, chosen.data_position) == (11, "epoch 1, batch 11")


def test_of_a_newest_copy_that_is_damaged_the_one_before_is_used(job: Job) -> None:
    job.copy(10)
    job.copy(11)
    job.damage(0)  # copies begin in the second half

    salvaged = job.salvage()

    assert isinstance(salvaged, Salvaged)
    assert salvaged.step == 10


def test_a_copy_that_was_not_complete_is_not_used(job: Job) -> None:
    job.copy(10)
    job.file.begin().take(100)[1][:] = b"x" * 100

    salvaged = job.salvage()

    assert isinstance(salvaged, Salvaged)
    assert salvaged.step == 10


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda job: None, "none was complete"),
        (lambda job: (job.copy(10), job.damage(1)), "do not have the hash"),
        (lambda job: job.copy(10, attempt=2), "of attempt 2 of digits"),
        (lambda job: job.copy(10, job="letters"), "of attempt 3 of letters"),
        (lambda job: (job.copy(10), job.salvage()), "step 10 is on the disk"),
        (lambda job: (job.copy(10), (job.folder / "step-0000000012.a3").mkdir()), "step 12 is on the disk"),
        (lambda job: (job.copy(10), (job.folder / "step-0000000002.a4.partial").mkdir()), "attempt 4 has begun"),
    ],
)
def test_nothing_is_written_of_what_is_not_proven_or_not_newer(
    job: Job, break_it: Callable[[Job], object], why: str
) -> None:
    break_it(job)
    before = job.committed

    result = job.salvage()

    assert isinstance(result, NotSalvaged)
    assert result.errno is None
    assert why in result.text
    assert job.committed == before


def test_older_ones_are_deleted_as_the_job_says(job: Job) -> None:
    policy = RetentionPolicy(checkpoint_keep=2, checkpoint_keep_best=("min", "loss"))
    for step, loss in ((10, 0.1), (11, 0.5), (12, 0.4), (13, 0.3)):
        job.copy(step, metrics={"loss": loss})
        assert isinstance(job.salvage(retention=policy), Salvaged)

    assert job.committed == ["step-0000000010.a3", "step-0000000012.a3", "step-0000000013.a3"]


def test_what_nobody_has_looked_at_never_takes_the_place_of_what_was_saved_in_good_order(job: Job) -> None:
    """It may be what the next attempt refuses, as training diverged before it was copied: then there has to be another
    one to begin from."""
    for step in (1, 2):
        saved = job.save(step)
    for step in (10, 11):
        job.copy(step)
        assert isinstance(job.salvage(retention=RetentionPolicy(checkpoint_keep=1)), Salvaged)

    assert job.committed == [saved, "step-0000000011.a3"]


def test_what_an_attempt_saved_itself_stays_beside_a_newer_one_that_is_suspect(job: Job) -> None:
    """It began from an older one than the suspect, which it has deleted since: what it saved is all that is sound."""
    suspect, own = job.save(200), job.save(110, attempt=3)
    job.copy(115)

    assert isinstance(job.salvage(retention=RetentionPolicy(checkpoint_keep=1)), Salvaged)
    assert job.committed == [own, "step-0000000115.a3", suspect]


def test_a_directory_on_another_file_system_than_before_is_not_written_to(job: Job) -> None:
    job.copy(10)

    elsewhere = job.salvage(mount="xfs at /data")
    gone = job.salvage(directory=job.folder / "gone")

    assert isinstance(elsewhere, NotSalvaged) and "it was on xfs at /data, and is on" in elsewhere.text
    assert isinstance(gone, NotSalvaged) and gone.errno == 2
    assert job.committed == []
    assert isinstance(job.salvage(mount=str(mount_of(job.folder))), Salvaged)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_keeps_what_it_holds_unless_older_ones_may_go(tmp_path: Path) -> None:
    below = tmp_path / "ckpt"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", below], check=True)
    try:
        job = Job(below, elements=100_000)
        job.copy(10)
        assert isinstance(job.salvage(), Salvaged)
        job.copy(11)
        assert isinstance(job.salvage(), Salvaged)
        job.copy(12)

        full = job.salvage()
        assert isinstance(full, NotSalvaged)
        assert full.errno == 28
        assert job.committed == ["step-0000000010.a3", "step-0000000011.a3"]

        assert isinstance(job.salvage(make_room=True), Salvaged)
        assert job.committed == ["step-0000000011.a3", "step-0000000012.a3"]
        job.held.close()
    finally:
        subprocess.run(["umount", "-l", below], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("restored", [None, "step-0000000001.a1"])
def test_a_full_disk_costs_neither_what_the_attempt_began_from_nor_what_was_saved_in_good_order(
    tmp_path: Path, restored: str | None
) -> None:
    """The newest one may be suspect, and older ones all that is left; or it is one that was in memory too."""
    below = tmp_path / "ckpt"
    below.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", below], check=True)
    try:
        job = Job(below, elements=100_000)
        first, last = job.save(1, attempt=1), job.save(2)
        job.copy(10)
        assert isinstance(job.salvage(), Salvaged)
        job.copy(11)
        assert isinstance(job.salvage(), Salvaged)
        job.copy(12)

        assert isinstance(job.salvage(make_room=True, restored=restored), Salvaged)
        assert job.committed == [*([first] if restored else []), last, "step-0000000011.a3", "step-0000000012.a3"]
        job.held.close()
    finally:
        subprocess.run(["umount", "-l", below], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_unmounted_as_it_is_found_full_costs_nothing_beneath_its_mount_point(tmp_path: Path) -> None:
    for number in range(TRIES):
        below = tmp_path / f"ckpt{number}"
        job = Job(below, elements=30_000_000)
        beneath = [job.save(1, attempt=1), job.save(2), job.save(3)]
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "none", below], check=True)
        job.copy(10)

        def unmount(_: psutil.Process, below: Path = below) -> None:
            subprocess.run(["umount", "-l", below], check=True)

        outcome = disturbed_while_it_writes(job, unmount, make_room=True)
        job.held.close()
        job.file.close()
        if outcome is not None:
            break
        unmount(psutil.Process())

    assert isinstance(outcome, NotSalvaged)
    assert outcome.errno == errno.ENODEV
    assert job.committed == beneath, "what is there was deleted to make room on another disk"


STILL = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
TRIES = 20  # to meet a process that writes: on a busy machine it may have done so before anybody looks


def disturbed_while_it_writes(job: Job, disturb: Callable[[psutil.Process], object], **changes: object) -> object:
    """What `salvage` gives if its process is disturbed amid its checkpoint, where it stands still meanwhile; None if it
    was not amid it when it stopped."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(job.salvage(**changes))  # type: ignore[arg-type]
        except OSError as error:
            results.append(error)

    def is_writing() -> bool:
        return any(name.endswith(".partial") for name in job.committed)

    others = psutil.Process().children()  # servers that other tests share
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: results or is_writing(), "it writes", interval_s=0.001)
    was_writing = False
    for writer in set(psutil.Process().children()) - {*others}:
        with contextlib.suppress(psutil.NoSuchProcess):
            writer.suspend()
            wait_until(lambda: writer.status() in STILL, "it stands still")  # noqa: B023
            if was_writing := is_writing():
                disturb(writer)
            writer.resume()
    thread.join()
    return results[0] if was_writing else None


def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_counts(tmp_path: Path) -> None:
    for number in range(TRIES):
        job = Job(tmp_path / f"ckpt{number}", elements=30_000_000)
        job.copy(10)
        if (outcome := disturbed_while_it_writes(job, psutil.Process.kill)) is not None:
            break
        job.held.close()
        job.file.close()

    assert isinstance(outcome, OSError)
    assert select_checkpoint(job.folder).path is None
    again = job.salvage()
    assert isinstance(again, Salvaged)
    assert select_checkpoint(job.folder).step == 10
    assert job.committed == ["step-0000000010.a3"]
    job.held.close()
    job.file.close()


PUNCH_HOLE_KEEP_SIZE = 3  # linux/falloc.h


@pytest.mark.hostile
def test_holes_that_its_user_makes_later_cost_nobody_memory(job: Job) -> None:
    job.copy(10)
    before = os.fstat(job.held.descriptor).st_blocks
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    assert libc.fallocate(job.file.descriptor, PUNCH_HOLE_KEEP_SIZE, 0, 4096) == 0

    refused = job.salvage()

    assert isinstance(refused, NotSalvaged)
    assert "holes" in refused.text
    assert refused.errno is None  # trying again is useless
    assert os.fstat(job.held.descriptor).st_blocks == before - 8
    assert job.committed == []


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_it_is_written_with_the_rights_of_the_jobs_user(tmp_path: Path, job: Job) -> None:
    job.copy(10)
    let_others_in(tmp_path)

    refused = job.salvage(ALICE)
    assert isinstance(refused, NotSalvaged)
    assert refused.errno == 13
    os.chown(job.folder, ALICE.uid, ALICE.gid)

    assert isinstance(job.salvage(ALICE), Salvaged)
    assert (job.folder / "step-0000000010.a3").stat().st_uid == ALICE.uid
