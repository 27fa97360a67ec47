"""An export is complete or absent, and gives the same outputs in a process without stepkeeper."""

import contextlib
import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, Done, Export, Exported, Failed, Go
from tests.waiting import wait_until
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.export import RECORD, ExportError, _put_in_place, export, verify

pytestmark = pytest.mark.tensorflow
SERVE = """
import sys, numpy, tensorflow as tf
assert "worker" not in sys.modules and "supervisor" not in sys.modules
loaded = tf.saved_model.load(sys.argv[1])
numpy.save(sys.argv[3], loaded.serve(numpy.load(sys.argv[2])).numpy())
"""


@pytest.mark.integration
@pytest.mark.slow
def test_export_gives_the_same_outputs_in_a_fresh_process(two_replicas: Any, tmp_path: Path) -> None:
    tracked = training.build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, total_steps=3, directory=tmp_path / "c") as run:
        training.train(run, tracked, two_replicas)
        folder = export(tracked.model, tmp_path / "export", run.step)
    images = np.random.default_rng(0).normal(size=(7, 8, 8, 1)).astype("float32")
    np.save(tmp_path / "images.npy", images)

    command = [sys.executable, "-c", SERVE, str(folder), str(tmp_path / "images.npy"), str(tmp_path / "out.npy")]
    subprocess.run(command, check=True, timeout=100, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})

    assert folder == tmp_path / "export" / "3"
    assert np.allclose(np.load(tmp_path / "out.npy"), tracked.model(images, training=False), rtol=1e-6, atol=1e-6)


def test_export_has_no_optimizer_so_training_cannot_continue_from_it(two_replicas: Any, tmp_path: Path) -> None:
    tracked = training.build(two_replicas)
    with two_replicas.scope():
        tracked.optimizer.build(tracked.model.trainable_variables)
    folder = export(tracked.model, tmp_path, 1)

    stored = [name for name, _ in tf.train.list_variables(str(folder / "variables" / "variables"))]
    assert stored and not any("optimizer" in name or "momentum" in name for name in stored)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    return export(small(1.0), tmp_path / "export", 7)


def test_job_with_export_dir_exports_at_its_end(
    two_replicas: Any, tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    begin(Launch(checkpoint_dir=tmp_path / "c", export_dir=tmp_path / "export"))
    with worker.Run(training.build(two_replicas), strategy=two_replicas, total_steps=2) as run:
        for _ in run.batches(training.data()):
            run.step_done()

    assert verify(tmp_path / "export" / "2")["step"] == 2


def test_job_that_cannot_export_is_not_done(
    two_replicas: Any, tmp_path: Path, begin: Callable[[Launch], None], daemon: DaemonEnd
) -> None:
    (tmp_path / "file").write_bytes(b"")
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", export_dir=tmp_path / "file"))
    daemon.send(Go(1, restore=None))
    with pytest.raises(SystemExit) as leaving, worker.Run(training.build(two_replicas), strategy=two_replicas):
        pass

    assert leaving.value.code == 74
    assert "training is complete, but cannot export step 0" in daemon.wait_for(Failed).error
    assert daemon.wait_for(Committed).step == 0
    assert not daemon.all_of(Done)


def trained(two_replicas: Any, launch: Launch, begin: Callable[[Launch], None], daemon: DaemonEnd | None) -> Any:
    """Returns the values after eight steps. If there is a daemon, it requests an export after the third."""
    begin(launch)
    tf.keras.utils.set_random_seed(5)
    tracked = training.build(two_replicas)
    step = training.step_of(tracked, two_replicas)
    with worker.Run(tracked, strategy=two_replicas, total_steps=8) as run:
        for images, labels in run.batches(training.data()):
            run.step_done(loss=step(images, labels))
            if daemon is not None and run.step == 3:
                daemon.send(Export(1, 7))
                while not run._attempt.requests.pending_exports:
                    pass
    return training.all_values(tracked)


def test_export_during_training_is_complete_and_changes_nothing(
    two_replicas: Any, tmp_path: Path, begin: Callable[[Launch], None], daemon: DaemonEnd
) -> None:
    alone = trained(two_replicas, Launch(checkpoint_dir=tmp_path / "a"), begin, None)
    daemon.send(Go(1, restore=None))
    told = Launch(control=daemon.control(), checkpoint_dir=tmp_path / "b", export_dir=tmp_path / "export")
    asked = trained(two_replicas, told, begin, daemon)

    answer = daemon.wait_for(Exported)
    assert answer == Exported(1, 7, 3, path=str(tmp_path / "export" / "3"))
    assert verify(tmp_path / "export" / "3")["step"] == 3
    assert all(np.array_equal(one, other) for one, other in zip(alone, asked, strict=True))


def test_failing_export_is_answered_and_training_continues(
    two_replicas: Any, tmp_path: Path, begin: Callable[[Launch], None], daemon: DaemonEnd
) -> None:
    daemon.send(Go(1, restore=None))
    trained(two_replicas, Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c"), begin, daemon)

    assert daemon.wait_for(Exported) == Exported(1, 7, 3, error="cannot export: the job has no export_dir")
    assert daemon.wait_for(Done).step == 8


class RunsEagerly(tf.keras.Model):  # type: ignore[misc]
    """A model for `run_eagerly` that can't be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tf.keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs) * float(inputs.numpy().mean() > 0)


def test_training_continues_if_the_model_cannot_be_traced_for_an_export(
    begin: Callable[[Launch], None], daemon: DaemonEnd, tmp_path: Path
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", export_dir=tmp_path / "export"))
    daemon.send(Go(1, restore=None))
    model = RunsEagerly()
    model(tf.ones((2, 4)))
    with pytest.raises(LookupError), worker.Run(tf.train.Checkpoint(model=model)) as run:
        daemon.send(Export(1, id=7))
        wait_until(lambda: run._attempt.requests.pending_exports, "it is asked to export")
        run.step_done()
        raise LookupError

    assert "has no attribute 'numpy'" in (daemon.wait_for(Exported).error or "")
    assert not list((tmp_path / "export").iterdir())


def test_program_without_a_run_answers_that_it_cannot_export(
    tmp_path: Path, begin: Callable[[Launch], None], daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", export_dir=tmp_path / "export"))
    daemon.send(Export(1, 7))

    assert "has no worker.Run" in (daemon.wait_for(Exported).error or "")


def small(weight: float) -> tf.Module:
    module = tf.Module()
    module.weight = tf.Variable(weight)
    module.serve = tf.function(lambda x: x * module.weight, input_signature=[tf.TensorSpec([], tf.float32)])
    return module


def test_record_describes_the_export_and_verifies_every_file(exported: Path) -> None:
    record = verify(exported)

    assert (record["step"], record["format"]) == (7, 1)
    assert {"saved_model.pb", "variables/variables.index"} <= set(record["files"])
    for name in record["files"]:
        (exported / name).write_bytes(b"other")
        with pytest.raises(ExportError, match="has changed since it was written"):
            verify(exported)
        break


@pytest.mark.parametrize(
    "content", [None, b"", b"[]", b'{"files": 3}', json.dumps({"files": {"no": [1, "x"]}}).encode()]
)
def test_folder_without_a_valid_record_is_not_an_export(content: bytes | None, exported: Path) -> None:
    (exported / RECORD).unlink()
    if content is not None:
        (exported / RECORD).write_bytes(content)

    with pytest.raises(ExportError):
        verify(exported)


def test_second_export_of_a_step_replaces_the_first(exported: Path) -> None:
    again = export(small(2.0), exported.parent, 7)

    assert again == exported
    loaded = tf.saved_model.load(str(again))
    assert float(loaded.serve(3.0)) == 6.0
    assert [path.name for path in exported.parent.iterdir()] == ["7"]


def test_failed_export_leaves_the_earlier_one_and_nothing_else(exported: Path) -> None:
    unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(3)])

    with pytest.raises(ExportError, match="cannot export step 7"):
        export(unbuilt, exported.parent, 7)

    assert verify(exported)["step"] == 7
    assert [path.name for path in exported.parent.iterdir()] == ["7"]


@pytest.mark.parametrize("fails", [False, True])
def test_file_system_without_exchange_of_names_gets_two_renames(fails: bool, exported: Path, tmp_path: Path) -> None:
    def can_not(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, "as NFS says")

    partial = exported.with_name("7.partial")
    if not fails:
        shutil.copytree(exported, partial)
        (partial / "new").touch()
    with contextlib.suppress(FileNotFoundError):
        _put_in_place(partial, exported, can_not)

    assert verify(exported)["step"] == 7
    assert (exported / "new").exists() is not fails
    assert [path.name for path in exported.parent.iterdir()] == ["7"]
