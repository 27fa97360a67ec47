"""A file that says what counts in a folder, and can't be read or believed, is not taken for none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.protocol import layout
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.folder_epochs import (
    begun_epoch,
    encode_fetched,
    epochs_of_checkpoints,
    fetched_epoch,
    given_up_in,
    held_epoch,
    hold_epoch,
    known_epoch,
    record_begin,
    record_given_up,
    record_seen,
)
from supervisor.protocol.mirror.keys import Epoch
from supervisor.protocol.mirror.line import left_behind

EPOCHS = {1: Epoch(1, None), 2: Epoch(2, None)}  # another host began the second from nothing
WAYS: list[Callable[[Path], object]] = [
    lambda folder: epochs_of_checkpoints(folder, EPOCHS),
    lambda folder: held_epoch(folder, EPOCHS),
    lambda folder: known_epoch(folder, EPOCHS),
    begun_epoch,
    given_up_in,
    lambda folder: hold_epoch(folder, 2),
    lambda folder: record_begin(folder, EPOCHS[2]),
    lambda folder: record_seen(folder, 3, 2, EPOCHS),
    lambda folder: record_given_up(folder, 5),
]


def made(folder: Path) -> CheckpointName:
    """A checkpoint, as far as this looks at one."""
    name = CheckpointName(100, 1)
    (folder / str(name)).mkdir()
    (folder / str(name) / layout.MANIFEST).touch()
    return name


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 40, b'{"epoch": 1, "since"', b'{"epoch": "1"}', b'{"epoch": 1, "given_up": [[5]]}']
)
def test_of_a_damaged_one_nothing_is_concluded_and_it_stays(tmp_path: Path, content: bytes):
    (tmp_path / layout.EPOCH_HELD).write_bytes(content)

    for way in WAYS:
        with pytest.raises(OSError, match=r"mirror.json, which says .* is damaged \(.*\); delete it if this host was"):
            way(tmp_path)

    assert (tmp_path / layout.EPOCH_HELD).read_bytes() == content


def test_of_one_that_can_not_be_read_nothing_is_concluded(tmp_path: Path):
    (tmp_path / layout.EPOCH_HELD).mkdir()

    for way in WAYS:
        with pytest.raises(OSError, match=r"mirror.json"):
            way(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b'{"epoch"', b'{"epoch": -3}'])
def test_a_fetched_one_whose_origin_is_damaged_counts_no_more_than_the_store_says(tmp_path: Path, content: bytes):
    name = made(tmp_path)
    hold_epoch(tmp_path, 2)
    (tmp_path / str(name) / layout.FETCHED).write_bytes(content)

    assert left_behind(epochs_of_checkpoints(tmp_path, EPOCHS), EPOCHS) == (name,)


def test_where_a_fetched_one_came_from_must_be_readable(tmp_path: Path):
    name = made(tmp_path)
    (tmp_path / str(name) / layout.FETCHED).symlink_to("elsewhere")

    with pytest.raises(OSError, match=r"FETCHED.json"):
        epochs_of_checkpoints(tmp_path, EPOCHS)
    (tmp_path / str(name) / layout.FETCHED).unlink()
    (tmp_path / str(name) / layout.FETCHED).write_bytes(encode_fetched(1))
    assert fetched_epoch(tmp_path / str(name)) == 1
    assert epochs_of_checkpoints(tmp_path, EPOCHS) == {name: 1}


def test_a_rollback_gives_up_what_this_node_has_a_part_of(tmp_path: Path):
    """Where nodes have folders of their own, the attempt that diverged has left nothing else here."""
    made(tmp_path)
    hold_epoch(tmp_path, 1)
    (tmp_path / CheckpointName(300, 2).part).mkdir()

    record_given_up(tmp_path, 290, 2)

    assert [given_up_in(tmp_path)(CheckpointName(300, attempt)) for attempt in (2, 3)] == [True, False]


def test_rollback_on_a_replaced_disk_gives_up_what_the_store_has_of_the_attempts_until_it(tmp_path: Path):
    name = made(tmp_path)
    (tmp_path / str(name) / layout.FETCHED).write_bytes(encode_fetched(1))
    hold_epoch(tmp_path, 1)

    record_given_up(tmp_path, 290, 2)

    assert [given_up_in(tmp_path)(CheckpointName(300, attempt)) for attempt in (2, 3)] == [True, False]


def test_rollback_does_not_give_up_what_another_host_saved_as_an_attempt_that_saved_nothing_here(tmp_path: Path):
    made(tmp_path)
    hold_epoch(tmp_path, 1)

    record_given_up(tmp_path, 290, 5)

    assert not given_up_in(tmp_path)(CheckpointName(300, 2))
