"""Which mount point a path is below, and which one of fstab is not mounted."""

from pathlib import Path

import pytest

from supervisor.protocol.mount_points import MountTables, missing_volume, mounted_point, unmounted_point

FSTAB = """
# /dev/sda1 /commented ext4 defaults 0 0
UUID=1 / ext4 defaults 0 1
UUID=2 none swap sw 0 0
UUID=3 /no/such/data/ xfs defaults 0 2
server:/x /no/such/data/deep nfs4 noauto 0 0
UUID=4 /no/such/with\\040blank ext4 defaults 0 0
proc /proc proc defaults 0 0
broken
"""


@pytest.mark.parametrize(
    ("path", "point"),
    [
        ("/no/such/data/run", "/no/such/data"),
        ("/no/such/data", "/no/such/data"),
        ("/no/such/data/deep/run", "/no/such/data/deep"),
        ("/no/such/with blank/x", "/no/such/with blank"),
        ("/no/such/database", None),
        ("/commented/run", None),
        ("/proc/1", None),
        ("/etc", None),
    ],
)
def test_only_what_fstab_has_and_is_not_mounted_is_missing(tmp_path: Path, path: str, point: str | None):
    (tmp_path / "fstab").write_text(FSTAB)

    missing = unmounted_point(Path(path), MountTables(tmp_path / "fstab", ()))

    assert (None if missing is None else missing.point) == point


def test_without_an_fstab_nothing_is_known(tmp_path: Path):
    assert unmounted_point(Path("/no/such/data"), MountTables(tmp_path / "gone", (tmp_path / "none",))) is None


def test_a_path_is_on_the_innermost_file_system_above_it():
    assert mounted_point(Path("/proc/self/no-such")) == "/proc"
    assert mounted_point(Path("/no/such/folder")) == "/"


def test_mount_unit_of_systemd_names_a_mount_point_unless_it_is_masked(tmp_path: Path):
    units = tmp_path / "units"
    units.mkdir()
    (units / "srv-data.mount").write_text("[Unit]\nDescription=x\n[Mount]\nWhat=/dev/sdb\nWhere = /no/such/data/\n")
    (units / "masked.mount").symlink_to("/dev/null")
    (units / "template@.mount").write_text("[Mount]\nWhere=/no/such/%i\n")
    (units / "dangling.mount").symlink_to(tmp_path / "none")
    tables = MountTables(tmp_path / "gone", (units,))

    missing = unmounted_point(Path("/no/such/data/run"), tables)

    assert str(missing) == f"/no/such/data is in {units}/srv-data.mount and not mounted"
    assert unmounted_point(Path("/no/such/masked"), tables) is None


def test_a_volume_that_is_mounted_below_a_point_without_its_disk_is_a_volume(tmp_path: Path):
    (tmp_path / "fstab").write_text("UUID=1 / ext4 defaults 0 1\nUUID=2 /sys/fs xfs noauto 0 0\n")
    tables = MountTables(tmp_path / "fstab", ())

    assert missing_volume(Path("/sys/fs/cgroup/run"), tables) is None
    assert missing_volume(Path("/sys/fs/no-such/run"), tables) is not None


def test_links_to_a_volume_and_in_its_mount_point_are_followed(tmp_path: Path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "disk")
    (tmp_path / "run").symlink_to(tmp_path / "disk" / "run")
    (tmp_path / "fstab").write_text(f"UUID=1 {tmp_path}/alias xfs nofail 0 0\n")
    tables = MountTables(tmp_path / "fstab", ())

    by_way = [tmp_path / "run", tmp_path / "alias" / "run", tmp_path / "disk" / "run", tmp_path / "other"]

    assert [missing_volume(folder, tables) is not None for folder in by_way] == [True, True, True, False]
