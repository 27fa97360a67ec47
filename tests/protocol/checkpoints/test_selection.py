"""Whatever happens to a checkpoint directory: the newest whole checkpoint is chosen, or that there is none is said."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, removal
from supervisor.protocol.checkpoints import selection as checkpoints
from supervisor.protocol.checkpoints.directory import highest_attempt
from supervisor.protocol.checkpoints.quarantine import REASON_FILE, list_quarantined, move_to_quarantine
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, OtherJobsCheckpoint, SelectionRules
from supervisor.protocol.damage import UnreadableCheckpoint
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.launch import Launch
from tests.fuzzing import cases

Commit = Callable[..., Path]
DATA, INDEX = "ckpt.data-00000-of-00001", "ckpt.index"


def flip_bit(path: Path, bit: int = 1234) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(os.urandom(300))


def swap_content_at_the_same_size(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


DAMAGE = [
    (flip_bit, DATA, "has hash"),
    (flip_bit, INDEX, "has hash"),
    (flip_bit, layout.STATE, "has hash"),
    (flip_bit, layout.MANIFEST, layout.MANIFEST),
    (cut, DATA, "is 4096 bytes, its manifest says 8192"),
    (cut, INDEX, "is 250 bytes, its manifest says 500"),
    (cut, layout.MANIFEST, "is not JSON"),
    (empty, DATA, "is 0 bytes"),
    (empty, INDEX, "is 0 bytes"),
    (empty, layout.MANIFEST, "is not JSON"),
    (Path.unlink, DATA, "is missing"),
    (Path.unlink, INDEX, "is missing"),
    (Path.unlink, layout.STATE, "is missing"),
    (Path.unlink, layout.MANIFEST, "is missing"),
    (fill_with_garbage, layout.MANIFEST, "is not JSON"),
    (swap_content_at_the_same_size, DATA, "has hash"),
]


@pytest.mark.parametrize(("harm", "file", "reason"), DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_chosen(
    harm: Callable[[Path], None], file: str, reason: str, checkpoint: Commit, tmp_path: Path
) -> None:
    whole, damaged = checkpoint(100), checkpoint(200)
    harm(damaged / file)

    chosen = checkpoints.select_checkpoint(tmp_path)

    assert chosen.path == whole
    assert chosen.manifest is not None and chosen.manifest.step == 100
    assert [rejection.name for rejection in chosen.rejected] == [damaged.name]
    assert reason in chosen.rejected[0].reason
    assert not damaged.exists()
    assert list_quarantined(tmp_path) == list(chosen.rejected)


@cases(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=st.sampled_from([DATA, INDEX, layout.STATE]), bit=st.integers(0, 10**6))
def test_every_single_flipped_bit_is_found(file: str, bit: int, checkpoint: Commit, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    whole, damaged = checkpoint(100), checkpoint(200)
    flip_bit(damaged / file, bit)

    assert checkpoints.select_checkpoint(tmp_path).path == whole


@pytest.mark.parametrize("content", [None, b"", b"\xff\x00garbage", b'model_checkpoint_path: "/nowhere/ckpt"\n'])
def test_tensorflows_pointer_file_decides_nothing(content: bytes | None, checkpoint: Commit, tmp_path: Path) -> None:
    newest = checkpoint(100)
    if content is not None:
        (tmp_path / layout.POINTER).write_bytes(content)

    assert checkpoints.select_checkpoint(tmp_path).path == newest


def test_a_save_that_was_killed_is_never_chosen(checkpoint: Commit, tmp_path: Path) -> None:
    whole, interrupted = checkpoint(100), checkpoint(200)
    interrupted.rename(tmp_path / f"{interrupted.name}.partial")

    chosen = checkpoints.select_checkpoint(tmp_path)

    assert (chosen.path, chosen.rejected) == (whole, ())


def test_the_newest_is_that_of_the_highest_step_then_of_the_later_attempt(checkpoint: Commit, tmp_path: Path) -> None:
    checkpoint(100, attempt=9)
    checkpoint(200, attempt=9)
    newest = checkpoint(200, attempt=10)

    assert checkpoints.select_checkpoint(tmp_path).path == newest


@pytest.mark.parametrize("number", [errno.EUCLEAN, errno.EBADMSG], ids=errno.errorcode.get)
def test_checkpoint_the_file_system_calls_damaged_is_quarantined(
    number: int, checkpoint: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = checkpoint(step=100), checkpoint(step=200)
    opened = os.open

    def refuse(path: str | Path, *args: int, **more: int) -> int:
        if path == newer / DATA:
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", refuse)

    selection = checkpoints.select_checkpoint(tmp_path)

    assert selection.path == older
    assert [(rejection.name, rejection.reason) for rejection in selection.rejected] == [
        (newer.name, f"{DATA}: {os.strerror(number)}")
    ]


@pytest.mark.parametrize("number", [errno.EUCLEAN, errno.EBADMSG], ids=errno.errorcode.get)
def test_a_folder_that_the_file_system_calls_damaged_is_passed_over(
    number: int, checkpoint: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = checkpoint(step=100), checkpoint(step=200)

    def refusing(call: Callable[..., object]) -> Callable[..., object]:
        def refuse(path: str | Path, *args: object, **more: object) -> object:
            if Path(path) in (newer, newer / layout.MANIFEST, Path(newer.name)):
                raise OSError(number, os.strerror(number))
            return call(path, *args, **more)

        return refuse

    for name in ("open", "stat", "rename"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))

    selection = checkpoints.select_checkpoint(tmp_path)

    assert selection.path == older
    assert [rejection.name for rejection in selection.rejected] == [newer.name]
    assert f"could not be set aside: {os.strerror(number)}" in selection.rejected[0].reason


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOTCONN], ids=errno.errorcode.get)
def test_one_that_cannot_be_read_stays_and_an_older_one_is_used_only_where_that_is_allowed(
    number: int, checkpoint: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = checkpoint(step=100), checkpoint(step=200)
    opened = os.open

    def refuse(path: str | Path, *args: int, **more: int) -> int:
        if path == newer / DATA:
            raise OSError(number, os.strerror(number))
        return opened(path, *args, **more)

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(UnreadableCheckpoint) as unreadable:
        checkpoints.select_checkpoint(tmp_path)
    passed_over = checkpoints.select_checkpoint(tmp_path, SelectionRules(pass_over_unreadable=True))

    assert (unreadable.value.errno, unreadable.value.name, unreadable.value.has_older) == (number, newer.name, True)
    assert passed_over.path == older
    assert [rejection.name for rejection in passed_over.rejected] == [newer.name]
    assert "stays where it is" in passed_over.rejected[0].reason
    assert newer.is_dir()


def test_the_only_one_that_cannot_be_read_is_never_passed_over(
    checkpoint: Commit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = checkpoint(step=100)

    def refuse(directory: Path, reads: bool) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoints.manifest, "verify_checkpoint", refuse)

    with pytest.raises(UnreadableCheckpoint) as unreadable:
        checkpoints.select_checkpoint(tmp_path, SelectionRules(pass_over_unreadable=True))

    assert (unreadable.value.name, unreadable.value.has_older) == (only.name, False)


def test_a_checkpoint_of_another_job_is_restored_only_if_that_is_said(checkpoint: Commit, tmp_path: Path) -> None:
    theirs = checkpoint(100)
    job = manifest.read_manifest(theirs).job

    with pytest.raises(OtherJobsCheckpoint, match=f"job '{job}' saved it.*set restore_from_jobs = {job}"):
        checkpoints.select_checkpoint(tmp_path, SelectionRules(jobs=("mine", "also-mine")))

    assert theirs.is_dir()
    assert checkpoints.select_checkpoint(tmp_path, SelectionRules(jobs=("mine", job))).path == theirs
    assert checkpoints.select_checkpoint(tmp_path).path == theirs


def test_checkpoints_of_a_program_called_job_are_its_own_and_those_of_nobody_are_anybodys(
    checkpoint: Commit, tmp_path: Path
) -> None:
    anybodys = checkpoint(100, job=Launch().job)
    assert checkpoints.select_checkpoint(tmp_path, SelectionRules(jobs=("mine",))).path == anybodys
    theirs = checkpoint(200, job="job")

    with pytest.raises(OtherJobsCheckpoint, match="job 'job' saved it"):
        checkpoints.select_checkpoint(tmp_path, SelectionRules(jobs=("mine",)))
    assert checkpoints.select_checkpoint(tmp_path, SelectionRules(jobs=("job",))).path == theirs


def test_several_bad_ones_are_all_named(checkpoint: Commit, tmp_path: Path) -> None:
    whole, *damaged = (checkpoint(step) for step in (100, 200, 300))
    for folder in damaged:
        flip_bit(folder / DATA)

    chosen = checkpoints.select_checkpoint(tmp_path)

    assert chosen.path == whole
    assert [rejection.name for rejection in chosen.rejected] == ["step-0000000300.a1", "step-0000000200.a1"]


def test_if_none_is_whole_it_says_so_with_the_list(checkpoint: Commit, tmp_path: Path) -> None:
    for step in (100, 200):
        flip_bit(checkpoint(step) / DATA)

    with pytest.raises(
        NoValidCheckpoint, match=r"step-0000000200\.a1: ckpt\.data.* has hash.*step-0000000100"
    ) as raised:
        checkpoints.select_checkpoint(tmp_path)

    assert len(raised.value.rejected) == 2


def test_earlier_quarantine_still_forbids_step_0(checkpoint: Commit, tmp_path: Path) -> None:
    empty(checkpoint(100) / DATA)
    for _ in range(2):  # the second time, only quarantine knows of it
        with pytest.raises(NoValidCheckpoint, match="is 0 bytes"):
            checkpoints.select_checkpoint(tmp_path)


def test_earlier_quarantine_is_listed_but_not_refused_again(checkpoint: Commit, tmp_path: Path) -> None:
    rejected = []
    empty(checkpoint(100) / DATA)
    for _ in range(2):
        with pytest.raises(NoValidCheckpoint, match=r"step-0000000100\.a1: .* is 0 bytes") as raised:
            checkpoints.select_checkpoint(tmp_path)
        rejected.append([rejection.name for rejection in raised.value.rejected])

    assert rejected == [["step-0000000100.a1"], []]


def test_training_begins_at_0_without_any_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "step-0000000100.a1").symlink_to(tmp_path)

    for place in (tmp_path, tmp_path / "missing"):
        choice = checkpoints.select_checkpoint(place)
        assert (choice.path, choice.manifest, choice.rejected, choice.seen.highest_step) == (None, None, (), None)


def test_a_bad_one_that_can_not_be_moved_is_passed_over(checkpoint: Commit, tmp_path: Path) -> None:
    whole, damaged = checkpoint(100), checkpoint(200)
    flip_bit(damaged / DATA)
    (tmp_path / layout.QUARANTINE).write_text("a file where the folder should be")

    chosen = checkpoints.select_checkpoint(tmp_path)

    assert chosen.path == whole
    assert "has hash" in chosen.rejected[0].reason
    assert "could not be set aside: Not a directory" in chosen.rejected[0].reason


def test_a_quarantine_that_leads_elsewhere_is_not_followed(checkpoint: Commit, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    damaged = checkpoint(100)
    (tmp_path / layout.QUARANTINE).symlink_to(elsewhere)

    with pytest.raises(OSError, match=r"quarantine"):
        move_to_quarantine(tmp_path, CheckpointName(100, 1), "bad")

    assert damaged.is_dir()
    assert os.listdir(elsewhere) == []


def test_a_second_one_of_the_same_name_is_kept_beside_the_first(checkpoint: Commit, tmp_path: Path) -> None:
    for reason in ("first", "second", "third"):
        (checkpoint(100) / REASON_FILE).write_text("of an earlier quarantine, before somebody moved it back")
        move_to_quarantine(tmp_path, CheckpointName(100, 1), reason)

    reasons = {quarantined.name: quarantined.reason for quarantined in list_quarantined(tmp_path)}

    assert reasons == {
        "step-0000000100.a1": "first",
        "step-0000000100.a1.2": "second",
        "step-0000000100.a1.3": "third",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_quarantined_by_root_stays_owned_by_the_jobs_user(checkpoint: Commit, tmp_path: Path) -> None:
    damaged = checkpoint(100)
    for path in (tmp_path, damaged):
        os.chown(path, 12345, 12346)

    moved = move_to_quarantine(tmp_path, CheckpointName(100, 1), "bad")

    for path in (tmp_path / layout.QUARANTINE, moved, moved / REASON_FILE):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


def test_a_deleted_checkpoint_is_gone(checkpoint: Commit, tmp_path: Path) -> None:
    checkpoint(100)

    removal.delete_checkpoint(tmp_path, CheckpointName(100, 1))

    assert os.listdir(tmp_path) == []


def test_the_sweep_takes_what_interrupted_saves_left_and_nothing_else(checkpoint: Commit, tmp_path: Path) -> None:
    kept = checkpoint(100)
    checkpoint(200).rename(tmp_path / "step-0000000200.a1.partial")
    (tmp_path / "step-0000000300.a1.partial").write_text("a file of that name")
    (tmp_path / "step-0000000400.a1.partial").symlink_to(kept)
    (tmp_path / ".checkpoint.0123abcd").write_text("a pointer file that was being written")
    (tmp_path / ".batch.json.0123abcd").write_text("a description of batches that was being written")
    (tmp_path / "mine.partial").mkdir()

    swept = removal.delete_partials(tmp_path)

    assert len(swept) == 5
    assert sorted(os.listdir(tmp_path)) == ["mine.partial", kept.name]
    assert checkpoints.select_checkpoint(tmp_path).path == kept


def test_the_highest_attempt_is_known_from_any_trace_of_it(checkpoint: Commit, tmp_path: Path) -> None:
    assert highest_attempt(tmp_path / "missing") == 0
    checkpoint(100, attempt=2)

    assert highest_attempt(tmp_path) == 2
    (tmp_path / "step-0000000200.a5.partial").mkdir()
    assert highest_attempt(tmp_path) == 5
    for _ in range(2):
        checkpoint(100, attempt=7)
        move_to_quarantine(tmp_path, CheckpointName(100, 7), "bad")
    shutil.rmtree(tmp_path / layout.QUARANTINE / "step-0000000100.a7")
    assert highest_attempt(tmp_path) == 7


def test_a_folder_with_an_absurd_attempt_does_not_use_up_the_numbers(checkpoint: Commit, tmp_path: Path) -> None:
    checkpoint(100, attempt=7)
    (tmp_path / "step-0000000200.a999999999").mkdir()

    assert highest_attempt(tmp_path) == 7


def test_avoided_checkpoints_are_passed_over_and_stay(tmp_path: Path, checkpoint: Commit):
    older, newer = checkpoint(100), checkpoint(200)

    assert checkpoints.select_checkpoint(tmp_path, SelectionRules(avoid=(newer.name,))).path == older
    assert newer.is_dir()
    assert checkpoints.select_checkpoint(tmp_path, SelectionRules(avoid=(newer.name, older.name))).path == newer


def test_room_is_never_made_of_the_newest_nor_of_the_newest_attempts(tmp_path: Path, checkpoint: Commit) -> None:
    """The newest attempt began from an older checkpoint: what it saved has a lower step."""
    for step, attempt in ((10, 1), (20, 3), (30, 1), (40, 2)):
        checkpoint(step, attempt)
    gone = [removal.delete_oldest(tmp_path) for _ in range(3)]

    assert gone == [CheckpointName(10, 1), CheckpointName(30, 1), None]
    assert checkpoints.committed_checkpoints(tmp_path) == [CheckpointName(40, 2), CheckpointName(20, 3)]


def test_room_is_never_made_of_what_the_present_attempt_began_from(tmp_path: Path, checkpoint: Commit) -> None:
    """The newest one is suspect: attempts die right after restoring it."""
    for step in (70, 90, 100):
        checkpoint(step, 3)
    gone = [removal.delete_oldest(tmp_path, [CheckpointName(90, 3)]) for _ in range(2)]

    assert gone == [CheckpointName(70, 3), None]


def test_room_is_never_made_of_the_newest_that_a_worker_that_lived_has_saved(
    tmp_path: Path, checkpoint: Commit
) -> None:
    """The attempt began from what a dead one had left in memory, and may die of it before it has saved."""
    for step in (80, 90, 100):
        checkpoint(step, 3)
    left = checkpoint(105, 3)
    (left / layout.FROM_MEMORY).write_text("{}")
    gone = [removal.delete_oldest(tmp_path, [CheckpointName(105, 3)]) for _ in range(3)]

    assert gone == [CheckpointName(80, 3), CheckpointName(90, 3), None]
    assert checkpoints.committed_checkpoints(tmp_path) == [CheckpointName(105, 3), CheckpointName(100, 3)]


@pytest.mark.parametrize(("number", "is_deleted"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)])
def test_room_is_made_where_a_full_file_system_takes_no_other_name(
    tmp_path: Path, checkpoint: Commit, monkeypatch: pytest.MonkeyPatch, number: int, is_deleted: bool
) -> None:
    """As btrfs does, which deletes files nevertheless."""
    older, newer = checkpoint(100), checkpoint(200)

    def refuse(path: Path, target: Path) -> Path:
        raise OSError(number, os.strerror(number), str(path), None, str(target))

    monkeypatch.setattr(Path, "rename", refuse)

    if is_deleted:
        assert removal.delete_oldest(tmp_path) == CheckpointName(100, 1)
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            removal.delete_oldest(tmp_path)
    assert (older.exists(), newer.exists()) == (not is_deleted, True)


HOSTILE_STATES = {
    "infinite": b'{"epoch": Infinity, "batch": 1}',
    "overflowing": b'{"epoch": 1e999, "batch": 1}',
    "not a number": b'{"epoch": NaN, "batch": 1}',
    "beyond 64 bits": b'{"epoch": 1%s, "batch": 1}' % (b"0" * 4000),
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "large": b'{"epoch": 1, "batch": 2, "x": [' + b"[]," * (14 << 20) + b"0]}",
    "a list": b"[]",
}


@pytest.mark.parametrize("content", HOSTILE_STATES.values(), ids=HOSTILE_STATES.keys())
def test_hostile_state_gives_no_position(tmp_path: Path, content: bytes) -> None:
    (tmp_path / layout.STATE).write_bytes(content)

    assert checkpoints.read_data_position(tmp_path) is None


@pytest.mark.thorough
def test_many_quarantined_make_a_short_error(tmp_path: Path) -> None:
    for step in range(5000):
        (tmp_path / layout.QUARANTINE / str(CheckpointName(step, 1))).mkdir(parents=True)
        (tmp_path / layout.QUARANTINE / str(CheckpointName(step, 1)) / REASON_FILE).write_text("why " * 250)

    with pytest.raises(NoValidCheckpoint, match="and 4995 more") as refused:
        checkpoints.select_checkpoint(tmp_path)

    assert len(str(refused.value)) < 4000
