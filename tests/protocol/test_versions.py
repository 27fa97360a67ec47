"""Files that earlier versions wrote are read, and those of later versions are neither read nor changed."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, removal, selection, verification
from supervisor.protocol.checkpoints.selection import SelectionRules
from supervisor.protocol.damage import Damage, OlderBecause, UnreadableCheckpoint
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.mirror.folder_epochs import (
    begun_epoch,
    encode_fetched,
    fetched_epoch,
    held_epoch,
    hold_epoch,
    known_epoch,
    record_begin,
    record_seen,
)
from supervisor.protocol.mirror.keys import Epoch, decode_epoch, encode_epoch
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.codec import ProtocolError

V1 = Path(__file__).with_name("versions") / "v1"
CHECKPOINT = V1 / "step-0000000020.a1"


def directory_with(folder: Path, *steps: int) -> Path:
    """A checkpoint directory with checkpoints of these steps; the last is of a later format."""
    for number, step in enumerate(steps, 1):
        name = layout.CheckpointName(step, 1)
        shutil.copytree(CHECKPOINT, folder / str(name))
        body = json.loads((CHECKPOINT / layout.MANIFEST).read_text())
        del body["self_hash"]
        body |= {"step": step, "format": 2 if number == len(steps) else 1}
        body["self_hash"] = manifest._self_hash(body)
        (folder / str(name) / layout.MANIFEST).write_text(json.dumps(body))
    return folder


def content_of(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("body", [{}, {"format": 1}, {"format": 2}])
def test_a_file_without_a_number_is_of_format_1(body: dict[str, Any]):
    assert check_format(body, 2, "x.json") == body.get("format", 1)


@pytest.mark.parametrize("number", [0, -1, True, 1.5, "2", None])
def test_what_is_no_number_of_a_format_is_damage(number: object):
    with pytest.raises(ValueError, match=r"x.json has format .*, which is no format's number"):
        check_format({"format": number}, 2, "x.json")


def test_a_checkpoint_of_format_1_is_whole():
    assert manifest.verify_checkpoint(CHECKPOINT).step == 20


def test_a_launch_record_and_a_mark_of_format_1_are_read():
    environment = json.loads((V1 / "environment.json").read_text())

    record = launch.from_environment(environment)

    assert record.control == launch.Control(1, Path("/tmp/upgrade/v12/state/run/goes-on/a1"))
    assert (record.job, record.between_failures_s) == ("goes-on", 3600.0)


def test_an_epoch_of_format_1_is_read_and_what_a_folder_holds():
    epoch = decode_epoch(1, (V1 / "epoch-0001").read_bytes())

    assert epoch == Epoch(1, None, "vm", 1795543858.4708872, "490482d54f36b63b")
    assert decode_epoch(1, encode_epoch(epoch)) == epoch
    assert held_epoch(V1, {1: epoch}) == 1


def test_an_epoch_of_a_later_format_is_refused():
    body = json.loads((V1 / "epoch-0001").read_text()) | {"format": 2}

    with pytest.raises(ProtocolError, match=r"newer stepkeeper wrote epoch 1 \(format 2"):
        decode_epoch(1, json.dumps(body).encode())


def test_the_newest_checkpoint_of_a_later_format_is_waited_for_and_stays(tmp_path: Path):
    directory_with(tmp_path, 10, 20)
    before = content_of(tmp_path)

    with pytest.raises(UnreadableCheckpoint, match=r"newer stepkeeper wrote MANIFEST.json") as refused:
        selection.select_checkpoint(tmp_path)

    assert (refused.value.name, refused.value.has_older) == ("step-0000000020.a1", True)
    assert content_of(tmp_path) == before, "nothing is in quarantine"


def test_an_older_one_that_is_used_meanwhile_is_said_to_be(tmp_path: Path):
    directory_with(tmp_path, 10, 20)
    before = content_of(tmp_path)

    chosen = selection.select_checkpoint(tmp_path, SelectionRules(pass_over_unreadable=True))

    assert chosen.step == 10
    (rejected,) = chosen.rejected
    assert (rejected.because, rejected.name) == (OlderBecause.UNREADABLE, "step-0000000020.a1")
    assert "newer stepkeeper wrote MANIFEST.json" in rejected.reason
    assert content_of(tmp_path) == before


def test_one_of_a_later_format_makes_no_room(tmp_path: Path):
    directory_with(tmp_path, 30, 20, 10)

    assert str(removal.delete_oldest(tmp_path)) == "step-0000000020.a1"

    assert (tmp_path / "step-0000000010.a1").exists()


def test_verification_says_that_one_is_of_a_later_format(tmp_path: Path):
    directory_with(tmp_path, 10, 20)

    newer, older = verification.verify_all(tmp_path)

    assert (older.valid, newer.valid, newer.damage) == (True, False, Damage.UNSUPPORTED)
    assert "newer stepkeeper" in (newer.reason or "")


def test_the_words_name_file_and_formats():
    with pytest.raises(NewerFormat) as refused:
        check_format({"format": 7}, 2, "x.json")

    words = "a newer stepkeeper wrote x.json (format 7, this version reads up to 2); install that version again"
    assert str(refused.value) == words
    assert refused.value.strerror == words


def test_an_epoch_that_is_held_is_recorded_with_its_format(tmp_path: Path):
    shutil.copy(V1 / layout.EPOCH_HELD, tmp_path)

    hold_epoch(tmp_path, 2)

    assert json.loads((tmp_path / layout.EPOCH_HELD).read_text()) == {"format": 2, "epoch": 2}
    assert held_epoch(tmp_path, {}) == 2


def test_an_epoch_that_a_later_version_holds_is_not_taken_for_none_and_stays(tmp_path: Path):
    record = tmp_path / layout.EPOCH_HELD
    record.write_text('{"format": 3, "epochs": [1, 2]}')
    before = record.read_bytes()
    ways: list[Callable[[], object]] = [
        lambda: held_epoch(tmp_path, {}),
        lambda: known_epoch(tmp_path, {}),
        lambda: begun_epoch(tmp_path),
        lambda: hold_epoch(tmp_path, 4),
        lambda: record_begin(tmp_path, Epoch(4, None)),
        lambda: record_seen(tmp_path, 3, 4, {}),
    ]

    for way in ways:
        with pytest.raises(NewerFormat, match=r"newer stepkeeper wrote mirror.json \(format 3"):
            way()

    assert record.read_bytes() == before


def test_where_a_checkpoint_came_from_is_not_guessed(tmp_path: Path):
    assert fetched_epoch(tmp_path) is None
    (tmp_path / layout.FETCHED).write_bytes(encode_fetched(7))
    assert fetched_epoch(tmp_path) == 7
    (tmp_path / layout.FETCHED).write_text('{"format": 2, "run": 7}')

    with pytest.raises(NewerFormat, match=r"newer stepkeeper wrote FETCHED.json"):
        fetched_epoch(tmp_path)
