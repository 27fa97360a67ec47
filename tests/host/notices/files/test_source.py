"""Notice files: what they mean, which are refused, and that writing and removing them is noticed at once."""

import ctypes
import errno
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import watchdog.observers.inotify_c as kernel

from supervisor.core.notices.notice import Certainty, ClockReading, NoticeKind
from supervisor.host.notices.files.format import parse_notice_file
from supervisor.host.notices.files.source import NoticeFolderSource
from supervisor.host.notices.parsing import ParseError, format_time
from tests.host.notices.recorder import Recorder
from tests.silent_mount import SilentMount

pytestmark = pytest.mark.fast_clock

WALL = datetime(2026, 11, 21, 0, 50, 0, tzinfo=UTC)
NOW = ClockReading(1000.0, WALL)
OTHER_UID = 4711
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A notice folder that only its owner writes in."""
    path = tmp_path / "notices"
    path.mkdir(mode=0o750)
    yield path


def put(folder: Path, name: str, said: object = None, mode: int = 0o640) -> Path:
    """Writes a notice file the way docs/notices.md says: under another name first."""
    temporary = folder / f".{name}.new"
    temporary.write_text("" if said is None else said if isinstance(said, str) else json.dumps(said))
    temporary.chmod(mode)
    return temporary.rename(folder / name)


def move_away(folder: Path) -> None:
    """Renames a folder, so that another can take its place."""
    folder.rename(folder.with_name("away"))


def remove(folder: Path) -> None:
    """Removes an empty folder."""
    folder.rmdir()


def set_mode(folder: Path, mode: int) -> None:
    """Changes who may write in a folder."""
    folder.chmod(mode)


def said(**more: object) -> dict[str, object]:
    return {"version": 1, "kind": "preemption", **more}


def fast(folder: Path, owners: frozenset[int] = frozenset()) -> NoticeFolderSource:
    return NoticeFolderSource(folder, owners, poll_s=0.05)


def watchful(folder: Path) -> NoticeFolderSource:
    """One that learns of changes from the kernel or not at all within a test's time."""
    return NoticeFolderSource(folder, poll_s=3600.0)


# --- what a file means -----------------------------------------------------------------------------------------------


def test_file_with_all_keys_is_parsed() -> None:
    body = json.dumps(
        said(kind="shutdown", certainty="possible", deadline="2026-11-21T00:51:00Z", reason="disk\x07 swap")
    )

    announced = parse_notice_file("swap.json", body.encode(), 0.0, NOW)

    assert (announced.id, announced.kind, announced.certainty) == ("swap.json", NoticeKind.SHUTDOWN, Certainty.POSSIBLE)
    assert announced.deadline_at(NOW) == 1060.0
    assert announced.text == "disk  swap"
    assert announced.is_cancellable


def test_empty_file_is_a_certain_notice_without_a_time() -> None:
    announced = parse_notice_file("now", b"", 0.0, NOW)

    assert (announced.kind, announced.certainty, announced.deadline_at(NOW)) == (
        NoticeKind.SHUTDOWN,
        Certainty.CERTAIN,
        None,
    )


def test_seconds_count_from_when_the_file_was_written() -> None:
    written = (WALL - timedelta(seconds=20)).timestamp()

    announced = parse_notice_file("drill.json", json.dumps(said(kind="drill", in_s=30)).encode(), written, NOW)

    assert announced.deadline_at(NOW) == 1010.0


@pytest.mark.parametrize("written_wall_at", [1e12, -1e12, 1e18, 253402300799.0])  # tmpfs keeps any of them
def test_seconds_from_an_invalid_modification_time_are_an_error(written_wall_at: float) -> None:
    with pytest.raises(ParseError):
        parse_notice_file("spot.json", json.dumps(said(in_s=30)).encode(), written_wall_at, NOW)


def test_rebalance_is_possible_unless_said_otherwise() -> None:
    for kind in ("rebalance", "freeze"):
        assert parse_notice_file("a.json", json.dumps(said(kind=kind)).encode(), 0, NOW).certainty is Certainty.POSSIBLE


def test_certain_freeze_is_refused() -> None:
    with pytest.raises(ParseError, match="a freeze can't be certain"):
        parse_notice_file("a.json", json.dumps(said(kind="freeze", certainty="certain")).encode(), 0, NOW)
    assert parse_notice_file("a.json", json.dumps(said()).encode(), 0, NOW).certainty is Certainty.CERTAIN


@pytest.mark.parametrize(
    ("name", "body", "word"),
    [
        ("a.json", "", "not JSON"),
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "not an object"),
        ("a.json", '{"kind": "drill"}', "version"),
        ("a.json", '{"version": 2, "kind": "drill"}', "version"),
        ("a.json", '{"version": true, "kind": "drill"}', "version"),
        ("a.json", '{"version": 1}', "kind"),
        ("a.json", '{"version": 1, "kind": "doom"}', "doom"),
        ("a.json", '{"version": 1, "kind": "drill", "certainty": "maybe"}', "maybe"),
        ("a.json", '{"version": 1, "kind": "drill", "exec": "/bin/sh"}', "exec"),
        ("a.json", '{"version": 1, "kind": "drill", "deadline": "soon"}', "soon"),
        ("a.json", '{"version": 1, "kind": "drill", "deadline": "2027-11-21T00:51:00Z"}', "365 days"),
        ("a.json", '{"version": 1, "kind": "drill", "deadline": "2026-11-20T00:51:00Z"}', "remove it"),
        ("a.json", '{"version": 1, "kind": "drill", "in_s": -1}', "in_s"),
        ("a.json", '{"version": 1, "kind": "drill", "in_s": 1e99}', "in_s"),
        ("a.json", '{"version": 1, "kind": "drill", "in_s": NaN}', "not JSON"),
        ("a.json", '{"version": 1, "kind": "drill", "in_s": true}', "in_s"),
        ("a.json", '{"version": 1, "kind": "drill", "in_s": 5, "deadline": "2026-11-21T00:51:00Z"}', "both"),
        ("a.json", '{"version": 1, "kind": "drill", "reason": 7}', "reason"),
        ("notice", "terminate", ".json"),
    ],
)
def test_bad_content_is_an_error_that_names_what_is_bad(name: str, body: str, word: str) -> None:
    with pytest.raises(ParseError, match=word):
        parse_notice_file(name, body.encode(), WALL.timestamp(), NOW)


# --- in the folder ---------------------------------------------------------------------------------------------------


async def test_file_from_before_the_start_is_reported(folder: Path, heard: Recorder) -> None:
    put(folder, "spot.json", said(deadline=format_time(datetime.now(UTC) + timedelta(seconds=60))))

    heard.watch(fast(folder))

    assert (await heard.the_notice()).id == "spot.json"


async def test_new_and_removed_file_are_found_by_inotify(folder: Path, heard: Recorder) -> None:
    heard.watch(watchful(folder))
    await heard.more_answers(1)

    put(folder, "spot.json", said())
    notice = await heard.the_notice()
    (folder / "spot.json").unlink()
    await heard.until(lambda: heard.withdrawn_ids)

    assert heard.withdrawn_ids == [notice.id]


async def test_file_written_in_place_is_found_by_inotify(folder: Path, heard: Recorder) -> None:
    heard.watch(watchful(folder))
    await heard.more_answers(1)

    (folder / "spot.json").write_text(json.dumps(said()))

    assert (await heard.the_notice()).id == "spot.json"
    await heard.until(lambda: heard.error is None)


async def test_file_without_a_kernel_event_is_found_by_polling(
    folder: Path, heard: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's watches are used up, as far as the observer can see: the operating system is what is faked."""

    def no_watch_left(*_: object) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(kernel, "inotify_add_watch", no_watch_left)
    heard.watch(fast(folder))
    await heard.more_answers(1)

    put(folder, "spot.json", said())

    assert (await heard.the_notice()).id == "spot.json"


async def test_changed_file_moves_its_deadline(folder: Path, heard: Recorder) -> None:
    heard.watch(watchful(folder))
    await heard.more_answers(1)
    put(folder, "spot.json", said(deadline=format_time(datetime.now(UTC) + timedelta(seconds=100))))
    first = await heard.the_notice()

    put(folder, "spot.json", said(deadline=format_time(datetime.now(UTC) + timedelta(seconds=1000))))
    await heard.until(lambda: len(heard.received_all) == 2)

    second = heard.received_all[1]
    assert second.id == first.id
    assert second.deadline_at is not None
    assert first.deadline_at is not None
    assert second.deadline_at > first.deadline_at + 500


async def test_missing_folder_is_created(tmp_path: Path, heard: Recorder) -> None:
    heard.watch(watchful(tmp_path / "notices"))
    await heard.more_answers(1)

    put(tmp_path / "notices", "now")

    assert (await heard.the_notice()).id == "now"
    assert (tmp_path / "notices").stat().st_mode & 0o027 == 0


async def test_folder_that_is_replaced_is_watched_again(folder: Path, heard: Recorder) -> None:
    put(folder, "old")
    heard.watch(fast(folder))
    await heard.the_notice()

    move_away(folder)  # the service manager tidies up; the next look makes the folder anew
    await heard.until(lambda: heard.withdrawn_ids)
    put(folder, "new")
    await heard.until(lambda: len(heard.received_all) == 2)

    assert list(heard.active) == ["new"]


async def test_folder_that_is_recreated_is_watched_again_even_with_the_same_inode(
    folder: Path, heard: Recorder
) -> None:
    source = fast(folder)
    heard.watch(source)
    await heard.more_answers(1)
    remove(folder)
    await heard.more_answers(20)  # a look made it anew; ext4 may give it the number that became free
    source._poll_s = 3600.0
    await heard.more_answers(1)  # the last look that is none of the kernel's word

    put(folder, "now")

    assert (await heard.the_notice()).id == "now"


async def test_names_that_begin_with_a_dot_are_ignored(folder: Path, heard: Recorder) -> None:
    (folder / ".spot.json.new").write_text("half of")

    heard.watch(fast(folder))
    await heard.more_answers(3)

    assert heard.errors == []
    assert heard.received_all == []


async def test_bad_file_is_named_and_hides_no_other(folder: Path, heard: Recorder) -> None:
    put(folder, "bad.json", "{")
    put(folder, "good.json", said())

    heard.watch(fast(folder))
    await heard.the_notice()
    await heard.until(lambda: heard.error is not None)

    assert list(heard.active) == ["good.json"]
    assert str(folder / "bad.json") in heard.errors[0]
    (folder / "good.json").unlink()
    await heard.until(lambda: heard.withdrawn_ids)


async def test_file_that_turns_bad_keeps_its_notice_until_it_is_removed(folder: Path, heard: Recorder) -> None:
    put(folder, "spot.json", said())
    heard.watch(fast(folder))
    await heard.the_notice()

    put(folder, "spot.json", "{")
    await heard.until(lambda: heard.error is not None)
    assert heard.withdrawn_ids == []

    (folder / "spot.json").unlink()
    await heard.until(lambda: heard.withdrawn_ids)
    await heard.until(lambda: heard.error is None)


def _link(folder: Path) -> None:
    target = folder.parent / "elsewhere.json"
    target.write_text(json.dumps(said()))
    (folder / "evil.json").symlink_to(target)


def _second_name(folder: Path) -> None:
    target = folder.parent / "elsewhere.json"
    target.write_text(json.dumps(said()))
    target.chmod(0o640)
    (folder / "evil.json").hardlink_to(target)


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "evil.json")


def _directory(folder: Path) -> None:
    (folder / "evil.json").mkdir()


def _huge(folder: Path) -> None:
    put(folder, "evil.json", " " * (1 << 20) + json.dumps(said()))


def _hole(folder: Path) -> None:
    put(folder, "evil.json")
    os.truncate(folder / "evil.json", 1 << 40)


def _writable(folder: Path) -> None:
    put(folder, "evil.json", said(), mode=0o666)


def _odd_name(folder: Path) -> None:
    put(folder, "evil\n.json", said())


@pytest.mark.parametrize(
    "make", [_link, _second_name, _pipe, _directory, _huge, _hole, _writable, _odd_name], ids=lambda make: make.__name__
)
async def test_file_that_is_not_small_and_regular_is_refused(make: object, folder: Path, heard: Recorder) -> None:
    make(folder)  # type: ignore[operator]

    heard.watch(fast(folder))
    await heard.until(lambda: heard.error is not None)
    put(folder, "good.json", said())
    await heard.the_notice()

    assert list(heard.active) == ["good.json"]
    assert "evil" in heard.errors[0]
    assert "\n" not in heard.errors[0]


@needs_root
async def test_file_of_somebody_else_is_refused_unless_allowed(folder: Path, heard: Recorder) -> None:
    os.chown(put(folder, "spot.json", said()), OTHER_UID, 0)
    heard.watch(fast(folder))
    await heard.until(lambda: heard.error is not None)
    assert str(OTHER_UID) in heard.errors[0]
    assert heard.received_all == []

    allowed = Recorder()
    allowed.watch(fast(folder, frozenset({OTHER_UID})))
    notice = await allowed.the_notice()
    await allowed.close()

    assert notice.id == "spot.json"


@needs_root
async def test_folder_of_somebody_else_is_not_trusted(folder: Path, heard: Recorder) -> None:
    put(folder, "spot.json", said())
    os.chown(folder, OTHER_UID, 0)

    heard.watch(fast(folder))
    await heard.until(lambda: heard.error is not None)

    assert "cannot trust" in heard.errors[0]
    assert heard.received_all == []


async def test_folder_that_others_may_write_to_is_not_trusted_until_fixed(folder: Path, heard: Recorder) -> None:
    put(folder, "spot.json", said())
    set_mode(folder, 0o777)

    heard.watch(fast(folder))
    await heard.until(lambda: heard.error is not None)
    assert "chmod go-w" in heard.errors[0]
    assert heard.received_all == []

    set_mode(folder, 0o750)
    await heard.the_notice()


async def test_link_in_place_of_the_folder_is_not_followed(folder: Path, heard: Recorder) -> None:
    put(folder, "spot.json", said())
    link = folder.with_name("link")
    link.symlink_to(folder)

    heard.watch(fast(link))
    await heard.until(lambda: heard.error is not None)

    assert heard.received_all == []


async def test_folder_that_cannot_be_created_is_an_error(tmp_path: Path, heard: Recorder) -> None:
    heard.watch(fast(tmp_path / "missing" / "notices"))
    await heard.until(lambda: heard.error is not None)
    assert "cannot read the notice folder" in heard.errors[0]

    (tmp_path / "missing").mkdir()
    await heard.until(lambda: heard.error is None)


@needs_root
@pytest.mark.integration
async def test_folder_on_a_disk_that_does_not_answer_is_said_and_one_look_waits_for_it(
    tmp_path: Path, heard: Recorder
) -> None:
    before = set(threading.enumerate())
    with SilentMount(tmp_path / "disk") as mount:
        mount.answers_attributes = False
        heard.watch(fast(mount.at / "notices"))
        await heard.until(lambda: len(heard.errors) > 1)

        assert f"cannot read the notice folder {mount.at}/notices: it has not answered for" in heard.errors[-1]
        (look,) = (thread for thread in threading.enumerate() if thread not in before and thread.name == "blocking")
        assert look.daemon


async def test_only_the_first_hundred_files_are_read(folder: Path, heard: Recorder) -> None:
    for number in range(200):
        put(folder, f"n{number:03}")

    heard.watch(fast(folder))
    await heard.until(lambda: heard.error is not None)
    await heard.until(lambda: len(heard.active) == 100)

    assert "more than 100 files" in heard.errors[0]
