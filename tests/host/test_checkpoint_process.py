"""Checkpoints of a job's user are read and moved with that user's rights, limits and time. Real processes."""

import errno
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.host import checkpoint_process
from supervisor.host.checkpoint_calls import Attempts, CheckpointRequest, Listing, Moved, Question, SetAside
from supervisor.host.checkpoint_process import answer_as
from supervisor.host.children import Identity, own_command
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.directory import DirectoryView
from supervisor.protocol.checkpoints.manifest import read_manifest
from supervisor.protocol.checkpoints.quarantine import REASON_FILE, UNRECORDED, list_quarantined
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, Selection, SelectionRules
from supervisor.protocol.damage import RejectedCheckpoint, UnreadableCheckpoint
from supervisor.protocol.mounts import mount_of
from supervisor.protocol.tensorbundle import entry, sstable
from tests.host.test_checkpoint_store import commit
from tests.places import BUNDLES
from tests.system.harness import let_others_in

ALICE = Identity(41001, 41001, ())
BOB = Identity(41002, 41002, ())

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of Alice's."""
    let_others_in(tmp_path)
    folder = tmp_path / "alice"
    folder.mkdir(mode=0o700)
    return give(folder)


def give(folder: Path, identity: Identity = ALICE) -> Path:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, identity.uid, identity.gid, follow_symlinks=False)
    return folder


def ask(question: Question, directory: Path, identity: Identity = ALICE, **more: object) -> object:
    return answer_as(identity, CheckpointRequest(question, directory, **more))  # type: ignore[arg-type]


def test_the_newest_whole_one_is_selected_and_the_damaged_set_aside(home: Path) -> None:
    whole, damaged = commit(home, 100), commit(home, 200)
    (damaged / "ckpt.index").write_bytes(b"garbage")
    give(home)

    found = ask(Question.SELECT, home)

    assert isinstance(found, Selection)
    assert (found.path, found.step) == (whole, 100)
    assert [each.name for each in found.rejected] == [damaged.name]
    assert (home / layout.QUARANTINE / damaged.name / REASON_FILE).stat().st_uid == ALICE.uid


def test_lists_attempts_quarantine_and_roll_back_answer(home: Path) -> None:
    commit(home, 100)
    commit(home, 200, attempt=3)
    commit(home, 300, attempt=2)
    give(home)

    listing = ask(Question.LIST, home, verify=True)
    highest = ask(Question.HIGHEST_ATTEMPT, home)
    aside = ask(Question.QUARANTINE, home, reasons={"step-0000000200.a3": "does not fit"})
    back = ask(Question.ROLL_BACK, home, before=300)

    assert isinstance(listing, Listing)
    assert [(checkpoint.step, checkpoint.valid) for checkpoint in listing.checkpoints] == [
        (300, True),
        (200, True),
        (100, True),
    ]
    assert highest == Attempts(3, 3)
    assert isinstance(aside, SetAside)
    assert isinstance(back, SetAside)
    assert [checkpoint.name for checkpoint in (*aside.checkpoints, *back.checkpoints)] == [
        "step-0000000200.a3",
        "step-0000000300.a2",
    ]
    assert len(list_quarantined(home)) == 2


def test_checkpoints_of_other_programs_are_selected(home: Path) -> None:
    shutil.copytree(BUNDLES / "manager", home / "manager")
    give(home)

    found = ask(Question.SELECT, home / "manager")

    assert isinstance(found, Selection)
    assert found.foreign is not None
    assert (found.path, found.step) == (home / "manager" / "ckpt-3", 120)


def test_errors_arrive_as_they_were_raised(home: Path) -> None:
    (commit(home, 100) / "ckpt.index").unlink()
    give(home)

    with pytest.raises(NoValidCheckpoint, match="no checkpoint in it is whole") as refused:
        ask(Question.SELECT, home)
    with pytest.raises(PermissionError):
        ask(Question.SELECT, home, BOB)
    with pytest.raises(NotADirectoryError):
        ask(Question.SELECT, home / layout.QUARANTINE / "step-0000000100.a1" / layout.MANIFEST)

    assert [each.name for each in refused.value.rejected] == ["step-0000000100.a1"]


def test_what_can_be_tried_again_arrives_with_its_number_and_name(home: Path) -> None:
    """A checkpoint whose folder the user may not enter is not proven bad: it stays, and the error says which it is."""
    older, newer = commit(home, 100), commit(home, 200)
    give(home)
    newer.chmod(0)

    with pytest.raises(UnreadableCheckpoint) as unreadable:
        ask(Question.SELECT, home)
    with pytest.raises(PermissionError):
        ask(Question.LOOK, home)
    found = ask(Question.SELECT, home, rules=SelectionRules(pass_over_unreadable=True))

    assert (unreadable.value.errno, unreadable.value.name) == (errno.EACCES, newer.name)
    assert unreadable.value.has_older
    assert isinstance(found, Selection)
    assert found.path == older
    assert newer.is_dir()


def test_a_look_sees_steps_and_place_and_begin_anew_moves_all_as_the_user(home: Path) -> None:
    commit(home, 100)
    commit(home, 200)
    (home / layout.QUARANTINE / "step-0000000300.a1").mkdir(parents=True)
    give(home)

    seen = ask(Question.LOOK, home, writes=True, expected="step-0000000300.a1")
    moved = ask(Question.BEGIN_AT, home)
    again = ask(Question.BEGIN_AT, home)

    assert isinstance(seen, DirectoryView)
    assert (seen.highest_step, seen.mount) == (200, str(mount_of(home)))
    assert seen.passed_over == RejectedCheckpoint("step-0000000300.a1", UNRECORDED, is_recorded=False)
    assert moved == Moved((layout.QUARANTINE, "step-0000000100.a1", "step-0000000200.a1"))
    assert again == Moved(())
    assert (home / layout.ABANDONED / "1").stat().st_uid == ALICE.uid
    assert [path.name for path in home.iterdir()] == [layout.ABANDONED]


def test_another_jobs_checkpoint_is_refused_with_the_words_that_say_so(home: Path) -> None:
    commit(home, 100)
    give(home)

    with pytest.raises(NoValidCheckpoint, match="set restore_from_jobs = "):
        ask(Question.SELECT, home, rules=SelectionRules(jobs=("mine",)))


def test_a_link_to_another_users_folder_moves_and_shows_nothing(tmp_path: Path, home: Path) -> None:
    bobs = tmp_path / "bob"
    damaged = commit(bobs, 100)
    (damaged / "ckpt.index").write_bytes(b"garbage")
    bobs.chmod(0o700)
    give(bobs, BOB)
    (home / "jobs").symlink_to(bobs)
    (home / layout.QUARANTINE).symlink_to(bobs)

    for question in (Question.SELECT, Question.LIST, Question.HIGHEST_ATTEMPT):
        with pytest.raises(PermissionError):
            ask(question, home / "jobs")
    with pytest.raises(PermissionError):
        ask(Question.SELECT, home)

    assert damaged.exists()


def test_what_takes_too_long_is_ended(home: Path) -> None:
    folder = commit(home, 100)
    written = read_manifest(folder)
    files = (replace(written.files[0], size=16 << 30),)  # sparse: reading all of it takes seconds
    os.truncate(folder / files[0].name, files[0].size)
    (folder / layout.MANIFEST).write_bytes(replace(written, files=files).to_bytes())
    give(home)
    began = time.monotonic()

    with pytest.raises(TimeoutError, match=r"longer than 0\.1 s"):
        answer_as(ALICE, CheckpointRequest(Question.SELECT, home), limit_s=0.1)

    assert time.monotonic() - began < 30


def test_what_takes_too_much_memory_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = layout.CheckpointName(100, 1)
    (home / str(name)).mkdir()
    (home / str(name) / layout.MANIFEST).write_bytes(b"[" + b"[],[]," * (20 << 20) + b"0]")
    bundles = home / "bundles"
    bundles.mkdir()
    record = entry.encode_tensor(1, [(1 << 63) - 1] * 50_000, 0, 4, 0)
    (bundles / "x.index").write_bytes(sstable.encode_table([(b"", entry.HEADER), (b"v", record)]))
    give(home)

    with pytest.raises(NoValidCheckpoint, match="more than the 4194304 allowed"):
        ask(Question.SELECT, home)
    with pytest.raises(NoValidCheckpoint, match="impossible shape"):
        ask(Question.SELECT, bundles)


def test_many_quarantined_stay_within_an_answer(home: Path) -> None:
    for step in range(5000):
        aside = home / layout.QUARANTINE / str(layout.CheckpointName(step, 1))
        aside.mkdir(parents=True)
        (aside / REASON_FILE).write_text("why " * 250)
    give(home)

    with pytest.raises(NoValidCheckpoint) as refused:
        ask(Question.SELECT, home)
    listing = ask(Question.LIST, home)

    assert len(str(refused.value)) < 4000
    assert isinstance(listing, Listing)
    assert len(listing.checkpoints) == 3000


@pytest.mark.parametrize(
    "content",
    [
        b"{}\n",
        b"[]\n",
        b'{"result": 1}\n',
        b'{"result": {"highest": -1}}\n',
        b"[" * 100_000 + b"\n",
        b'{"failure": {}}\n',
    ],
)
def test_an_answer_that_is_none_is_an_error(content: bytes) -> None:
    with pytest.raises(OSError, match="no valid answer"):
        checkpoint_process._parse_answer(content, Attempts)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os\nwhile True: os.write(1, b'x' * 65536)"
    monkeypatch.setattr(checkpoint_process, "own_command", lambda *_: (sys.executable, "-I", "-c", program))

    with pytest.raises(OSError, match="answered with more than"):
        ask(Question.HIGHEST_ATTEMPT, Path("/"))


def test_nothing_of_the_daemon_is_in_the_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the user's ids only, no environment, and no descriptors but its pipes."""
    report = home / "report"
    *command, code, folder = own_command("supervisor.host.checkpoint_process")
    program = code.replace(
        "main()",
        "import supervisor.host.checkpoint_calls as calls, json, os; "
        "has = lambda: [os.getresuid(), os.getresgid(), os.getgroups(), [*os.environ], os.listdir('/proc/self/fd')]; "
        f"calls._ANSWERS['highest_attempt'] = lambda _: open({str(report)!r}, 'w').write(json.dumps(has())); main()",
    )
    monkeypatch.setattr(checkpoint_process, "own_command", lambda _, *ids: (*command, program, folder, *ids))

    with pytest.raises(OSError, match="gave no valid answer"):
        ask(Question.HIGHEST_ATTEMPT, home)

    uids, gids, groups, environment, descriptors = json.loads(report.read_text())
    assert (set(uids), set(gids), groups) == ({ALICE.uid}, {ALICE.gid}, [])
    assert set(environment) <= {"LC_CTYPE"}
    assert len(descriptors) <= 5
