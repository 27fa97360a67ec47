"""Which mount point a path is below, and which one of fstab is not mounted."""

from pathlib import Path

import pytest

from supervisor.host.mount_points import mounted_point, unmounted_point

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

    assert unmounted_point(Path(path), tmp_path / "fstab") == point


def test_without_an_fstab_nothing_is_known(tmp_path: Path):
    assert unmounted_point(Path("/no/such/data"), tmp_path / "gone") is None


def test_a_path_is_on_the_innermost_file_system_above_it():
    assert mounted_point(Path("/proc/self/no-such")) == "/proc"
    assert mounted_point(Path("/no/such/folder")) == "/"
