"""Folders that other users fill are removed at once, however deep or large, and no link leads out of them."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.user_folders.folder_removal import REMOVED, empty_removed, remove_folder, resume_removal
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _removes_deep_trees(tmp_path: Path) -> Iterator[None]:
    """Removes the test's folder, whose trees are too deep for pytest's own clean-up."""
    yield
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def nest(folder: Path, depth: int) -> None:
    """Makes folders within folders, deeper than a path can be long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a" * 20, dir_fd=here)
        inner = os.open("a" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def is_all_gone(folder: Path) -> bool:
    return not os.listdir(folder)


def test_a_small_folder_is_gone_at_once_without_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "a1"
    folder.mkdir()
    (folder / "file").touch()
    (folder / "link").symlink_to("/")
    os.mkfifo(folder / "pipe")

    remove_folder(folder)

    assert is_all_gone(tmp_path)


def test_nothing_to_remove_is_no_error(tmp_path: Path) -> None:
    remove_folder(tmp_path / "a1")

    assert is_all_gone(tmp_path)


def test_a_deep_tree_is_removed_without_recursion(tmp_path: Path) -> None:
    folder = tmp_path / "a1"
    folder.mkdir()
    nest(folder, 1500)

    remove_folder(folder)

    assert not folder.exists()
    wait_until(lambda: is_all_gone(tmp_path), "the tree is deleted")


@pytest.mark.slow
def test_many_files_hold_nobody_up(tmp_path: Path) -> None:
    folder = tmp_path / "a1"
    folder.mkdir()
    home = os.open(folder, os.O_RDONLY)
    for number in range(150_000):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=home))
    os.close(home)
    began = time.monotonic()

    remove_folder(folder)

    assert time.monotonic() - began < 0.5
    assert not folder.exists()
    wait_until(lambda: is_all_gone(tmp_path), "the files are deleted")


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "file").touch()
    folder = tmp_path / "programs" / "a1"
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "sub" / "link").symlink_to(outside / "inner")

    remove_folder(folder)

    wait_until(lambda: is_all_gone(tmp_path / "programs"), "the folder is deleted")
    assert (outside / "inner" / "file").exists()


def test_a_link_in_place_of_the_folder_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "a1").symlink_to(tmp_path / "outside")

    remove_folder(tmp_path / "programs" / "a1")

    wait_until(lambda: is_all_gone(tmp_path / "programs"), "the link is deleted")
    assert (tmp_path / "outside" / "file").exists()


def test_what_an_earlier_daemon_left_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "job" / REMOVED / "0123").mkdir(parents=True)
    nest(tmp_path / "job" / REMOVED / "0123", 50)

    resume_removal(tmp_path)

    wait_until(lambda: is_all_gone(tmp_path / "job"), "it is deleted")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may delete everything")
def test_what_cannot_be_deleted_stays_and_ends_the_work(tmp_path: Path) -> None:
    stuck = tmp_path / REMOVED / "0123" / "sub"
    stuck.mkdir(parents=True)
    (stuck / "file").touch()
    stuck.chmod(0o500)

    empty_removed(tmp_path / REMOVED)

    assert (tmp_path / REMOVED).exists()
    stuck.chmod(0o700)
