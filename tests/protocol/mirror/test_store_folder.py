"""A store on a disk that is not mounted is no empty store."""

from pathlib import Path

import pytest

from supervisor.protocol.mirror.store import Store, StoreError
from supervisor.protocol.mirror.store_folder import why_not_there
from supervisor.protocol.mount_points import MountTables


@pytest.fixture
def tables(tmp_path: Path) -> MountTables:
    path = tmp_path / "fstab"
    path.write_text("# none\n")
    return MountTables(path, ())


def test_a_folder_that_exists_can_be_used_and_other_urls_are_none_of_ours(tmp_path: Path, tables: MountTables):
    assert why_not_there(f"file://{tmp_path}", tables=tables) is None
    assert why_not_there("s3://bucket/prefix") is None


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_is_not_there_is_named_with_the_remedy_and_not_made(tmp_path: Path, is_file: bool):
    folder = tmp_path / "mnt" / "store"
    if is_file:
        folder = tmp_path / "store"
        folder.touch()
    with pytest.raises(StoreError) as error:
        Store(f"file://{folder}")

    why = "is not a folder" if is_file else "is not there"
    assert str(error.value).startswith(f"cannot use mirror file://{folder}: {folder} {why}; mount its disk")
    assert not (tmp_path / "mnt").exists()


@pytest.mark.parametrize("below", ["", "/runs"])
def test_a_mount_point_of_fstab_without_its_disk_is_no_store_although_the_folder_exists(
    tmp_path: Path, tables: MountTables, below: str
):
    point = tmp_path / "a disk"
    (point / "runs").mkdir(parents=True)
    tables.fstab.write_text(
        f"/dev/sdb1 {tmp_path}/a\\040disk ext4 defaults 0 2\n/dev/sda1 / ext4 defaults 0 1\nbroken\n"
    )
    url = f"file://{str(point).replace(' ', '%20')}{below}"

    assert f"{point} is in {tables.fstab} and not mounted" in (why_not_there(url, tables=tables) or "")


def test_what_is_mounted_as_fstab_says_can_be_used(tmp_path: Path, tables: MountTables):
    tables.fstab.write_text("proc /proc proc defaults 0 0\n")

    assert why_not_there("file:///proc/self", tables=tables) is None


def test_a_mount_point_without_its_disk_is_no_store_until_somebody_makes_the_runs_folder(
    tmp_path: Path, tables: MountTables
):
    (tmp_path / "store").mkdir()
    url = f"file://{tmp_path}/store"

    assert f"make the folder {tmp_path}/store/j" in (why_not_there(url, "j", tables) or "")
    (tmp_path / "store" / "j").mkdir()
    assert why_not_there(url, "j", tables) is None
    assert why_not_there(url, "another", tables) is None, "this is the store: it makes its own"


def test_a_folder_that_goes_away_later_is_not_made_by_a_write(tmp_path: Path):
    (tmp_path / "store" / "j").mkdir(parents=True)
    store = Store(f"file://{tmp_path}/store", "j")
    assert store.create("epoch/0001", b"{}")
    (tmp_path / "store").rename(tmp_path / "away")

    with pytest.raises(StoreError, match="is not there"):
        store.create("epoch/0002", b"{}")
    assert not (tmp_path / "store").exists()
    assert (tmp_path / "away/j/epoch/0001").exists()
