"""Which errors of a checkpoint directory may pass, and how often a lost one is looked at."""

import errno

import pytest

from supervisor.core.failures.storage import StorageWait, is_waited_for, remedy_for


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


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space there; it is tried again by itself"),
        (errno.EDQUOT, "free space there; it is tried again by itself"),
        (errno.EROFS, "mount it for writing"),
        (errno.EIO, "make its disk or its server work; it is tried again by itself"),
        (errno.ESTALE, "make its disk or its server work; it is tried again by itself"),
        (errno.EACCES, "make it a folder that anna can read and write"),
        (errno.ENOENT, "make it a folder that anna can read and write"),
        (errno.ENOTDIR, "make it a folder that anna can read and write"),
    ],
)
def test_what_to_do_depends_on_the_error(number: int, remedy: str) -> None:
    assert remedy_for(number, "anna") == remedy
