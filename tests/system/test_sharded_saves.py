"""Several workers write one checkpoint together: whoever dies at whatever moment, what counts is whole and exact."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from supervisor.host.gang.free_port import free_port
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.checkpoints.retention import CHECKPOINT_KEEP
from supervisor.protocol.damage import BundleError
from supervisor.protocol.gang import cluster_text
from supervisor.protocol.mirror import verification
from supervisor.protocol.tensorbundle import verify
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Launch, SaveShards, without_launch_variables
from tests import forked, forking
from tests.places import ROOT
from tests.reading import whole_lines
from tests.system.harness import Daemon
from tests.system.test_prove import get
from tests.worker import training

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("two_replicas"),
]

SCRIPT = ROOT / "tests" / "worker" / "children" / "sharded.py"
STEPS = 40
PATIENCE_S = 300.0
START_S = 120.0  # of two workers, on a machine that does other work


def kills(workers: int) -> dict[str, tuple[int, str, int]]:
    """By name: the rank before whose operation (an expression) a rank is killed. The member is the last rank."""
    last = workers - 1
    part = rf"ckpt\.data-{last:05}-of-{workers:05}"
    return {
        "the member, before its part": (last, f"create {part}", last),
        "the member, in its part": (last, f"pwrite {part}", last),
        "the member, before its part is synced": (last, f"fsync {part}", last),
        "the member, before it reports": (last, r"fsync step-.*\.partial", last),
        "the member, once it has reported": (0, r"create ckpt\.index", last),
        "another member, while this one writes": (last, f"pwrite {part}", 1),
        "the chief, before it orders": (0, r"mkdir step-.*\.partial", 0),
        "the chief, before its part": (0, rf"create ckpt\.data-00000-of-{workers:05}", 0),
        "the chief, once the member has written": (last, r"fsync step-.*\.partial", 0),
        "the chief, before the index": (0, r"create ckpt\.index", 0),
        "the chief, before the manifest": (0, r"create MANIFEST\.json", 0),
        "the chief, before the rename": (0, r"rename step-.*\.partial", 0),
        "the chief, after the rename": (0, "fsync ckpt", 0),
    }


SOME = ("the member, in its part", "the chief, before the manifest")
"""Those of `make test`; the nightly tests have all."""


def train(
    folder: Path,
    workers: int,
    shards: SaveShards,
    steps: int = STEPS,
    images: Path | None = None,
    make_room: bool = False,
) -> str:
    """Returns what was said on stderr."""
    folder.mkdir(exist_ok=True)
    launch = Launch(strategy="one-device", save_shards=shards)
    if workers > 1:
        launch = Launch(
            strategy="multiworker",
            workers=workers,
            save_shards=shards,
            checkpoint_make_room=make_room,
            checkpoint_keep=100 if make_room else CHECKPOINT_KEEP,
        )
    environment = {**without_launch_variables(os.environ), **launch.to_environment(), "PYTHONPATH": str(ROOT)}
    environment |= {"IMAGES": str(images)} if images is not None else {}
    done = forking.run_chief(
        [sys.executable, str(SCRIPT), str(folder), str(steps)], env=environment, cwd=ROOT, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def program(folder: Path, workers: int, keys: str, every: int = 2, **environment: str) -> str:
    told = "".join(f',{name}="{value}"' for name, value in environment.items())
    return (
        f"[program:pair]\ncommand={sys.executable} {SCRIPT} {folder} {STEPS}\ndirectory={ROOT}\n"
        f"checkpoint_dir={folder}/ckpt\nstrategy=multiworker\nworkers={workers}\ndeterministic=true\n"
        f"checkpoint_interval={every} steps\nredirect_stderr=true\n{keys}"
        f'environment=PYTHONPATH="{ROOT}"{told}\n'
    )


def ends(folder: Path, workers: int = 2) -> list[str]:
    return [(folder / f"end-{rank}").read_text() for rank in range(workers)]


def newest(folder: Path) -> Path:
    return folder / "ckpt" / str(selection.committed_checkpoints(folder / "ckpt")[0])


def values(checkpoint: Path) -> dict[str, bytes]:
    """Of every tensor, as TensorFlow reads it."""
    reader = tf.train.load_checkpoint(str(checkpoint / "ckpt"))
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in reader.get_variable_to_dtype_map()}


Undisturbed = Callable[[int, SaveShards], Path]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The folder of an undisturbed training of so many workers. `images`: what a kill at each moment would have left,
    where each of them wrote its share."""

    @cache
    def trained(workers: int, shards: SaveShards) -> Path:
        folder = tmp_path_factory.mktemp(f"{shards}-{workers}")
        train(folder, workers, shards, images=folder / "images" if shards == "always" else None)
        return folder

    return trained


@pytest.fixture(scope="module")
def whole(undisturbed: Undisturbed) -> Path:
    """Two workers, of which the chief wrote all, as by default where the state is small."""
    return undisturbed(2, "auto")


@pytest.fixture(scope="module")
def shared(undisturbed: Undisturbed) -> Path:
    """Two workers, each of which wrote its share."""
    return undisturbed(2, "always")


def test_checkpoint_of_two_writers_holds_the_same_tensors_as_the_chiefs_alone(whole: Path, shared: Path) -> None:
    names = {path.name for path in newest(shared).iterdir()}

    assert {"ckpt.data-00000-of-00002", "ckpt.data-00001-of-00002", "worker-1.npz"} <= names
    assert {path.name for path in newest(whole).iterdir() if path.name.startswith("ckpt.data")} == {
        "ckpt.data-00000-of-00001"
    }
    assert values(newest(shared)) == values(newest(whole))
    assert ends(shared) == ends(whole)
    assert verify.verify_bundle(newest(shared) / "ckpt").shards == 2
    sizes = [(newest(shared) / f"ckpt.data-0000{rank}-of-00002").stat().st_size for rank in (0, 1)]
    assert max(sizes) < 2 * min(sizes)


@pytest.mark.parametrize("workers", [2, *(pytest.param(workers, marks=pytest.mark.nightly) for workers in (3, 4))])
def test_whatever_moment_one_of_them_is_killed_at_the_newest_is_whole(undisturbed: Undisturbed, workers: int) -> None:
    images = undisturbed(workers, "always") / "images"
    seen = set()
    for image in sorted(images.iterdir()):
        chosen = selection.select_checkpoint(image)
        assert not chosen.rejected, (image, chosen)
        if chosen.path is not None:
            seen.add(manifest.verify_checkpoint(chosen.path).step)
            verify.verify_bundle(chosen.path / "ckpt")

    assert seen == {7, 14, 21, 28, 35, STEPS}
    assert len(list(images.glob("0-*"))) >= 6 * 11
    assert all(len(list(images.glob(f"{rank}-*"))) >= 6 * 5 for rank in range(1, workers))


@pytest.mark.parametrize(
    ("workers", "names"),
    [(2, SOME), *(pytest.param(workers, tuple(kills(workers)), marks=pytest.mark.nightly) for workers in (2, 3, 4))],
    ids=["two, some", "two", "three", "four"],
)
def test_killed_in_every_phase_of_a_save_it_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: Undisturbed, workers: int, names: tuple[str, ...]
) -> None:
    chosen = {attempt: kills(workers)[name] for attempt, name in enumerate(names, 1)}
    (tmp_path / "kills").write_text(json.dumps(chosen))
    with Daemon(tmp_path, program(tmp_path, workers, "save_shards=always\n"), scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until_state("pair", "SUCCEEDED", patience_s=START_S * (len(names) + 1))
        attempts = daemon.call("history", name="pair", limit=100)["attempts"]

    assert len(whole_lines(tmp_path / "killed")) == len(names)
    assert len(attempts) == len(names) + 1
    assert not list((tmp_path / "ckpt").glob("quarantine/*"))
    assert not list((tmp_path / "ckpt").glob("*.partial"))
    assert verify.verify_bundle(newest(tmp_path) / "ckpt").shards == workers
    assert ends(tmp_path, workers) == ends(undisturbed(workers, "auto"), workers)


def test_stop_whose_shares_can_not_be_written_is_saved_by_the_chief_alone(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "limit").write_text(json.dumps([1, 1]))
    with Daemon(
        tmp_path,
        program(tmp_path, 2, "save_shards=always\n", every=10 * STEPS, PAUSE="0.1"),
        scripts_have=forked.TENSORFLOW,
    ) as daemon:
        daemon.until_step("pair", 3, START_S)
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGTERM)
        daemon.until_state("pair", "SUCCEEDED", patience_s=2 * START_S)
        first, second = sorted(daemon.call("history", name="pair")["attempts"], key=lambda attempt: attempt["attempt"])

    assert second["from_step"] == first["to_step"] >= 3
    assert ends(tmp_path) == ends(whole)


@pytest.mark.parametrize("told", [pytest.param(0, marks=pytest.mark.nightly), 1])  # above all one of the others is told
def test_stop_that_can_not_be_saved_at_once_is_saved_a_moment_later(tmp_path: Path, whole: Path, told: int) -> None:
    (tmp_path / "limit").write_text(json.dumps([0, 1]))
    with Daemon(
        tmp_path,
        program(tmp_path, 2, "save_shards=never\n", every=10 * STEPS, PAUSE="0.1"),
        scripts_have=forked.TENSORFLOW,
    ) as daemon:
        daemon.until_step("pair", 3, START_S)
        chief = int((tmp_path / "pid-0").read_text())
        os.kill(int((tmp_path / f"pid-{told}").read_text()), signal.SIGTERM)
        daemon.until(lambda: daemon.events("checkpoint.not_saved"), "the first try fails")
        (tmp_path / "limit").unlink()  # the next attempt has none
        resource.prlimit(chief, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        daemon.until_state("pair", "SUCCEEDED", patience_s=2 * START_S)
        first, second = sorted(daemon.call("history", name="pair")["attempts"], key=lambda attempt: attempt["attempt"])

    assert second["from_step"] == first["to_step"] >= 3
    assert ends(tmp_path) == ends(whole)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_share_that_cannot_be_written_fails_the_save_for_all_and_the_next_one_succeeds(
    tmp_path: Path, whole: Path, rank: int
) -> None:
    (tmp_path / "limit").write_text(json.dumps([rank, 2]))
    said = train(tmp_path, 2, "always")

    assert "cannot save step-0000000014.a1" in said
    assert ("on worker 1" in said) == (rank == 1)
    steps = [name.step for name in selection.committed_checkpoints(tmp_path / "ckpt")]
    assert steps == [STEPS, 7], "after a failure, periodic saves wait longer than this training lasts"
    assert verify.verify_bundle(newest(tmp_path) / "ckpt").shards == 1, "the chief writes alone from then on"
    assert not list((tmp_path / "ckpt").glob("*.partial"))
    assert ends(tmp_path) == ends(whole)


def test_full_disk_costs_old_checkpoints_and_all_write_again(tmp_path: Path, small_disk: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "ckpt").symlink_to(small_disk)
    said = train(folder, 2, "always", make_room=True)

    assert "to make room for" in said
    assert newest(folder).name.startswith(f"step-{STEPS:010}")
    for name in selection.committed_checkpoints(small_disk):
        assert verify.verify_bundle(small_disk / str(name) / "ckpt").shards == 2
        manifest.verify_checkpoint(small_disk / str(name))
    assert ends(folder) == ends(whole)


@pytest.mark.parametrize("variable", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_share_that_is_not_finite_is_saved_by_nobody(tmp_path: Path, variable: int) -> None:
    launch = Launch(strategy="multiworker", workers=2, save_shards="always").to_environment()
    environment = {**without_launch_variables(os.environ), **launch, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT.with_name("not_finite.py")), str(tmp_path), str(variable)]
    done = forked.run(command, env=environment, cwd=ROOT, timeout=PATIENCE_S)

    assert done.returncode == WorkerExit.DIVERGED, done.stderr[-3000:]
    assert f"variables/{variable} is not finite" in done.stderr
    (saved,) = selection.committed_checkpoints(tmp_path)
    assert saved.step == 3
    assert verify.verify_bundle(tmp_path / str(saved) / "ckpt").shards == 2


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_without_a_daemon_the_other_worker_ends_too_and_nothing_counts(tmp_path: Path, victim: int) -> None:
    """Nobody tells it of the death: it learns of it from TensorFlow, amid its part of a save."""
    (tmp_path / "kills").write_text(json.dumps({1: (1, r"create ckpt\.data-00001-of-00002", victim)}))
    cluster = [f"localhost:{free_port()}" for _ in range(2)]
    processes = []
    for rank in (0, 1):
        launch = {**Launch(save_shards="always").to_environment(), "TF_CONFIG": cluster_text(cluster, rank)}
        environment = {**without_launch_variables(os.environ), **launch, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(SCRIPT), str(tmp_path), str(STEPS)]
        processes.append(forked.ForkedProcess(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE))
    try:
        errors = [process.communicate(timeout=PATIENCE_S)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()

    assert processes[victim].returncode == -signal.SIGKILL
    assert processes[1 - victim].returncode > 0, errors
    assert [name.step for name in selection.committed_checkpoints(tmp_path / "ckpt")] == [7]


def test_small_state_is_written_by_the_chief(whole: Path) -> None:
    assert verify.verify_bundle(newest(whole) / "ckpt").shards == 1
    assert (newest(whole) / "worker-1.npz").exists()


@pytest.mark.nightly  # test_stop_that_can_not_be_saved_at_once_is_saved_a_moment_later does so
def test_told_to_write_all_the_chief_ends_with_the_same_bits(whole: Path, undisturbed: Undisturbed) -> None:
    chiefs = undisturbed(2, "never")

    assert verify.verify_bundle(newest(chiefs) / "ckpt").shards == 1
    assert ends(chiefs) == ends(whole)


@pytest.mark.parametrize(
    "workers",
    [1, *(pytest.param(workers, marks=pytest.mark.nightly) for workers in (2, 3, 4))],  # more: test_own_values.py
)
def test_any_number_of_workers_goes_on_from_it(tmp_path: Path, shared: Path, workers: int) -> None:
    shutil.copytree(newest(shared), tmp_path / "ckpt" / newest(shared).name)
    train(tmp_path, workers, "always", STEPS + 3)

    assert newest(tmp_path).name.startswith(f"step-{STEPS + 3:010}")
    data = {path.name for path in newest(tmp_path).glob("ckpt.data-*")}
    assert data == {f"ckpt.data-{rank:05}-of-{workers:05}" for rank in range(workers)}
    assert verify.verify_bundle(newest(tmp_path) / "ckpt").shards == workers


@pytest.mark.nightly  # as above, of more writers, and by the bits
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("writers", [2, 3, 4])
def test_any_number_of_workers_restores_the_same_bits(
    tmp_path: Path, undisturbed: Undisturbed, writers: int, workers: int
) -> None:
    saved = undisturbed(writers, "always")
    shutil.copytree(newest(saved), tmp_path / "ckpt" / newest(saved).name)
    train(tmp_path, workers, "always", STEPS)

    assert len(selection.committed_checkpoints(tmp_path / "ckpt")) == 1, "there is nothing to train"
    (common,) = {line.split()[-1] for line in ends(saved, writers)}
    assert {line.split()[-1] for line in ends(tmp_path, workers)} == {common}, "averages are merged for another number"
    if workers == writers:
        assert ends(tmp_path, workers) == ends(saved, workers)


@pytest.mark.nightly  # test_damaged_part_is_never_accepted has what is selected then
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_after_damage_to_a_part_all_begin_from_the_one_before_with_the_same_bits(
    tmp_path: Path, undisturbed: Undisturbed, workers: int
) -> None:
    shutil.copytree(undisturbed(workers, "always") / "ckpt", tmp_path / "ckpt")
    part = newest(tmp_path) / f"ckpt.data-{workers - 1:05}-of-{workers:05}"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)
    said = train(tmp_path, workers, "always")

    assert f"refused {part.parent.name}: {part.name} has hash" in said
    assert ends(tmp_path, workers) == ends(undisturbed(workers, "auto"), workers)


def test_tensorflow_alone_restores_it(shared: Path) -> None:
    tracked = training.build(tf.distribute.get_strategy())
    tracked.optimizer.build(tracked.model.trainable_variables)
    tracked.read(str(newest(shared) / "ckpt")).assert_existing_objects_matched().expect_partial()

    restored = [*tracked.model.trainable_variables, *tracked.optimizer.variables]
    saved = set(values(newest(shared)).values())
    assert {variable.numpy().tobytes() for variable in restored} <= saved
    assert len(restored) > 10


DAMAGES = ("flipped", "cut", "missing", "of another step", "of the other worker")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", ["ckpt.data-00000-of-00002", "ckpt.data-00001-of-00002", "ckpt.index", "worker-1.npz"])
def test_damaged_part_is_never_accepted(tmp_path: Path, shared: Path, file: str, damage: str) -> None:
    shutil.copytree(shared / "ckpt", tmp_path / "ckpt")
    older, newer = (tmp_path / "ckpt" / str(name) for name in selection.committed_checkpoints(tmp_path / "ckpt")[1::-1])
    part = newer / file
    content = part.read_bytes()
    match damage:
        case "flipped":
            flipped = bytearray(content)
            flipped[len(content) // 2] ^= 4
            part.write_bytes(flipped)
        case "cut":
            part.write_bytes(content[:-1])
        case "missing":
            part.unlink()
        case "of another step":
            part.write_bytes((older / file).read_bytes())
        case "of the other worker":
            other = "ckpt.data-00000-of-00002" if "00001" in file else "ckpt.data-00001-of-00002"
            part.write_bytes((newer / other).read_bytes())

    with pytest.raises(ManifestError, match=re.escape(file)):
        manifest.verify_checkpoint(newer)
    assert selection.select_checkpoint(tmp_path / "ckpt").path == older
    if file != "worker-1.npz" and damage != "of another step":  # a whole index or part of another step may fit
        with pytest.raises(BundleError):
            verify.verify_bundle(newer / "ckpt")


def test_everything_that_reads_a_checkpoint_takes_several_data_files(tmp_path: Path) -> None:
    """By default, as the state is large enough for it: metrics, lists and sizes, the mirror, and a start from it."""
    store = tmp_path / "store"
    (store / "pair").mkdir(parents=True)
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"

    def training(folder: Path) -> str:
        folder.mkdir()
        return program(folder, 2, f"mirror=file://{store}\n", every=10 * STEPS, BALLAST_MIB="33")

    with Daemon(here, training(here), scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until_state("pair", "SUCCEEDED", patience_s=START_S)
        daemon.until(lambda: daemon.status("pair")["job"]["mirror"]["newest_step"] == STEPS, "it is in the store")
        job = daemon.status("pair")["job"]
        (listed,) = daemon.call("checkpoints", name="pair")["checkpoints"]
        metrics = get(daemon, "/metrics")
    saved = newest(here)
    assert verify.verify_bundle(saved / "ckpt").shards == 2
    size = sum(file.size for file in manifest.verify_checkpoint(saved).files)
    assert size == sum(path.stat().st_size for path in saved.iterdir() if path.name != layout.MANIFEST) > 33 << 20
    on_disk = size + (saved / layout.MANIFEST).stat().st_size
    assert (listed["valid"], listed["size_bytes"], job["checkpoint"]["size_bytes"]) == (True, size, on_disk)
    assert f'stepkeeper_checkpoint_size_bytes{{program="pair"}} {on_disk}' in metrics
    (remote,) = verification.verify_url(f"file://{store}/pair")
    assert (remote.valid, remote.size_bytes) == (True, size)

    with Daemon(elsewhere, training(elsewhere), scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until_state("pair", "SUCCEEDED", patience_s=START_S)
        (attempt,) = daemon.call("history", name="pair")["attempts"]

    assert attempt["restored"] == saved.name
    assert values(newest(elsewhere)) == values(saved)
    assert ends(elsewhere) == ends(here)


READS = re.compile(r"(?:read|pread64|preadv2?)\(\d+<([^>]+)>.* = (\d+)")


@pytest.mark.nightly  # test_shared_read.py has who reads which byte
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace, to see what is read")
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_read_the_folder_once_and_each_reads_all_if_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("BALLAST_MIB", "8")  # beside which a state.json that is read twice is nothing
    train(tmp_path / "saved", workers, "always", steps=7)
    saved = newest(tmp_path / "saved")
    size = manifest.verify_checkpoint(saved).size_bytes
    read: dict[str, float] = {}
    shards: SaveShards
    for shards in ("always", "never"):
        folder = tmp_path / shards
        shutil.copytree(saved, folder / "ckpt" / saved.name)
        launch = Launch(strategy="multiworker", workers=workers, save_shards=shards)
        environment = {**without_launch_variables(os.environ), **launch.to_environment(), "PYTHONPATH": str(ROOT)}
        (folder / "calls").mkdir()
        calls_to = ["strace", "-ff", "-y", "-qq", "-e", "trace=read,pread64,preadv,preadv2", "-o"]
        command = [*calls_to, str(folder / "calls" / "of"), sys.executable, str(SCRIPT), str(folder), "7"]
        subprocess.run(command, env=environment, cwd=ROOT, timeout=3 * PATIENCE_S, check=True, capture_output=True)
        calls = "".join(path.read_text(errors="replace") for path in (folder / "calls").iterdir())
        read[shards] = sum(int(n) for path, n in READS.findall(calls) if str(folder / "ckpt") in path) / size

    assert 1.9 < read["always"] < 2.5, "the chief proves it, and all read it together once"
    assert workers + 0.9 < read["never"]
