"""Whatever a job's user writes where the daemon reads is read or refused in words, and what is shown of it is short."""

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.ctl.actions import checkpoints as checkpoint_actions
from supervisor.host import checkpoint_calls, checkpoint_process
from supervisor.host.checkpoint_calls import (
    Attempts,
    CheckpointRequest,
    Question,
)
from supervisor.host.logs.capture_mode import BEGIN, END
from supervisor.host.pipes.control_pipes import read_last_words
from supervisor.host.processes import marks, process_status, stacks
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest
from supervisor.protocol.checkpoints.quarantine import REASON_FILE
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, SelectionRules
from supervisor.protocol.checkpoints.verification import verify_all
from supervisor.protocol.tensorbundle import entry, sstable
from tests.fuzzing import SCALARS, cases, contents, jsons, written

IN_A_FOLDER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

FIELDS = sorted(
    {"failure", "result", "text", "errno", "rejected", "reason", "name", "path", "manifest", "checkpoints", "highest"}
    | {"step", "attempt", "created_wall_at", "size_bytes", "valid", "quarantined", "foreign", "bundle", "prefix"}
    | {"job", "files", "format", "self_hash", "position", "epoch", "batch"}
)
JSONS = jsons(*FIELDS)


# --- a checkpoint folder ----------------------------------------------------------------------------------------------

STEP_1, STEP_2 = "step-0000000001.a1", "step-0000000002.a3"
STATES = (b'{"epoch": 1, "batch": 2}', b'{"position": {"epoch": 1e999, "batch": {}}}', b"[" * 3000, b"", b"{}")


def signed_manifest(step: int, attempt: int, files: dict[str, bytes], changes: dict[str, Any]) -> bytes:
    records = tuple(FileRecord(name, len(content), digest_of(content)) for name, content in files.items())
    body = json.loads(Manifest("p", attempt, step, 1.7e9, records).to_bytes()) | changes
    body.pop("self_hash", None)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps(body | {"self_hash": f"sha256:{hashlib.sha256(canonical).hexdigest()}"} | changes).encode()


def digest_of(content: bytes) -> str:
    return f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"


@st.composite
def checkpoint_files(draw: st.DrawFn) -> dict[str, bytes]:
    files = {layout.STATE: draw(st.sampled_from(STATES) | JSONS.map(written))}
    if draw(st.booleans()):
        files["ckpt.index"] = draw(st.sampled_from([table(), b"", b"garbage"]) | st.binary(max_size=40))
    changes = draw(st.sampled_from([{}, {}]) | st.dictionaries(st.sampled_from(FIELDS), SCALARS, max_size=2))
    step = draw(st.sampled_from([1, 1, 2]))
    with_manifest = signed_manifest(step, 1 if step == 1 else 3, files, changes)
    if draw(st.integers(0, 3)) == 0:
        with_manifest = draw(contents(with_manifest))
    if draw(st.integers(0, 3)) == 0:
        files[layout.STATE] += b" "
    if draw(st.integers(0, 4)):
        files[layout.MANIFEST] = with_manifest
    if draw(st.booleans()):
        files[REASON_FILE] = draw(st.binary(max_size=2000))
    return files


def table() -> bytes:
    record = entry.encode_tensor(1, [2, 2], 0, 16, 0)
    return sstable.encode_table([(b"", entry.HEADER), (b"v", record)])


NAMES = st.sampled_from(
    [
        STEP_1,
        STEP_2,
        f"{STEP_1}.partial",
        f"{STEP_1}.2",
        "step-9999999999.a999999999",
        "model.ckpt-1.index",
        "model.ckpt-1.data-00000-of-00001",
        "checkpoint",
        "conditions.json",
        ".stepkeeper.lock",
        layout.QUARANTINE,
    ]
) | st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
ENTRIES = st.one_of(
    st.tuples(st.just("folder"), checkpoint_files()),
    st.tuples(st.just("folder"), checkpoint_files()),
    st.tuples(
        st.just("file"),
        st.just(table()) | contents(table()),
    ),
    st.tuples(st.just("link"), st.sampled_from([STEP_1, "..", ".", "/", "/etc/passwd", "nowhere", layout.QUARANTINE])),
    st.tuples(st.just("pipe"), st.none()),
)  # fmt: skip
TREES = st.dictionaries(NAMES, ENTRIES, max_size=5)


def plant(folder: Path, tree: dict[str, tuple[str, Any]]) -> None:
    folder.mkdir()
    for name, (kind, content) in tree.items():
        path = folder / name
        if kind == "folder":
            path.mkdir()
            for file, data in content.items():
                (path / file).write_bytes(data)
        elif kind == "file":
            path.write_bytes(content)
        elif kind == "link":
            path.symlink_to(content)
        else:
            os.mkfifo(path)


@pytest.mark.timeout(0 if "FUZZ_CASES" in os.environ else 60)
@pytest.mark.fuzz
@cases(100, suppress_health_check=IN_A_FOLDER)
@given(tree=TREES, aside=st.none() | TREES, initial=st.sampled_from([None, STEP_1, "model.ckpt-1", "", "nowhere"]))
def test_any_checkpoint_folder_is_answered_for_or_refused(
    tree: dict[str, Any], aside: dict[str, Any] | None, initial: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    shutil.rmtree(folder, ignore_errors=True)
    plant(folder, tree)
    if aside is not None and layout.QUARANTINE not in tree:
        plant(folder / layout.QUARANTINE, aside)
    start = None if initial is None else folder / initial
    for request in (
        CheckpointRequest(Question.HIGHEST_ATTEMPT, folder),
        CheckpointRequest(Question.LIST, folder, verify=True),
        CheckpointRequest(Question.SELECT, folder, SelectionRules(initial=start, avoid=(STEP_2,))),
        CheckpointRequest(Question.SELECT, folder, SelectionRules(jobs=("p",), pass_over_unreadable=True)),
        CheckpointRequest(Question.QUARANTINE, folder, reasons={STEP_1: "does not fit"}),
        CheckpointRequest(Question.ROLL_BACK, folder, before=2),
        CheckpointRequest(Question.LIST, folder),
        CheckpointRequest(Question.MEASURE, folder, name=STEP_1),
    ):
        try:
            found = checkpoint_process._reduced(checkpoint_calls.answer(request))
        except (OSError, NoValidCheckpoint):
            continue
        line = checkpoint_process._encode({"result": asdict(found)})
        again = checkpoint_process._parse_answer(line, type(found))
        assert type(again) is type(found)
        if isinstance(found, Attempts):
            assert 0 <= found.highest <= layout.MAX_TRACED_ATTEMPT
    with contextlib.suppress(OSError):
        assert checkpoint_actions._table([asdict(each) for each in verify_all(folder)]) is not None


# --- names and words of processes -------------------------------------------------------------------------------------

WORDS = st.sampled_from(["1", "p", "q", "standby-3f", "9" * 5000, "-1", "\u0663", "", "/", "00" * 16]) | st.text(
    max_size=9
)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state folder, and a mark of the attempt 1 of `p` there."""
    folder = tmp_path_factory.mktemp("state")
    return folder, marks.mark_of_attempt(folder, "p", 1)


@pytest.mark.fuzz
@cases(300)
@given(data=st.data(), parts=st.lists(WORDS, max_size=5))
def test_any_mark_is_read_and_only_the_signed_one_counts(
    data: st.DataObject, parts: list[str], signed: tuple[Path, str]
) -> None:
    state_dir, mark = signed
    pieces = mark.split(":")
    for number, part in enumerate(parts):
        pieces[data.draw(st.integers(0, len(pieces) - 1), label=f"place {number}")] = part
    for text in (":".join(pieces), ":".join(parts), f"{state_dir}:{':'.join(parts)}"):
        assert isinstance(marks.attempt_of(text), int)
        assert isinstance(marks.program_of(text), str)
        assert isinstance(marks.is_standby(text), bool)
        assert marks.is_of_program(text, state_dir, "p") == (text == mark)


@pytest.mark.fuzz
@cases(200)
@given(name=st.binary(max_size=15).filter(lambda name: b"\0" not in name) | st.sampled_from([b"a) Z 1 2", b")", b"("]))
def test_any_name_of_a_process_leaves_its_state_readable(name: bytes) -> None:
    pid = os.getpid()
    own, before = Path("/proc/self/comm").read_bytes(), process_status.read_start_time(pid)
    try:
        Path("/proc/self/comm").write_bytes(name or b"x")

        assert process_status.read_start_time(pid) == before
        assert process_status.exit_of_zombie(pid, before or 0) is None
        assert not stacks.is_stopped(pid)
        stacks.describe_threads(pid).encode()
    finally:
        Path("/proc/self/comm").write_bytes(own.rstrip(b"\n"))


# --- what it prints ---------------------------------------------------------------------------------------------------

OUTPUT = st.binary(max_size=80) | st.lists(
    st.sampled_from([b"\x1b[2J", b"\n", b"\r", b"\xff", b"\xe2\x80\xa8", b"\0", BEGIN, END, BEGIN[:9], b"x" * 99])
    | st.binary(max_size=5),
    max_size=12,
).map(b"".join)  # fmt: skip


@pytest.mark.fuzz
@cases(300, suppress_health_check=IN_A_FOLDER)
@given(
    content=OUTPUT
    | JSONS.map(written)
    | st.dictionaries(
        st.sampled_from(["type", "attempt", "step", "metrics", "text", "traceback", "kind"]),
        SCALARS | st.sampled_from(["done", "failed", "progress", "committed"]),
    ).map(written),
    kind=st.sampled_from(["file", "link", "pipe", "folder"]),
)
def test_any_last_words_are_messages_or_none(content: bytes, kind: str, tmp_path: Path) -> None:
    path, elsewhere = tmp_path / layout.LAST_WORDS, tmp_path / "elsewhere"
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    if kind == "file":
        path.write_bytes(content)
    elif kind == "link":
        elsewhere.write_bytes(content)
        path.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()

    found = read_last_words(tmp_path, 1)

    assert all(each.attempt == 1 for each in found)
    assert kind == "file" or found == []


def test_a_hard_link_beside_the_pipes_shows_nobodys_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"type": "done", "attempt": 1, "step": 1, "metrics": {}}\n')
    for name in (layout.LAST_WORDS, layout.STACKS):
        os.link(tmp_path / "secret", tmp_path / name)

    assert read_last_words(tmp_path, 1) == []
    assert stacks._content(tmp_path / layout.STACKS) is None


@pytest.mark.fuzz
@cases(200, suppress_health_check=IN_A_FOLDER)
@given(names=st.lists(NAMES | st.sampled_from(["a1", "a999999999", "a0", "a01", "s3f", "a\u0663"]), max_size=5))
def test_any_names_beside_the_pipes_are_counted_or_not(names: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    for name in names:
        (run / "p" / name).mkdir(parents=True, exist_ok=True)

    assert all(0 <= attempt <= layout.MAX_TRACED_ATTEMPT for attempt in layout.highest_attempts(run).values())
