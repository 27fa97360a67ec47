"""`checkpoints --verify PATH` proves what lies in a folder, whoever wrote it, without a daemon."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from supervisor.ctl.main import main
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from tests.ctl.conftest import CTL
from tests.places import BUNDLES

NO_DAEMON = ("-s", "unix:///nowhere/at.all")


@pytest.fixture
def manager(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUNDLES / "manager", tmp_path / "manager"))


def commit(directory: Path, step: int) -> Path:
    name = layout.CheckpointName(step, 1)
    partial = directory / name.partial
    partial.mkdir(parents=True)
    (partial / "state").write_bytes(b"state")
    whole = Manifest("digits", 1, step, 1.7e9, manifest.record_files(partial, ("state",)))
    durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
    durable.commit_folder(partial, directory / str(name), ["state"])
    return directory / str(name)


def verify(path: Path, *options: str) -> int:
    return main([*NO_DAEMON, *options, "checkpoints", "--verify", str(path)])


def test_whole_folder_of_tensorflows_is_fine(manager: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = verify(manager)

    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert [(row[0], row[1], row[-1]) for row in rows[1:]] == [
        ("120", "ckpt-3", "whole"), ("80", "ckpt-2", "whole"), ("40", "ckpt-1", "whole"),
    ]  # fmt: skip


def test_damaged_checkpoint_is_named_and_exits_with_1(manager: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (manager / "ckpt-2.data-00000-of-00001").unlink()

    status = verify(manager)

    assert status == 1
    assert "damaged: ckpt-2.data-00000-of-00001 is missing" in capsys.readouterr().out


def test_single_prefix_is_verified_alone(manager: Path) -> None:
    (manager / "ckpt-2.data-00000-of-00001").unlink()

    assert verify(manager / "ckpt-3") == 0
    assert verify(manager / "ckpt-2") == 1


def test_json_names_the_class_of_damage(manager: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (manager / "ckpt-3.index").write_bytes(b"")
    verify(manager / "ckpt-3", "--json")

    (judged,) = json.loads(capsys.readouterr().out)["checkpoints"]
    assert (judged["kind"], judged["valid"], judged["damage"]) == ("tensorflow", False, "truncated")


def test_ours_are_proven_by_their_manifest_and_never_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(tmp_path, 5)
    bad = commit(tmp_path, 9)
    (bad / "state").write_bytes(b"wrong")

    statuses = verify(tmp_path), verify(bad), verify(tmp_path / "step-0000000005.a1")

    assert statuses == (1, 1, 0)
    assert bad.is_dir()
    assert "damaged: state has hash" in capsys.readouterr().out


def test_quarantined_checkpoints_are_shown_and_do_not_fail_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(tmp_path, 5)
    commit(tmp_path, 9)
    move_to_quarantine(tmp_path, layout.CheckpointName(9, 1), "a person said so")

    assert verify(tmp_path) == 0
    assert "quarantined: a person said so" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["", "nowhere", "manager/ckpt-9"])
def test_nothing_there_is_status_1(
    place: str, manager: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path / place) == 1
    assert "no checkpoints there" in capsys.readouterr().out


def test_verify_needs_one_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*NO_DAEMON, "checkpoints", "--verify"]) == 1
    assert "requires one folder, checkpoint or URL" in capsys.readouterr().out


@pytest.mark.integration
def test_the_command_works_where_no_daemon_and_no_configuration_is(manager: Path) -> None:
    shown = subprocess.run(
        [*CTL, "checkpoints", "--verify", "ckpt-1"],
        cwd=manager,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert "whole" in shown.stdout
