"""Which file system a folder is on, and what does not hold there."""

import os
import subprocess
from pathlib import Path

import pytest

from supervisor.protocol.mounts import REMARKS, Mount, mount_of, parse_mountinfo, remarks_on

TEXT = r"""22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /data\040of\011all rw,relatime - fuse.s3fs s3fs rw,user_id=0
31 22 0:27 /job /srv/nfs rw master:5 - nfs4 server:/export rw,vers=4.1,local_lock=none
not a line
"""


def test_mountinfo_is_read_with_its_escapes_and_optional_fields():
    mounts = parse_mountinfo(TEXT)

    assert {number: str(mount) for number, mount in mounts.items()} == {
        22: "ext4 at /",
        30: "fuse.s3fs at /data of\tall",
        31: "nfs4 at /srv/nfs",
    }
    assert {"rw", "vers=4.1"} <= mounts[31].options


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("ext4", (), None),
        ("xfs", (), None),
        ("nfs4", ("local_lock=none", "hard"), None),
        ("nfs", ("nolock",), "a worker on another host is not kept out"),
        ("nfs4", ("local_lock=all",), "a worker on another host is not kept out"),
        ("nfs4", ("soft",), "fail when the server does not answer"),
        ("fuse.s3fs", (), "a crash can leave half of one"),
        ("fuse.mount-s3", (), "no save can commit"),
        ("fuse.juicefs", (), None),
        ("fuseblk", (), None),
        ("fuse.somebody", (), "nothing is known"),
        ("overlay", (), "goes away with the container"),
        ("tmpfs", (), "in memory"),
        ("lustre", ("flock",), None),
        ("lustre", ("localflock",), "local to this host"),
        ("9p", (), "often neither goes further"),
    ],
)
def test_a_file_system_is_remarked_upon_only_where_something_does_not_hold(
    kind: str, options: tuple[str, ...], expected: str | None
):
    said = remarks_on(Mount(kind, "/data", frozenset(options)))

    assert (expected is None) == (said == [])
    assert all(
        expected is not None and expected in remark and remark.startswith(f"{kind} at /data: ") for remark in said
    )


def test_every_remark_says_what_to_do():
    assert all(remark.lacks and remark.instead for known in REMARKS.values() for remark in known)


def test_a_folder_that_does_not_exist_is_on_the_file_system_above_it(tmp_path: Path):
    assert mount_of(tmp_path / "not" / "yet") == mount_of(tmp_path)


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_the_mount_is_the_one_that_is_seen_through_links_and_other_mounts(tmp_path: Path):
    below, link = tmp_path / "disk", tmp_path / "link"
    below.mkdir()
    link.symlink_to(below / "job")
    before = mount_of(link)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", below], check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"this host does not let root mount: {mounted.stderr.strip()}")
    try:
        (below / "job").mkdir()
        mount = mount_of(link)
    finally:
        subprocess.run(["umount", below], check=True)

    assert mount is not None
    assert str(mount) == f"tmpfs at {below}"
    assert mount_of(link) == before != mount
