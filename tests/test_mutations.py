"""What a job's user or a store can write, damaged: it is read, or refused in words that its reader knows.

`FUZZ_CASES=100000 pytest tests/test_mutations.py --timeout=0` runs 100,000 cases of each.
"""

import contextlib
import hashlib
import json
import os
import shutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.core.listeners.pool import ListenerPool
from supervisor.core.notices.notice import ClockReading
from supervisor.ctl import render
from supervisor.host import checkpoint_process, health_checks, proof_process
from supervisor.host.checkpoint_calls import Attempts, Listing, SetAside
from supervisor.host.logs.capture_mode import BEGIN, CAPTURED, COMMUNICATION, END, LOG, CaptureModeParser
from supervisor.host.notices.files.format import parse_notice_file
from supervisor.host.notices.parsing import ParseError
from supervisor.host.pipes.control_pipes import read_last_words
from supervisor.host.pipes.notify import MAX_STATUS, NotifyError, parse_notification
from supervisor.host.processes import marks, stacks
from supervisor.host.proof_process import ProofProgress, Proven, encode_output, parse_output
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import foreign, listing, manifest, quarantine, selection
from supervisor.protocol.checkpoints.listing import ListedCheckpoint
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest, ManifestError
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, Selection
from supervisor.protocol.damage import BundleError
from supervisor.protocol.formats import NewerFormat
from supervisor.protocol.mirror.folder_epochs import DamagedRecord, begun_epoch, held_epoch
from supervisor.protocol.mirror.keys import decode_epoch
from supervisor.protocol.proof import Difference, ProofReport, Verdict
from supervisor.protocol.tensorbundle import entry, sstable, verify
from supervisor.protocol.wire.codec import ProtocolError
from supervisor.protocol.wire.lines import Decoder, decode_message, encode_message
from supervisor.protocol.wire.messages import TYPES
from supervisor.runner.attempt import last_output
from tests.fuzzing import cases, contents
from tests.places import BUNDLES
from worker.checks.watch.set_once import read_set_once
from worker.devices import conditions
from worker.progress import divergence
from worker.state import state_file

NOW = ClockReading(100.0, datetime(2026, 1, 1, tzinfo=UTC))
WRITTEN_WALL_AT = NOW.wall_at.timestamp()


@dataclass(frozen=True)
class Input:
    """What a job's user writes: how it looks when it is right, who reads it, and what the reader may raise."""

    samples: tuple[bytes, ...]
    read: Callable[[bytes, Path], object]
    refusals: tuple[type[Exception], ...] = ()
    tokens: tuple[bytes, ...] = ()
    """Words that the reader knows."""


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Has the content read from a file of that name in a folder."""

    def write_and_read(content: bytes, folder: Path) -> object:
        (folder / name).write_bytes(content)
        return read(folder)

    return write_and_read


# --- readers, with what must hold for all they give -------------------------------------------------------------------


def read_messages(content: bytes, _: Path) -> None:
    decoder, half = Decoder(), len(content) // 2
    for piece in (content[:half], content[half:], b"\n"):
        for message in decoder.feed(piece):
            if isinstance(message, Exception):
                assert len(str(message)) < 500
            else:
                assert decode_message(encode_message(message)) == message


def read_manifest(content: bytes, _: Path) -> None:
    whole = manifest.parse_manifest(content)
    assert manifest.parse_manifest(whole.to_bytes()) == whole


def read_signed_manifest(content: bytes, _: Path) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(content)
        if isinstance(body, dict):
            body.pop("self_hash", None)
            canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
            content = json.dumps(body | {"self_hash": f"sha256:{hashlib.sha256(canonical).hexdigest()}"}).encode()
    read_manifest(content, _)
    whole = manifest.parse_manifest(content)
    assert render.moment(whole.created_wall_at) and render.age(whole.created_wall_at, 1.7e9)
    assert whole.size_bytes >= 0 and not any("/" in file.name for file in whole.files)


def read_tensor_entry(content: bytes, folder: Path) -> object:
    (folder / "m-1.index").write_bytes(sstable.encode_table([(b"", entry.HEADER), (b"v", content)]))
    return verify.verify_bundle(folder / "m-1")


def read_table(content: bytes, folder: Path) -> object:
    (folder / "m-1.index").write_bytes(content)
    return verify.read_counters(folder / "m-1")


def read_pointer(folder: Path) -> None:
    for prefix in foreign.prefixes_in(folder):
        assert prefix.parent == folder and prefix.name not in ("", ".", "..")


def read_position(folder: Path) -> None:
    found = selection.read_data_position(folder)
    assert found is None or len(found) < 80


def read_names(content: bytes, _: Path) -> None:
    for text in os.fsdecode(content).split("/"):
        name = layout.checkpoint_name_in(text)
        assert name is None or (0 <= name.step < 10**18 and 0 < name.attempt < 10**9)
        assert layout.is_partial(text) in (True, False)
        foreign.number_in(text)


def read_reasons(folder: Path) -> None:
    for each in quarantine.list_quarantined(folder):
        assert len(each.reason) <= 1000
        each.reason.encode()


def read_answers(content: bytes, _: Path) -> None:
    for kind in (Selection, SetAside, Listing, Attempts):
        try:
            answer = checkpoint_process._parse_answer(content, kind)
        except (OSError, NoValidCheckpoint) as error:
            assert len(str(error)) < 5000
            assert len(getattr(error, "rejected", ())) <= listing.MAX_LISTED
        else:
            assert isinstance(answer, kind)
            assert all(len(each.reason) <= listing.MAX_REASON for each in getattr(answer, "rejected", ()))


def read_mark(content: bytes, _: Path) -> None:
    text = os.fsdecode(content)
    assert 0 <= marks.attempt_of(text) < 10**10
    assert isinstance(marks.program_of(text), str)
    assert not marks._is_signed(text, b"another key", Path("/var/lib/stepkeeper"), marks.folder_of(text))


def read_last_line(content: bytes, _: Path) -> None:
    lines = last_output._last_lines(content)
    assert len(lines) <= last_output.LINES
    assert all(line.isprintable() and 0 < len(line) <= last_output.MAX_CHARACTERS for line in lines)


def read_health(content: bytes, _: Path) -> None:
    shown = health_checks._shown(content[-health_checks.SHOWN_BYTES :])
    assert shown.isprintable() and len(shown) <= health_checks.SHOWN_BYTES + 2


def read_captured(content: bytes, _: Path) -> None:
    """In little memory, and nothing of it is lost."""
    parser, outside_bytes = CaptureModeParser(100), 0
    third = len(content) // 3
    for piece in (content[:third], content[third : 2 * third], content[2 * third :]):
        for kind, data in parser.feed(piece):
            assert kind in (LOG, CAPTURED, COMMUNICATION)
            outside_bytes += len(data) if kind in (LOG, CAPTURED) else 0
            assert kind != COMMUNICATION or len(data) <= 100
        assert len(parser._rest) < len(BEGIN)
        assert parser._captured is None or len(parser._captured) <= 100
    marks_bytes = content.count(BEGIN) * len(BEGIN) + content.count(END) * len(END)
    assert outside_bytes + len(parser.end()) + marks_bytes >= len(content)


def read_reply(content: bytes, _: Path) -> None:
    pool = ListenerPool("ears", "super", 10)
    pool.listener_started("a")
    pool.set_listener_up("a", True, 0.0)
    for number in range(3):
        pool.add_event(number, f"E{number}", b"x", 0.0)
    pool.listener_wrote("a", content[:9], 0.0)
    pool.listener_wrote("a", content[9:], 0.0)
    assert pool.accepted + pool.unanswered == 3


def read_notification(content: bytes, _: Path) -> None:
    status = parse_notification(content).status
    assert status is None or (len(status) <= MAX_STATUS and status.isprintable())


def read_output_of_prover(content: bytes, _: Path) -> None:
    output = parse_output(content)
    assert len(encode_output(output)) < proof_process.MAX_LINE_BYTES
    assert parse_output(encode_output(output)) == output


def read_stacks(folder: Path) -> None:
    stacks._faulthandler(folder, os.getpid(), lambda: False, 0.0).encode()
    assert stacks._content(folder / layout.STACKS) == (folder / layout.STACKS).read_bytes()


def read_skipped(folder: Path) -> None:
    try:
        skipped = divergence.read_skipped(folder)
    except ValueError as error:
        assert layout.SKIPPED in str(error)
    else:
        assert all(type(number) is int for batch in skipped for number in batch)


def read_what_was_set_once(folder: Path) -> None:
    digests = read_set_once(folder)
    assert all(type(name) is str and type(digest) is int for name, digest in digests.items())


def read_words(folder: Path) -> None:
    assert all(word.attempt == 1 for word in read_last_words(folder, 1))


def read_threads(folder: Path) -> None:
    recorded = conditions.recorded_conditions(folder)
    assert recorded is None or isinstance(recorded, dict)
    threads = conditions.recorded_threads(recorded)
    assert threads is None or threads > 0


# --- what they read ---------------------------------------------------------------------------------------------------


def read_held(folder: Path) -> None:
    held_epoch(folder, {})
    begun_epoch(folder)


def example(wanted: Any) -> Any:
    """A value of a field's type."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if type(None) in inner:
        return example(inner[0])
    if origin is tuple:
        return (example(inner[0]),)
    if origin is Mapping:
        return {"loss": example(inner[1])}
    if issubclass(wanted, StrEnum):
        return next(iter(wanted))
    return {int: 1, float: 0.5, str: "step-0000000007.a1", bool: True}[wanted]


MESSAGES = tuple(
    encode_message(kind(**{field.name: example(typing.get_type_hints(kind)[field.name]) for field in fields(kind)}))
    for kind in TYPES.values()
)
MANIFEST = Manifest(
    "p", 1, 1, 1.7e9, (FileRecord("state.json", 2, "xxh3_128:00"),),
    versions={"python": "3"}, topology={"replicas": 1}, metrics={"loss": 0.5},
)  # fmt: skip
RECORD = entry.encode_tensor(1, [2, 2], 0, 16, 0)
TABLE = sstable.encode_table([(b"", entry.HEADER), (b"step", RECORD), (b"v", RECORD)])
OF_TENSORFLOW = (BUNDLES / "manager" / "ckpt-3.index").read_bytes()
REPORT = ProofReport(Verdict.DIFFERENT, "digits", 5.0, 1.0, 20, differences=(Difference("loss", 4, "1", "2"),) * 3)
LISTED = ListedCheckpoint("step-0000000001.a1", 1, 1, 1.7e9, 100, True, None, False)
ANSWERS = (
    b'{"result":{"path":"/c/step-0000000001.a1","manifest":null,"rejected":[{"name":"x","reason":"y"}]}}\n',
    b'{"result":{"checkpoints":[{"name":"x","reason":"y"}]}}\n',
    b'{"result":{"highest":7}}\n',
    checkpoint_process._encode({"result": asdict(Listing((LISTED,)))}),
    b'{"failure":{"text":"none","errno":5,"rejected":[]}}\n',
    checkpoint_process._encode({"result": asdict(Selection(Path("/c"), MANIFEST))}),
)
STATE: dict[str, Any] = {
    "format": state_file.FORMAT, "step": 7, "position": {"epoch": 0, "batch": 7, "examples": 64}, "seeds": [[1, 2]],
    "generators": {"python": [1]}, "metrics": {"loss": 0.5}, "replica_metrics": {"loss": [0.5, None]}, "replicas": 2,
    "copies": 0, "passes": {},
}  # fmt: skip
EPOCH = b'{"parent": "e0001/step-0000000100.a1", "holder": "h", "began_wall_at": 1.5, "token": "a"}'
HELD = b'{"epoch": 2}'
BEGUN = json.dumps({"epoch": None, "begins": 3, "object": EPOCH.decode()}).encode()
INPUTS = {
    "control pipe": Input(MESSAGES, read_messages),
    "last words": Input(MESSAGES, in_file(layout.LAST_WORDS, read_words)),
    "manifest": Input((MANIFEST.to_bytes(),), read_manifest, (ManifestError, NewerFormat)),
    "signed manifest": Input((MANIFEST.to_bytes(),), read_signed_manifest, (ManifestError, NewerFormat)),
    "index": Input((TABLE, OF_TENSORFLOW), read_table, (BundleError, OSError)),
    "entry of an index": Input((RECORD, RECORD * 3), read_tensor_entry, (BundleError, OSError)),
    "pointer": Input(
        (
            b'model_checkpoint_path: "m-1"\nall_model_checkpoint_paths: "/a/\\303\\266-2"\n',
            rb'model_checkpoint_path: "\8 \18 \08"',
        ),
        in_file(layout.POINTER, read_pointer),
    ),
    "position in state.json": Input((json.dumps(STATE).encode(),), in_file(layout.STATE, read_position)),
    "names of folders": Input(
        (b"step-0000000007.a1/step-0000000007.a1.partial/step-0000000007.a3.2/m.ckpt-12",), read_names
    ),
    "reason of a quarantine": Input((b"has another hash\n",), in_file("quarantine/x/WHY.txt", read_reasons)),
    "answer of a user's process": Input(ANSWERS, read_answers),
    "mark": Input(
        (f"/var/lib/stepkeeper:p:1:{'0' * 32}".encode(), b"/var/lib/stepkeeper:g/p:standby-3f:00"), read_mark
    ),
    "last line printed": Input((b"Traceback:\n  File x\nValueError: no\n",), read_last_line),
    "output of a health check": Input((b"disk is full\n" * 40,), read_health),
    "stacks": Input(
        (b'Thread 0x7f (most recent call first):\n  File "x", line 1 in f\n',), in_file(layout.STACKS, read_stacks)
    ),
    "capture mode": Input(
        (b"a" + BEGIN + b"b" * 99 + END + b"c" + BEGIN,), read_captured, tokens=(BEGIN, END, BEGIN[:9])
    ),
    "listener's reply": Input((b"READY\nRESULT 2\nOKREADY\nRESULT 4\nFAIL",), read_reply),
    "notification": Input((b"READY=1\nSTATUS=step 7\nMAINPID=7\n",), read_notification, (NotifyError,)),
    "output of a prover": Input(
        (encode_output(Proven(REPORT, "different")), encode_output(ProofProgress("killed run", 0.5, 3, 9))),
        read_output_of_prover,
        (ProtocolError,),
    ),
    "notice file": Input(
        (
            b'{"version": 1, "kind": "preemption", "in_s": 30, "reason": "x"}',
            b'{"version": 1, "kind": "freeze", "deadline": "2026-01-01T00:00:00Z"}',
        ),
        lambda content, _: parse_notice_file("a.json", content, WRITTEN_WALL_AT, NOW),
        (ParseError,),
    ),
    "conditions.json": Input(
        (b'{"python": "3.11", "onednn": true, "intra_op_threads": 4}',), in_file(layout.CONDITIONS, read_threads)
    ),
    "skipped.json": Input(
        (b'{"format": 1, "left_out": [{"epoch": 0, "batch": 7, "step": 9, "reason": "nan"}]}',),
        in_file(layout.SKIPPED, read_skipped),
        (NewerFormat,),
    ),
    "set-once.json": Input(
        (b'{"format": 1, "digests": {"norm.mean": "194b400d7d1d73b1", "norm.ready": "8f"}}',),
        in_file(layout.SET_ONCE, read_what_was_set_once),
    ),
    "epoch that a folder says is held": Input(
        (HELD, BEGUN), in_file(layout.EPOCH_HELD, read_held), (NewerFormat, DamagedRecord)
    ),
    "epoch in a store": Input((EPOCH,), lambda content, _: decode_epoch(3, content), (ProtocolError,)),
    "state.json in a worker": Input(
        (json.dumps(STATE).encode(),),
        lambda content, _: state_file.parse_state(content),
        (ValueError, KeyError, TypeError, AttributeError),
    ),
}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", INPUTS)
@cases(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_input_is_read_or_refused(name: str, data: st.DataObject, tmp_path: Path) -> None:
    parser = INPUTS[name]
    (tmp_path / "quarantine" / "x").mkdir(parents=True, exist_ok=True)
    if "index" in name:
        shutil.copy(BUNDLES / "manager" / "ckpt-3.data-00000-of-00001", tmp_path / "m-1.data-00000-of-00001")
    content = data.draw(contents(*parser.samples, tokens=parser.tokens))

    with contextlib.suppress(*parser.refusals):
        parser.read(content, tmp_path)


@pytest.mark.parametrize("name", [each for each in INPUTS if each not in ("entry of an index", "signed manifest")])
def test_undamaged_input_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "quarantine" / "x").mkdir(parents=True)
    shutil.copy(BUNDLES / "manager" / "ckpt-3.data-00000-of-00001", tmp_path / "m-1.data-00000-of-00001")
    for sample in INPUTS[name].samples:
        INPUTS[name].read(sample, tmp_path)
    assert not any(isinstance(each, Exception) for each in Decoder().feed(b"".join(MESSAGES)))
