"""What is wanted, and how far jobs have come, in two files: one that is lost loses nothing that the other holds."""

import asyncio
import errno
import json
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.host.ledger import wanted_file
from supervisor.host.ledger.ledger import Ledger, LedgerError
from supervisor.host.ledger.wanted_file import FORMAT, Wanted, WantedFile, read_wanted
from supervisor.protocol.checkpoints.account import ProgressAccount, ReportedCheckpoint
from supervisor.protocol.wire.codec import encode_record
from tests.fuzzing import cases
from tests.waiting import wait_until

VERSIONS = Path(__file__).with_name("versions")


def account(step: int | None, revision: int) -> ProgressAccount:
    newest = None if step is None else ReportedCheckpoint(step, f"step-{step:010d}.a1", "/data/j", "ext4 at /", 1)
    return ProgressAccount(newest, revision)


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def test_what_is_written_is_read(tmp_path: Path):
    path = tmp_path / "wanted.json"
    file = WantedFile(path, Wanted(), read_wanted(path))
    file.set_wanted("digits", True)
    file.set_removed("charlm", True)
    file.set_progress("digits", account(30, 4))
    file.set_progress("charlm", account(None, 2))

    assert file.write()

    assert read_wanted(path) == file.content
    assert json.loads(path.read_text())["format"] == FORMAT


def test_a_file_of_format_1_is_read():
    assert read_wanted(VERSIONS / "v12" / "wanted.json") == Wanted(
        {"damaged": True, "stopped": False}, frozenset({"taken-out"})
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"programs": {}}', b'{"removed": [], "programs": 3}', b'{"format": "x"}'],
)
def test_a_damaged_file_is_kept_aside_and_counts_for_nothing(content: bytes, tmp_path: Path):
    path = tmp_path / "wanted.json"
    path.write_bytes(content)

    assert read_wanted(path) is None

    assert not path.exists()
    assert (tmp_path / "wanted.json.corrupt-1").read_bytes() == content


def test_a_damaged_entry_loses_no_other(tmp_path: Path):
    path = tmp_path / "wanted.json"
    good = json.loads(encode_record(account(30, 4)))
    entries = {"good": good, "negative": {**good, "revision": -1}, "list": [], "stepless": {"newest": {"step": "x"}}}
    write(path, {"format": 2, "programs": {"a": True, "b": "yes"}, "removed": ["c"], "progress": entries})

    found = read_wanted(path)

    assert found == Wanted({"a": True}, frozenset({"c"}), {"good": account(30, 4)})


def test_of_two_accounts_the_later_counts_whichever_file_has_it(tmp_path: Path):
    known = Wanted(progress={"a": account(30, 5), "b": account(30, 4), "c": account(30, 4), "d": account(10, 1)})
    found = Wanted(progress={"a": account(50, 4), "b": account(None, 5), "c": account(20, 5)})

    file = WantedFile(tmp_path / "wanted.json", known, found)

    assert file.content.progress == {
        "a": account(30, 5),
        "b": account(None, 5),
        "c": account(20, 5),
        "d": account(10, 1),
    }


def test_a_file_of_a_newer_format_is_neither_read_nor_changed(tmp_path: Path):
    path = tmp_path / "wanted.json"
    write(path, {"format": FORMAT + 1, "programs": [], "elsewhere": 1})
    before = path.read_bytes()

    with pytest.raises(LedgerError, match=r"newer stepkeeper wrote .* install that version again, or move the file"):
        Ledger(tmp_path / "ledger.sqlite3")

    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["wanted.json"]


def test_where_the_file_can_be_neither_written_nor_removed_the_ledger_is_not_written_either(tmp_path: Path):
    """As in a state folder that somebody made read-only while the daemon, which is not root's, has the ledger open.

    The next daemon believes the file, so what only the ledger had would be lost without a word.
    """
    path = tmp_path / "ledger.sqlite3"
    ledger = Ledger(path)
    ledger.wanted.record_wanted("digits", True)
    assert asyncio.run(ledger.wanted.until_recorded()) is None
    with pytest.MonkeyPatch.context() as patch:
        refused = PermissionError(errno.EACCES, "Permission denied", str(tmp_path))
        patch.setattr(wanted_file.durable, "write_file", Mock(side_effect=refused))
        patch.setattr(Path, "unlink", Mock(side_effect=refused))
        ledger.wanted.record_wanted("digits", False)

        why = asyncio.run(ledger.wanted.until_recorded())

        assert why is not None and "Permission denied" in why
        assert ledger.last_error is not None
    assert wait_until(lambda: asyncio.run(ledger.wanted.until_recorded()) is None, "it is written as soon as it can be")
    ledger.close()
    later = Ledger(path)
    assert not later.wanted.is_wanted("digits", True)
    later.close()


FILES = ("wanted.json", "ledger.sqlite3")  # in the order in which a change is written into them


@dataclass(frozen=True)
class Life:
    """One daemon's: the steps that it records (None: begun anew), and how it ends.

    `reached`: how many of the two files the last change has reached when the daemon is killed. `is_unwritable`: the
    file of what is wanted can't be written, and so it is gone. `loses`: a file that is lost afterwards, in a way.
    """

    steps: tuple[int | None, ...]
    reached: int = 2
    is_unwritable: bool = False
    loses: tuple[str, str] | None = None


BACKUP = "as it was when the daemon started"

LIVES = st.lists(
    st.builds(
        Life,
        st.lists(st.none() | st.integers(0, 99), min_size=1, max_size=4).map(tuple),
        st.integers(0, 2),
        st.booleans(),
        st.none() | st.tuples(st.sampled_from(FILES), st.sampled_from(["garbage", "deleted", "cut short", BACKUP])),
    ),
    max_size=6,
)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def lose(path: Path, how: str) -> None:
    for each in (path, path.with_name(f"{path.name}-wal")):
        if each.exists() and how == "garbage":
            each.write_bytes(b"garbage" * 1000)
        elif each.exists() and how == "cut short":
            each.write_bytes(each.read_bytes()[: max(1, each.stat().st_size // 3)])
        else:
            each.unlink(missing_ok=True)


@pytest.mark.thorough
@pytest.mark.fuzz
@cases(60, deadline=None)
@example([Life((10,)), Life((20,), loses=("wanted.json", BACKUP))])
@example([Life((10,), reached=1, loses=("ledger.sqlite3", "garbage"))])
@example([Life((10,)), Life((None,), reached=1), Life((5,), is_unwritable=True)])
@given(LIVES)
def test_no_daemon_believes_less_than_the_file_that_is_left_holds(lives: list[Life]):
    """What a kill leaves is put together of what the files are after each change, as they are written in one order."""
    held: dict[str, ProgressAccount] = {}  # by file: what it holds in full
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        for life in [*lives, Life((1,))]:
            best = max(held.values(), key=lambda account: account.revision, default=ProgressAccount())
            with closing(Ledger(folder / "ledger.sqlite3")) as ledger:
                now = ledger.wanted.progress("j")

                assert now == best

                ledger.wanted.wanted_programs()  # waits until it is written
                before = first = after = snapshot(folder)
                earlier = start = now
                for step in life.steps:
                    before, earlier = after, now
                    now = account(step, now.revision + 1)
                    ledger.wanted.record_progress("j", now)
                    ledger.wanted.wanted_programs()
                    after = snapshot(folder)
            for path in folder.iterdir():
                path.unlink()
            for number, file in enumerate(FILES):
                held[file] = now if number < life.reached else earlier
                for each, content in (after if number < life.reached else before).items():
                    if each.startswith(file):
                        (folder / each).write_bytes(content)
            gone = [("wanted.json", "deleted")] if life.is_unwritable else []
            for file, how in [*gone, *([life.loses] if life.loses is not None else [])]:
                held.pop(file, None)
                lose(folder / file, "deleted" if how == BACKUP else how)
                if how == BACKUP:
                    held[file] = start
                    for each, content in first.items():
                        if each.startswith(file):
                            (folder / each).write_bytes(content)
