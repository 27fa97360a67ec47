"""Which checkpoints are given up after a divergence, or because an operator begins elsewhere."""

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.host.checkpoint_calls import Order
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest, removal, selection
from supervisor.protocol.checkpoints.directory import begin_anew
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.checkpoints.removal import roll_back
from supervisor.protocol.checkpoints.retention import RetentionPolicy


def make(directory: Path, step: int, attempt: int = 1) -> str:
    name = layout.CheckpointName(step, attempt)
    partial = directory / name.partial
    partial.mkdir(parents=True)
    (partial / "count").write_text(f"{step}\n")
    files = manifest.record_files(partial, ("count",))
    whole = manifest.Manifest(job="digits", attempt=attempt, step=step, created_wall_at=1.0, files=files)
    durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
    durable.commit_folder(partial, directory / str(name), ("count",))
    return str(name)


def test_rolled_back_checkpoints_are_never_chosen_again(tmp_path: Path):
    _, old, newer, newest = (make(tmp_path, step) for step in (5, 10, 11, 15))

    given_up = roll_back(tmp_path, 11)

    assert [checkpoint.name for checkpoint in given_up] == [newest, newer]
    assert selection.select_checkpoint(tmp_path).path == tmp_path / old
    assert "diverged" in list_quarantined(tmp_path)[0].reason


def test_what_a_later_attempt_has_saved_is_not_given_up(tmp_path: Path):
    """Another daemon, which the directory is shared with, has gone on since training diverged in attempt 1."""
    _, diverged, later = make(tmp_path, 5), make(tmp_path, 12), make(tmp_path, 12, attempt=2)

    given_up = roll_back(tmp_path, 11, diverged=1)

    assert [checkpoint.name for checkpoint in given_up] == [diverged]
    assert selection.select_checkpoint(tmp_path).path == tmp_path / later


def test_nothing_is_given_up_where_nothing_older_is_whole(tmp_path: Path):
    old, new = make(tmp_path, 5), make(tmp_path, 15)
    (tmp_path / old / "count").write_text("6\n")

    assert roll_back(tmp_path, 11) == ()
    assert selection.select_checkpoint(tmp_path).path == tmp_path / new


@pytest.mark.parametrize("begin", [begin_anew, lambda directory: removal.begin_at(directory, 5)], ids=["anew", "at 5"])
def test_nothing_is_moved_away_from_a_live_worker(begin: Callable[[Path], object], tmp_path: Path) -> None:
    """It may be another daemon's, on another host: what it has told as saved would be gone at its next start."""
    names = [make(tmp_path, step) for step in (5, 15)]
    with (tmp_path / layout.LOCK).open("w") as lock:
        lock.write("pid 7 attempt 3 on host\x1b1")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(OSError, match=r"a live worker holds it \(pid 7 attempt 3 on host\^\[1\)") as raised:
            begin(tmp_path)

        assert raised.value.errno == errno.EBUSY
        assert [str(name) for name in reversed(selection.committed_checkpoints(tmp_path))] == names
    begin(tmp_path)
    assert (tmp_path / layout.ABANDONED / "1").is_dir()


@pytest.mark.parametrize("step", [0, 5])
def test_order_that_is_withdrawn_moves_nothing_more_and_never_the_newest_before_an_older_one(
    tmp_path: Path, step: int
) -> None:
    oldest, older, newest = (make(tmp_path, number) for number in (5, 15, 25))
    order = Order()
    moves = 2 if step else 3  # what is left to be allowed before the newest

    def require() -> None:
        nonlocal moves
        moves -= 1
        if moves < 0:
            order.withdraw()
        order.require()

    with pytest.raises(OSError, match="withdrawn") as raised:
        removal.begin_at(tmp_path, step, require) if step else begin_anew(tmp_path, require)

    assert raised.value.errno == errno.ECANCELED
    assert [str(name) for name in selection.committed_checkpoints(tmp_path)] == [newest, *([oldest] if step else [])]
    assert (tmp_path / layout.ABANDONED / "1" / older).is_dir()


def test_retention_deletes_nothing_where_the_newest_is_not(tmp_path: Path) -> None:
    """As on a volume that was mounted over the directory right after the commit."""
    names = [layout.parse_name(make(tmp_path, step)) for step in (5, 15, 25)]
    policy = RetentionPolicy(checkpoint_keep=1)

    removal.delete_expendable(tmp_path, policy, layout.CheckpointName(3, 7), {})
    assert selection.committed_checkpoints(tmp_path) == names[::-1]
    removal.delete_expendable(tmp_path, policy, names[-1], {})
    assert selection.committed_checkpoints(tmp_path) == names[-1:]
