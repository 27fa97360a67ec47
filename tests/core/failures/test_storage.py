"""Whether checkpoints are missing, and which errors of a directory may pass."""

import errno

import pytest

from supervisor.core.failures.storage import StorageWait, find_loss, is_waited_for
from supervisor.protocol.checkpoints.loss import KnownCheckpoint

KNOWN = KnownCheckpoint("/data/digits", "step-0000001200.a3", 1200, "xfs at /data")


@pytest.mark.parametrize(
    ("known", "directory", "found", "mount"),
    [
        (None, "/data/digits", None, "xfs at /data"),
        (KNOWN, "/data/other", None, "xfs at /data"),
        (KNOWN, "/data/digits", 1200, "xfs at /data"),
        (KNOWN, "/data/digits", 1300, "ext4 at /"),
    ],
    ids=["first start", "another directory is configured", "it is there", "the folder was moved to another disk"],
)
def test_nothing_is_missing(known: KnownCheckpoint | None, directory: str, found: int | None, mount: str) -> None:
    assert find_loss("digits", known, directory, found, mount) is None


def test_an_empty_directory_on_another_file_system_waits_and_names_step_place_and_remedies() -> None:
    loss = find_loss("digits", KNOWN, "/data/digits", None, "ext4 at /")

    assert loss is not None
    assert loss.waits
    assert loss.text == (
        "cannot train digits: step 1200 (step-0000001200.a3) was committed in /data/digits (xfs at /data), "
        "and the folder is now on ext4 at / and holds no checkpoint; mount the disk or put the folder back, "
        "and it goes on by itself; "
        "to give up what was trained, supervisorctl start --from-scratch digits"
    )


def test_deleted_checkpoints_on_the_same_file_system_wait_too() -> None:
    loss = find_loss("digits", KNOWN, "/data/digits", None, "xfs at /data")

    assert loss is not None
    assert loss.waits
    assert "and no checkpoint is there now; mount the disk" in loss.text


def test_an_old_copy_below_the_mount_point_waits() -> None:
    loss = find_loss("digits", KNOWN, "/data/digits", 900, "ext4 at /")

    assert loss is not None
    assert loss.waits
    assert "but the folder is now on ext4 at /, and its newest checkpoint is of step 900" in loss.text


@pytest.mark.parametrize("mount", ["xfs at /data", None])
def test_without_the_newest_on_the_same_file_system_it_goes_on_and_says_so(mount: str | None) -> None:
    loss = find_loss("digits", KNOWN, "/data/digits", 900, mount)

    assert loss is not None
    assert not loss.waits
    assert "step 1200 (step-0000001200.a3) was committed" in loss.text
    assert loss.text.endswith("it is gone; the newest one that is left is of step 900")


@pytest.mark.parametrize(
    "number",
    [
        *(errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.ENOENT, errno.ENOSPC, errno.EDQUOT),
        *(errno.ENODEV, errno.EHOSTDOWN, errno.EREMOTEIO, errno.ECONNRESET, errno.EUCLEAN, errno.ENXIO, errno.ENOLCK),
    ],
    ids=errno.errorcode.get,
)
def test_errors_of_storage_are_waited_for_at_every_start(number: int) -> None:
    assert is_waited_for(number, has_worked=False)
    assert is_waited_for(number, has_worked=True)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS], ids=errno.errorcode.get)
def test_a_refusal_is_waited_for_only_where_checkpoints_were_before(number: int) -> None:
    assert is_waited_for(number, has_worked=True)
    assert not is_waited_for(number, has_worked=False)


@pytest.mark.parametrize(
    "number", [None, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EMFILE, errno.ENOMEM, errno.EBADMSG], ids=str
)
def test_what_is_no_folder_and_what_the_host_lacks_is_not_waited_for(number: int | None) -> None:
    assert not is_waited_for(number, has_worked=True)


def test_looks_become_rarer_up_to_a_limit() -> None:
    assert [StorageWait(0.0, looks).pause_s for looks in (0, 1, 2, 3, 4, 5, 6, 10**9)] == [1, 2, 4, 8, 16, 30, 30, 30]
