"""What a worker of an earlier version wrote is read; what one of a later version wrote is neither used nor changed."""

import json
import shutil
from pathlib import Path

import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, replayed
from supervisor.protocol.checkpoints.account import ReportedCheckpoint
from supervisor.protocol.formats import NewerFormat
from worker.checks.watch import set_once
from worker.devices import conditions
from worker.progress.divergence import Divergence, add_skipped, read_skipped
from worker.saving.commit_record import CommitRecord
from worker.state.state_file import parse_state

V1 = Path(__file__).with_name("versions") / "v1"


def set_format(path: Path, number: int) -> bytes:
    """Makes a file one of another format; returns its content."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number}))
    return path.read_bytes()


def test_a_checkpoint_and_its_state_are_read():
    folder = V1 / "step-0000000004.a1"

    assert manifest.verify_checkpoint(folder).step == 4
    assert parse_state((folder / layout.STATE).read_bytes()).step == 4


def test_a_state_of_a_later_format_is_refused_with_words():
    body = json.loads((V1 / "step-0000000004.a1" / layout.STATE).read_text()) | {"format": 2}

    with pytest.raises(ValueError, match=r"newer stepkeeper wrote state.json \(format 2, this version reads up to 1\)"):
        parse_state(json.dumps(body).encode())


def test_conditions_are_read_and_written_with_their_format(tmp_path: Path):
    written = json.loads((V1 / layout.CONDITIONS).read_text())

    assert conditions.recorded_conditions(V1.parent) is None
    shutil.copy(V1 / layout.CONDITIONS, tmp_path)
    assert conditions.recorded_conditions(tmp_path) == written
    conditions.record_conditions(written, tmp_path)
    assert json.loads((tmp_path / layout.CONDITIONS).read_text()) == {"format": 1, **written}
    assert conditions.recorded_conditions(tmp_path) == written


def test_conditions_of_a_later_format_are_compared_as_far_as_they_are_known_and_stay(tmp_path: Path):
    shutil.copy(V1 / layout.CONDITIONS, tmp_path)
    before = set_format(tmp_path / layout.CONDITIONS, 2)
    messages: list[str] = []

    changed = conditions.report_changed_conditions({"replicas": 2}, tmp_path, None, messages.append)

    assert changed == ("replicas is 2, was 1",)
    assert "cannot record the conditions" in messages[0]
    assert "newer stepkeeper wrote conditions.json" in messages[0]
    assert (tmp_path / layout.CONDITIONS).read_bytes() == before


def test_skipped_batches_are_read(tmp_path: Path):
    shutil.copy(V1 / layout.SKIPPED, tmp_path)

    add_skipped(tmp_path, Divergence(9, "loss of step 9 is nan", ((1, 2),)), 2)

    assert read_skipped(tmp_path) == {(0, 4), (0, 5), (1, 2)}


def test_skipped_batches_of_a_later_format_stop_the_start_and_stay(tmp_path: Path):
    shutil.copy(V1 / layout.SKIPPED, tmp_path)
    before = set_format(tmp_path / layout.SKIPPED, 2)

    with pytest.raises(NewerFormat, match=r"newer stepkeeper wrote skipped.json \(format 2"):
        read_skipped(tmp_path)
    with pytest.raises(NewerFormat):
        add_skipped(tmp_path, Divergence(9, "nan", ((1, 2),)), 2)

    assert (tmp_path / layout.SKIPPED).read_bytes() == before


def test_what_a_later_version_has_noted_beside_the_checkpoints_stays(tmp_path: Path):
    (tmp_path / layout.SET_ONCE).write_text('{"digests": {"normalizer.mean": "1"}}')
    (tmp_path / layout.REPLAYED).write_text('{"checkpoints": ["step-0000000004.a1"]}')
    before = [set_format(tmp_path / name, 2) for name in (layout.SET_ONCE, layout.REPLAYED)]

    set_once.keep_set_once(tmp_path, {"normalizer.mean": 3})
    with pytest.raises(NewerFormat, match=r"newer stepkeeper wrote replayed.json \(format 2"):
        replayed.add_replayed(tmp_path, ["step-0000000009.a1"])

    assert [(tmp_path / name).read_bytes() for name in (layout.SET_ONCE, layout.REPLAYED)] == before


def record_of(folder: Path) -> CommitRecord:
    """The record of a directory, as the earlier version wrote it."""
    record = CommitRecord(folder, Path("/data/run"))
    record.path.parent.mkdir()
    shutil.copy(V1 / "commit-record.json", record.path)
    return record


def test_what_a_worker_without_a_daemon_remembered_is_read(tmp_path: Path):
    record = record_of(tmp_path)

    assert record.load() == ReportedCheckpoint(4, "step-0000000004.a1", "/data/run", "ext4 at /")
    record.remember("step-0000000009.a1", 9)
    assert json.loads(record.path.read_text())["format"] == 1


def test_what_one_of_a_later_version_remembered_counts_and_stays(tmp_path: Path):
    record = record_of(tmp_path)
    before = set_format(record.path, 2)

    record.remember("step-0000000009.a1", 9)

    assert record.path.read_bytes() == before
    found = record.load()
    assert found is not None and found.step == 4


@pytest.mark.tensorflow
def test_a_description_of_batches_is_read_and_one_of_a_later_format_is_not(tmp_path: Path):
    import tensorflow as tf

    from worker.batch_spec import UnknownBatchSpec, write_spec, zero_batch

    shutil.copy(V1 / layout.BATCH, tmp_path)
    features, labels = zero_batch(tmp_path, tf.distribute.get_strategy())
    assert (features.shape, labels.shape) == ((8, 2), (8, 1))

    write_spec(tmp_path, (features, labels))
    assert json.loads((tmp_path / layout.BATCH).read_text())["format"] == 1
    assert zero_batch(tmp_path, tf.distribute.get_strategy())[0].shape == (8, 2)

    before = set_format(tmp_path / layout.BATCH, 2)
    with pytest.raises(UnknownBatchSpec, match=r"newer stepkeeper wrote batch.json"):
        zero_batch(tmp_path, tf.distribute.get_strategy())
    with pytest.raises(NewerFormat):
        write_spec(tmp_path, (features, labels))
    assert (tmp_path / layout.BATCH).read_bytes() == before


@pytest.mark.tensorflow
def test_an_export_is_verified_and_one_of_a_later_format_is_not_called_damaged(tmp_path: Path):
    from worker.export import RECORD, ExportError, verify

    shutil.copytree(V1 / "export", tmp_path / "4")
    assert verify(tmp_path / "4")["step"] == 4

    set_format(tmp_path / "4" / RECORD, 2)
    with pytest.raises(ExportError, match=r"cannot use the export .*4: a newer stepkeeper wrote EXPORT.json"):
        verify(tmp_path / "4")
