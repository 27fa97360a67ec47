"""What one daemon heard is there for the next, whatever became of the file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.active import RememberedNotice
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.host.notices.store import MAX_BYTES, NAME, NoticeStore, NoticeStoreError, decode, encode
from tests.fuzzing import cases

TOLD = Notice(
    "aws", "i-1", NoticeKind.PREEMPTION, Certainty.CERTAIN, 100.5, is_cancellable=False, text="é", deadline_wall_at=5e9
)
TIMELESS = Notice("file", "now", NoticeKind.SHUTDOWN, Certainty.POSSIBLE, None, is_cancellable=True, text="")
MEMORIES = [RememberedNotice(TOLD, 10.0, is_expired=False), RememberedNotice(TIMELESS, 20.0, is_expired=True)]


def test_stored_notices_are_loaded(tmp_path: Path) -> None:
    NoticeStore(tmp_path / "run", "boot").save(MEMORIES)

    assert NoticeStore(tmp_path / "run", "boot").load() == MEMORIES
    assert [path.name for path in (tmp_path / "run").iterdir()] == [NAME]


def test_time_that_the_host_was_suspended_between_two_daemons_brings_deadlines_nearer() -> None:
    content = encode(MEMORIES, "boot", asleep_s=100.0)

    told, timeless = decode(content, "boot", asleep_s=160.0)

    assert told == replace(MEMORIES[0], notice=replace(TOLD, deadline_at=40.5), received_at=-50.0)
    assert (timeless.notice, timeless.received_at) == (TIMELESS, -40.0)
    assert decode(content, "boot", asleep_s=100.2) == MEMORIES
    assert decode(encode(MEMORIES, "boot"), "boot", asleep_s=160.0) == MEMORIES, "by a version that did not write it"


def test_notices_of_another_boot_are_ignored(tmp_path: Path) -> None:
    NoticeStore(tmp_path, "boot").save(MEMORIES)

    assert NoticeStore(tmp_path, "another").load() == []


def test_missing_file_holds_no_notices(tmp_path: Path) -> None:
    assert NoticeStore(tmp_path).load() == []


def test_current_boot_is_the_default(tmp_path: Path) -> None:
    NoticeStore(tmp_path).save(MEMORIES)

    assert NoticeStore(tmp_path).load() == MEMORIES


def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path) -> None:
    NoticeStore(tmp_path, "boot").save(MEMORIES)
    whole = (tmp_path / NAME).read_bytes()
    for damaged in (whole[:-5], b"", b"[]", b"\xff\xfe", b"[" * 100_000, b" " * (MAX_BYTES + 1)):
        (tmp_path / NAME).write_bytes(damaged)

        with pytest.raises(NoticeStoreError, match=NAME):
            NoticeStore(tmp_path, "boot").load()


def test_unreadable_or_unwritable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    memory = NoticeStore(tmp_path, "boot")

    with pytest.raises(NoticeStoreError, match="cannot read"):
        memory.load()
    with pytest.raises(NoticeStoreError, match="cannot write"):
        memory.save(MEMORIES)


WRONG = {
    "kind": "flood", "certainty": 1, "deadline_at": "soon", "is_cancellable": 0, "text": None, "source": [],
    "deadline_wall_at": True,
}  # fmt: skip


@pytest.mark.parametrize("key", [*WRONG, "received_at", "is_expired"])
def test_each_value_is_checked(key: str) -> None:
    stored = json.loads(encode(MEMORIES, "boot"))
    (stored["notices"][0]["notice"] if key in WRONG else stored["notices"][0])[key] = WRONG.get(key)

    with pytest.raises(ValueError, match=key):
        decode(json.dumps(stored).encode(), "boot")


def test_notices_that_an_earlier_version_stored_are_loaded() -> None:
    content = (Path(__file__).with_name("versions") / "v1" / "notices.json").read_bytes()

    assert decode(content, "the boot") == MEMORIES
    assert decode(content, "another") == []


def test_notices_of_a_later_version_are_not_loaded_and_that_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"format": 3, "boot_id": "boot", "notices": []}))

    with pytest.raises(NoticeStoreError, match=r"a newer stepkeeper wrote notices.json \(format 3"):
        NoticeStore(tmp_path, "boot").load()


@pytest.mark.fuzz
@cases(200)
@given(st.data())
def test_any_content_is_loaded_or_refused(data: st.DataObject) -> None:
    whole = encode(MEMORIES, "boot")
    at = data.draw(st.integers(0, len(whole)))
    content = whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + data.draw(st.integers(0, 8)) :]
    try:
        found = decode(content, "boot")
    except ValueError:
        return
    assert all(isinstance(each, RememberedNotice) for each in found)
