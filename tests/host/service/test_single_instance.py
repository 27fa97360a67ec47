"""The pid file of a root daemon in a folder that others can write, as files for Supervisor have it."""

import os
from pathlib import Path

import pytest

from supervisor.host.service.single_instance import pid_file
from tests.system.harness import let_others_in

pytestmark = [pytest.mark.hostile, pytest.mark.skipif(os.geteuid() != 0, reason="root has something to lose")]
ALICE = 41001


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    let_others_in(tmp_path)
    (tmp_path / "victim").write_text("root's own")
    return tmp_path / "victim"


def shared(folder: Path, mode: int, owner: int) -> Path:
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, owner, owner)
    return folder


@pytest.mark.parametrize(("mode", "owner"), [(0o1777, 0), (0o755, ALICE)], ids=["like /tmp", "a user's"])
def test_a_link_of_its_name_leads_to_no_file_of_roots(tmp_path: Path, victim: Path, mode: int, owner: int) -> None:
    path = shared(tmp_path / "folder", mode, owner) / "supervisord.pid"
    path.symlink_to(victim)
    os.chown(path, ALICE, ALICE, follow_symlinks=False)

    with pytest.raises(PermissionError, match="a link of uid 41001"), pid_file(path):
        pass

    assert victim.read_text() == "root's own"
    assert path.is_symlink()


def test_a_file_that_somebody_else_has_put_there_is_not_used(tmp_path: Path) -> None:
    path = shared(tmp_path / "folder", 0o1777, 0) / "supervisord.pid"
    path.touch()
    os.chown(path, ALICE, ALICE)  # who could write another pid into it later

    with pytest.raises(PermissionError, match="a file of uid 41001"), pid_file(path):
        pass

    assert path.read_text() == ""


def test_a_folder_that_became_a_link_costs_nobody_a_file(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    folder, others = shared(tmp_path / "home", 0o755, ALICE), tmp_path / "others"
    others.mkdir()
    (others / "supervisord.pid").write_text("of another daemon")

    with pid_file(folder / "supervisord.pid"):
        assert (folder / "supervisord.pid").read_text() == f"{os.getpid()}\n"
        folder.rename(tmp_path / "away")
        folder.symlink_to(others)
        os.chown(folder, ALICE, ALICE, follow_symlinks=False)

    assert (others / "supervisord.pid").read_text() == "of another daemon"


def test_a_file_that_an_earlier_daemon_left_is_written_anew(tmp_path: Path) -> None:
    path = shared(tmp_path / "folder", 0o1777, 0) / "supervisord.pid"
    path.write_text("12345678\n" * 10)

    with pid_file(path):
        assert path.read_text() == f"{os.getpid()}\n"

    assert not path.exists()
