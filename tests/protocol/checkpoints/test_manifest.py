"""A manifest proves that a checkpoint is whole, whatever happened to its files."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import (
    FileRecord,
    Manifest,
    ManifestError,
    parse_manifest,
)
from supervisor.protocol.formats import NewerFormat

NAMES = st.text(st.characters(codec="ascii", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in {".", "..", layout.MANIFEST}
)
FILES = st.lists(
    st.builds(FileRecord, NAMES, st.integers(0, 2**60), st.text(max_size=40)),
    min_size=1,
    max_size=4,
    unique_by=lambda file: file.name,
).map(tuple)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
MANIFESTS = st.builds(
    Manifest,
    job=st.text(max_size=10),
    attempt=st.integers(0, 10**9),
    step=st.integers(0, 10**18),
    created_wall_at=NUMBERS,
    files=FILES,
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    topology=st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers() | st.booleans(), max_size=3),
    metrics=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
)
WHOLE = Manifest(
    job="digits",
    attempt=3,
    step=1200,
    created_wall_at=1.7e9,
    files=(FileRecord("ckpt.index", 5, "xxh3_128:00"),),
    metrics={"loss": 1e-07},
    topology={"replicas": 2},
)


@given(MANIFESTS)
def test_a_manifest_comes_back_as_it_was(whole: Manifest) -> None:
    assert parse_manifest(whole.to_bytes()) == whole


def test_no_flipped_bit_changes_what_a_manifest_says() -> None:
    content = WHOLE.to_bytes()
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            parsed = parse_manifest(bytes(flipped))
        except ManifestError:
            continue
        assert parsed == WHOLE, f"bit {bit}: 1e-07 may become 1E-07, and nothing else may become anything"


def _signed(**changes: Any) -> bytes:
    """A manifest with other fields and a right hash of itself: what a hostile job could write."""
    body = json.loads(WHOLE.to_bytes())
    del body["self_hash"]
    body |= changes
    return json.dumps({**body, "self_hash": manifest._self_hash(body)}).encode()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/etc/passwd", "a\0b", layout.MANIFEST, "x" * 256, "caf\ud800"],
)
def test_a_file_name_that_leaves_the_directory_or_can_not_exist_is_refused(name: str) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(_signed(files=[{"name": name, "size": 0, "hash": "xxh3_128:00"}]))


@pytest.mark.parametrize("key", ["created_wall_at", "step"])
def test_a_number_too_large_for_its_field_is_refused(key: str) -> None:
    with pytest.raises(ManifestError, match=key):
        parse_manifest(_signed(**{key: 10**400}))


def test_a_manifest_of_a_later_format_is_refused() -> None:
    with pytest.raises(NewerFormat, match=r"newer stepkeeper wrote MANIFEST.json \(format 2"):
        parse_manifest(_signed(format=2))


def test_a_manifest_with_a_changed_format_is_damaged() -> None:
    content = _signed().replace(b'"format": 1', b'"format": 2')
    assert content != _signed(), "it is there"

    with pytest.raises(ManifestError, match="was changed after it was written"):
        parse_manifest(content)


def test_verify_proves_a_whole_checkpoint(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(1200, attempt=3)

    verified = manifest.verify_checkpoint(folder)

    assert (verified.step, verified.attempt, verified.name) == (1200, 3, layout.CheckpointName(1200, 3))
    assert verified.size_bytes == sum((folder / file.name).stat().st_size for file in verified.files)


def test_a_manifest_in_a_directory_of_another_name_is_refused(checkpoint: Callable[..., Path]) -> None:
    moved = checkpoint(1200).rename(checkpoint(1300).parent / "step-0000001400.a1")

    with pytest.raises(ManifestError, match=r"says step-0000001200\.a1, the directory is called step-0000001400\.a1"):
        manifest.verify_checkpoint(moved)


@pytest.mark.timeout(10)  # a reader of the pipe would wait for ever
@pytest.mark.parametrize("name", [layout.MANIFEST, "ckpt.index"])
def test_a_pipe_or_a_link_in_the_place_of_a_file_is_damage_and_holds_nobody(
    name: str, checkpoint: Callable[..., Path]
) -> None:
    piped, linked = checkpoint(1), checkpoint(2)
    (piped / name).unlink()
    os.mkfifo(piped / name)
    (linked / name).rename(linked / "elsewhere")
    (linked / name).symlink_to(linked / "elsewhere")

    for folder in (piped, linked):
        with pytest.raises(ManifestError):
            manifest.verify_checkpoint(folder)


def test_a_reason_that_says_nothing_about_the_checkpoint_is_not_damage(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(1)

    def no_descriptors(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", no_descriptors)

    with pytest.raises(OSError, match="Too many open files"):
        manifest.verify_checkpoint(folder)


def test_a_large_manifest_is_refused_unparsed(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(1)
    (folder / layout.MANIFEST).write_bytes(b"[" + b"[],[]," * (5 << 20) + b"0]")

    with pytest.raises(ManifestError, match="more than the 4194304 allowed"):
        manifest.read_manifest(folder)


def test_errors_about_a_manifest_are_short() -> None:
    for body in ({"format": "x" * 100_000}, {"format": 1, "job": "x" * 100_000}):
        body["self_hash"] = manifest._self_hash(body)
        with pytest.raises(ManifestError) as refused:
            parse_manifest(json.dumps(body).encode())

        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_only_utf_8_is_read_as_other_encodings_are_modules_that_a_user_may_not_be_able_to_import(encoding: str) -> None:
    with pytest.raises(ManifestError, match="not JSON"):
        parse_manifest(_signed().decode().encode(encoding))


def test_position_in_another_encoding_is_none(tmp_path: Path) -> None:
    for encoding, position in (("utf-8", "epoch 0, batch 7"), ("utf-16", None), ("utf-32-be", None)):
        (tmp_path / layout.STATE).write_bytes(json.dumps({"epoch": 0, "batch": 7}).encode(encoding))
        assert selection.read_data_position(tmp_path) == position
