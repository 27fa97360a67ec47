"""Checkpoints of other programs are found, ordered, proven, and never touched."""

import os
import re
import shutil
from pathlib import Path

import pytest

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import foreign, manifest, selection, verification
from supervisor.protocol.checkpoints.foreign import VALUE
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, SelectionRules
from supervisor.protocol.tensorbundle import verify
from tests.places import BUNDLES


@pytest.fixture
def manager(tmp_path: Path) -> Path:
    """What CheckpointManager wrote: saves 1, 2 and 3, of steps 40, 80 and 120."""
    return Path(shutil.copytree(BUNDLES / "manager", tmp_path / "manager"))


@pytest.fixture
def saver(tmp_path: Path) -> Path:
    """What TF1's Saver wrote: global steps 90 and 100."""
    return Path(shutil.copytree(BUNDLES / "saver", tmp_path / "saver"))


def commit(directory: Path, step: int) -> Path:
    """A checkpoint of ours."""
    name = layout.CheckpointName(step, 1)
    partial = directory / name.partial
    partial.mkdir(parents=True)
    (partial / "state").write_bytes(b"state")
    whole = Manifest("digits", 1, step, 1.7e9, manifest.record_files(partial, ("state",)))
    durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
    durable.commit_folder(partial, directory / str(name), ["state"])
    return directory / str(name)


def damage(prefix: Path) -> None:
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(bytes(content))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_newest_of_checkpoint_manager_is_chosen_with_its_step(manager: Path) -> None:
    chosen = selection.select_checkpoint(manager)

    assert (chosen.path, chosen.step, chosen.manifest) == (manager / "ckpt-3", 120, None)
    assert chosen.foreign is not None and chosen.foreign.step_source == "its optimizer/_iterations"


def test_newest_of_the_saver_is_chosen_with_its_global_step(saver: Path) -> None:
    chosen = selection.select_checkpoint(saver)

    assert (chosen.path, chosen.step) == (saver / "model.ckpt-100", 100)


def test_damaged_newest_is_passed_over_and_not_touched(manager: Path) -> None:
    damage(manager / "ckpt-3")
    (manager / "ckpt-2.index").unlink()
    before = everything_in(manager)

    chosen = selection.select_checkpoint(manager)

    assert (chosen.path, chosen.step) == (manager / "ckpt-1", 40)
    assert [rejection.name for rejection in chosen.rejected] == ["ckpt-3", "ckpt-2"]
    assert chosen.rejected[1].reason == "ckpt-2.index is missing"
    assert everything_in(manager) == before


def test_nothing_whole_is_an_error_that_lists_all_and_never_step_0(saver: Path) -> None:
    damage(saver / "model.ckpt-90")
    (saver / "model.ckpt-100.data-00000-of-00001").unlink()

    with pytest.raises(NoValidCheckpoint, match=r"model\.ckpt-100: .* missing.*model\.ckpt-90: .*move them away"):
        selection.select_checkpoint(saver)


def test_state_file_that_names_what_is_gone_is_an_error(manager: Path) -> None:
    for entry in manager.glob("ckpt-*"):
        entry.unlink()

    with pytest.raises(NoValidCheckpoint, match=r"ckpt-3: ckpt-3\.index is missing"):
        selection.select_checkpoint(manager)


@pytest.mark.parametrize("content", [None, b"", bytes(300), b"\xff\xfe garbage", b'model_checkpoint_path: "ckpt-1'])
def test_damaged_state_file_hides_nothing(content: bytes | None, manager: Path) -> None:
    (manager / "checkpoint").unlink()
    if content is not None:
        (manager / "checkpoint").write_bytes(content)

    assert selection.select_checkpoint(manager).path == manager / "ckpt-3"


def test_ours_come_first(manager: Path) -> None:
    ours = commit(manager, 7)

    assert selection.select_checkpoint(manager).path == ours


def test_damaged_ours_are_not_replaced_by_what_was_there_before(manager: Path) -> None:
    ours = commit(manager, 7)
    (ours / "state").unlink()

    with pytest.raises(NoValidCheckpoint, match="quarantine"):
        selection.select_checkpoint(manager)


def test_our_own_pointer_is_no_sign_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "step-0000000120.a1/ckpt"\n')

    assert selection.select_checkpoint(tmp_path).path is None


@pytest.mark.parametrize("place", ["manager", "manager/ckpt-2"])
def test_initial_checkpoint_is_a_folder_or_one_prefix(place: str, manager: Path, tmp_path: Path) -> None:
    chosen = selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=tmp_path / place))

    assert chosen.step == {"manager": 120, "manager/ckpt-2": 80}[place]


def test_initial_checkpoint_may_be_another_jobs_and_is_never_set_aside(tmp_path: Path) -> None:
    whole, bad = commit(tmp_path / "other", 5), commit(tmp_path / "other", 9)
    (bad / "state").unlink()

    of_folder = selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=tmp_path / "other"))
    of_one = selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=whole))

    assert (of_folder.path, of_folder.step, [rejection.name for rejection in of_folder.rejected]) == (
        whole,
        5,
        [bad.name],
    )
    assert of_one.path == whole
    assert bad.is_dir()


def test_initial_checkpoint_counts_only_until_there_is_one_of_ours(manager: Path, tmp_path: Path) -> None:
    ours = commit(tmp_path / "mine", 200)

    assert selection.select_checkpoint(tmp_path / "mine", SelectionRules(initial=manager)).path == ours


@pytest.mark.parametrize("place", ["nowhere", "manager/ckpt-9", "manager/ckpt"])
def test_initial_checkpoint_that_is_not_there_is_an_error(place: str, manager: Path, tmp_path: Path) -> None:
    with pytest.raises(NoValidCheckpoint, match="no checkpoint of this name"):
        selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=tmp_path / place))


def test_main_family_comes_before_higher_numbers_of_another(manager: Path) -> None:
    for part in ("index", "data-00000-of-00001"):
        shutil.copy(manager / f"ckpt-1.{part}", manager / f"best-500.{part}")

    assert [prefix.name for prefix in foreign.prefixes_in(manager)] == ["ckpt-3", "ckpt-2", "ckpt-1", "best-500"]


def test_names_without_number_are_ordered_by_time(manager: Path, tmp_path: Path) -> None:
    for name, written_at in (("new", 2000), ("old", 1000)):
        for part in ("index", "data-00000-of-00001"):
            path = tmp_path / f"{name}.{part}"
            shutil.copy(manager / f"ckpt-1.{part}", path)
            os.utime(path, (written_at, written_at))

    assert [prefix.name for prefix in foreign.prefixes_in(tmp_path)] == ["new", "old"]


def test_v1_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-7").write_bytes(b"one file")
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')

    with pytest.raises(NoValidCheckpoint, match="V1 format"):
        selection.select_checkpoint(tmp_path)


def bundle(name: str, **counters: int) -> verify.Bundle:
    return verify.Bundle(Path(name), 1, 1, 1, True, counters)


@pytest.mark.parametrize(
    ("saved", "step", "source"),
    [
        (bundle("ckpt-3", **{f"save_counter{VALUE}": 3}), 3, "its save_counter, as it holds no step"),
        (bundle("ckpt-900", **{f"save_counter{VALUE}": 3}), 900, "the number in its name"),
        (bundle("ckpt-3", **{f"step{VALUE}": 60, "optimizer/iter": 59}), 60, "its step"),
        (bundle("model", **{"training/Adam/iter": 59}), 59, "its training/Adam/iter"),
        (bundle("model", global_step=-1), 0, "nothing: it holds no step"),
    ],
)  # fmt: skip
def test_step_comes_from_the_surest_source(saved: verify.Bundle, step: int, source: str) -> None:
    assert foreign.step_of_bundle(saved) == (step, source)


def test_escapes_in_a_state_file_are_those_of_text_protos(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(rb'model_checkpoint_path: "/a\"b/gr\303\266\x2dsse-1"')

    assert foreign.prefixes_in(tmp_path) == [tmp_path / "grö-sse-1"]


@pytest.mark.parametrize("prefix", ["ckpt", "replicas"])
def test_prefix_in_one_of_ours_is_the_whole_of_it(manager: Path, tmp_path: Path, prefix: str) -> None:
    """What a user of TensorFlow calls a checkpoint has neither the place in the data nor what other workers wrote."""
    ours = commit(tmp_path / "mine", 200)
    for file in manager.glob("ckpt-3.*"):
        shutil.copy(file, ours / file.name.replace("ckpt-3", prefix))

    chosen = selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=ours / prefix))
    (verified,) = verification.verify_all(ours / prefix)
    assert (chosen.path, chosen.foreign, verified.kind, verified.valid) == (ours, None, "stepkeeper", True)

    (ours / "state").write_bytes(b"other")
    with pytest.raises(NoValidCheckpoint, match=f"{ours.name}: state has hash"):
        selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=ours / prefix))
    (verified,) = verification.verify_all(ours / prefix)
    assert verified.valid is False


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("best", "its MANIFEST.json says step-0000000200.a1: give it that name"),
        ("step-0000000200.a1.partial", "an interrupted save left it"),
        ("step-0000000200.a1.part", "it is one node's part"),
    ],
)
@pytest.mark.parametrize("place", ["", "ckpt"])
def test_ours_under_another_name_is_not_taken_for_another_programs(
    manager: Path, tmp_path: Path, name: str, reason: str, place: str
) -> None:
    ours = commit(tmp_path / "mine", 200)
    for prefix in ("ckpt", "replicas"):
        for file in manager.glob("ckpt-3.*"):
            shutil.copy(file, ours / file.name.replace("ckpt-3", prefix))
    copy = ours.rename(tmp_path / name)

    with pytest.raises(NoValidCheckpoint, match=re.escape(reason)):
        selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=copy / place))
    (verified,) = verification.verify_all(copy / place)
    assert verified.valid is False
    assert reason in (verified.reason or "")


def test_bundle_without_a_manifest_beside_it_can_be_named(manager: Path, tmp_path: Path) -> None:
    ours = commit(tmp_path / "mine", 200)
    for file in manager.glob("ckpt-3.*"):
        shutil.copy(file, ours / file.name.replace("ckpt-3", "ckpt"))
    (ours / layout.MANIFEST).unlink()

    assert selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=ours / "ckpt")).step == 120
    with pytest.raises(NoValidCheckpoint, match=r"MANIFEST\.json is missing"):
        selection.select_checkpoint(tmp_path / "empty", SelectionRules(initial=ours))
