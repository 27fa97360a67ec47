"""A root daemon opens what a path says, unless a link of another user leads it elsewhere."""

import os
import stat
from pathlib import Path

import pytest

from supervisor.host.logs.files import file as log_file
from supervisor.host.logs.files.file import OutputFile, truncate_with_backups
from supervisor.host.user_folders.guarded_open import guarded_folder, open_guarded

ALICE, BOB = 41001, 41002  # no such users: the kernel knows numbers
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be led to what is another's"),
]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of root's."""
    (tmp_path / "root").mkdir()
    file = tmp_path / "root" / "secret"
    file.write_text("secret")
    return file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "alice", ALICE)


def folder_of(path: Path, uid: int) -> Path:
    path.mkdir()
    os.chown(path, uid, uid)
    return path


def link(path: Path, target: Path, uid: int) -> Path:
    path.symlink_to(target)
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


def content(path: Path) -> str:
    descriptor = open_guarded(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 100).decode()
    finally:
        os.close(descriptor)


def append(path: Path, text: str) -> None:
    descriptor = open_guarded(path, APPEND)
    os.write(descriptor, text.encode())
    os.close(descriptor)


def test_files_in_a_users_folder_are_created_and_opened_again(home: Path) -> None:
    append(home / "log", "one ")
    append(home / "log", "two")

    assert content(home / "log") == "one two"


@pytest.mark.parametrize("flags", [os.O_RDONLY, APPEND, os.O_WRONLY])
def test_a_users_link_to_anothers_file_is_refused(home: Path, secret: Path, flags: int) -> None:
    with pytest.raises(PermissionError, match=f"a link of uid {ALICE} leads to a folder of uid 0"):
        open_guarded(link(home / "log", secret, ALICE), flags)


def test_a_users_link_to_anothers_folder_is_refused(home: Path, secret: Path) -> None:
    link(home / "logs", secret.parent, ALICE)

    with pytest.raises(PermissionError):
        open_guarded(home / "logs" / "secret", os.O_RDONLY)
    with pytest.raises(PermissionError):
        open_guarded(home / "logs" / "new", APPEND)
    with pytest.raises(PermissionError), guarded_folder(home / "logs"):
        pass
    assert os.listdir(secret.parent) == ["secret"]


def test_links_over_another_user_are_refused(tmp_path: Path, home: Path) -> None:
    bobs = folder_of(tmp_path / "bob", BOB)
    (home / "mine").touch()
    os.chown(home / "mine", ALICE, ALICE)
    link(bobs / "link", home / "mine", BOB)

    with pytest.raises(PermissionError):
        open_guarded(bobs / "link", os.O_RDONLY)
    with pytest.raises(PermissionError):
        open_guarded(link(home / "log", bobs / "link", ALICE), os.O_RDONLY)


def test_a_hard_link_to_anothers_file_is_refused(home: Path, secret: Path) -> None:
    os.link(secret, home / "log")

    with pytest.raises(PermissionError, match="other names elsewhere"):
        open_guarded(home / "log", APPEND)


def test_a_new_file_belongs_to_the_folders_owner(home: Path) -> None:
    append(home / "log", "one")

    assert ((home / "log").stat().st_uid, (home / "log").stat().st_gid) == (ALICE, ALICE)


def shared_folder(path: Path) -> Path:
    folder_of(path, ALICE).chmod(0o777)
    return path


def test_a_third_users_file_in_a_shared_folder_is_not_written(tmp_path: Path) -> None:
    shared = shared_folder(tmp_path / "shared")
    for uid, name in ((ALICE, "hers"), (BOB, "his"), (0, "roots")):
        (shared / name).touch()
        os.chown(shared / name, uid, uid)

    for name in ("hers", "roots"):
        append(shared / name, "x")
    with pytest.raises(PermissionError, match=f"a file of uid {BOB} in a folder of uid {ALICE}"):
        append(shared / "his", "x")
    os.close(open_guarded(shared / "his", APPEND, users=(BOB,)))
    assert (shared / "his").read_text() == ""


def test_a_hard_link_in_a_shared_folder_is_refused_whosever_file_it_is(tmp_path: Path, home: Path) -> None:
    shared = shared_folder(tmp_path / "shared")
    (home / "diary").write_text("private")
    os.chown(home / "diary", ALICE, ALICE)
    os.link(home / "diary", shared / "log")
    os.link(home / "diary", home / "log")

    assert content(home / "log") == "private", "nobody else can have made it"
    for flags in (os.O_RDONLY, APPEND):
        with pytest.raises(PermissionError, match="other names elsewhere"):
            open_guarded(shared / "log", flags)


def test_a_private_file_of_roots_that_lost_its_other_name_is_not_read(home: Path, secret: Path) -> None:
    secret.chmod(0o600)
    os.link(secret, home / "log")
    secret.unlink()

    with pytest.raises(PermissionError, match="private file of root's"):
        open_guarded(home / "log", os.O_RDONLY)
    (home / "log").chmod(0o644)
    assert content(home / "log") == "secret", "as logs are that root made"


def test_clearing_ends_however_many_backups_a_user_made(home: Path) -> None:
    for number in range(1, log_file.MAX_BACKUPS + 11):
        (home / f"log.{number}").touch()

    log_file.truncate_with_backups(home / "log")

    assert len(list(home.iterdir())) == 10


def test_a_link_that_root_made_is_followed(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "log").symlink_to(secret)
    (tmp_path / "logs").symlink_to("root")

    assert content(tmp_path / "log") == content(tmp_path / "logs" / "secret") == "secret"


def test_roots_link_in_a_users_folder_leads_to_that_users_only(home: Path, secret: Path) -> None:
    (home / "log").symlink_to(secret)

    with pytest.raises(PermissionError):
        open_guarded(home / "log", os.O_RDONLY)


def test_a_users_link_to_their_own_folder_is_followed(tmp_path: Path, home: Path) -> None:
    data = folder_of(tmp_path / "data", ALICE)
    link(home / "logs", data, ALICE)

    append(home / "logs" / "log", "one ")
    append(home / "logs" / "log", "two")

    assert content(data / "log") == "one two"
    assert (data / "log").stat().st_uid == ALICE


def test_links_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(OSError, match="Too many levels"):
        open_guarded(tmp_path / "a", os.O_RDONLY)


def test_devices_in_a_users_folder_are_refused(home: Path) -> None:
    try:
        os.mknod(home / "log", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.close(os.open(home / "log", os.O_WRONLY))
    except OSError:
        pytest.skip("this host lets nobody make or open devices")

    with pytest.raises(PermissionError, match="neither a file nor a named pipe"):
        open_guarded(home / "log", APPEND)


def test_devices_and_own_descriptors_are_opened_where_root_keeps_them() -> None:
    reading, writing = os.pipe()
    for path in ("/dev/null", f"/proc/self/fd/{writing}", f"/dev/fd/{writing}"):
        os.close(open_guarded(Path(path), APPEND))
    os.close(reading)
    os.close(writing)


def test_a_folder_and_a_missing_one_are_named(home: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_guarded(Path("/"), os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        open_guarded(home / "none" / "log", APPEND)


def test_a_log_is_neither_written_nor_rotated_nor_cleared_through_a_link(home: Path, secret: Path) -> None:
    link(home / "logs", secret.parent, ALICE)
    (secret.parent / "secret.1").write_text("older")
    file = OutputFile(home / "logs" / "secret", 10, 2)

    file.write(b"overwritten\n" * 5)
    for clear in (file.clear, lambda: truncate_with_backups(home / "logs" / "secret")):
        with pytest.raises(PermissionError):
            clear()

    assert "a link of uid" in (file.error or "")
    assert secret.read_text() == "secret"
    assert (secret.parent / "secret.1").read_text() == "older"


def test_a_log_follows_no_link_that_takes_its_place(home: Path, secret: Path) -> None:
    file = OutputFile(home / "log", 0, 0)
    file.write(b"one\n")
    (home / "log").unlink()
    link(home / "log", secret, ALICE)

    file.reopen()
    file.write(b"two\n")

    assert secret.read_text() == "secret"
