"""What a daemon leaves to the one that it executes in its place."""

import os
import socket
from pathlib import Path

import pytest

from supervisor.host.service.reloading import VARIABLE, Reload


def left_listener(path: Path, environment: dict[str, str]) -> dict[str, str]:
    """A listening socket is left; gives the environment in which the next daemon finds it."""
    listener, reload = socket.socket(socket.AF_UNIX), Reload()
    listener.bind(str(path))
    listener.listen()
    reload.keep("place", listener, (path, path.stat().st_ino))
    return reload.environment(environment)


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def test_the_next_daemon_takes_the_socket_and_no_child_does(tmp_path: Path) -> None:
    environment = left_listener(tmp_path / "s", {"HOME": "/"})

    reload = Reload.of_environment(environment)
    taken = reload.take("place")
    reload.close_rest()

    assert environment == {"HOME": "/"} and reload.was_daemon
    assert taken is not None and connects(tmp_path / "s")
    with taken.listener:
        assert not taken.listener.get_inheritable() and taken.file_inode == (tmp_path / "s").stat().st_ino


@pytest.mark.parametrize("what", ["not-configured", "replaced"])
def test_a_socket_that_is_of_no_use_is_closed(what: str, tmp_path: Path) -> None:
    reload = Reload.of_environment(left_listener(tmp_path / "s", {}))
    if what == "replaced":
        (tmp_path / "kept").hardlink_to(tmp_path / "s")  # its inode stays in use
        (tmp_path / "s").unlink()
        (tmp_path / "s").touch()

    taken = reload.take("place" if what == "replaced" else "elsewhere")
    reload.close_rest()

    assert taken is None and not connects(tmp_path / "s")
    assert (tmp_path / "s").exists() is (what == "replaced")


def test_what_another_process_left_is_not_touched(tmp_path: Path) -> None:
    environment = left_listener(tmp_path / "s", {})
    environment[VARIABLE] = environment[VARIABLE].replace(f'"pid":{os.getpid()}', '"pid":1')

    reload = Reload.of_environment(environment)

    assert (reload.was_daemon, reload.take("place")) == (False, None)
    assert connects(tmp_path / "s")


def test_what_another_version_left_unreadably_is_not_in_the_way(tmp_path: Path) -> None:
    environment = left_listener(tmp_path / "s", {})
    environment[VARIABLE] = environment[VARIABLE].replace('"place"', '"address"')

    assert Reload.of_environment(environment).was_daemon
    assert not connects(tmp_path / "s")


def test_the_next_daemon_gets_the_configuration_that_was_checked() -> None:
    checked = os.memfd_create("configuration")
    os.write(checked, b"what was read")

    reload = Reload.of_environment(Reload().environment({}, checked))

    assert reload.checked == b"what was read"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(checked)


def test_a_descriptor_that_leads_elsewhere_gives_no_configuration(tmp_path: Path) -> None:
    checked = os.memfd_create("configuration")
    environment = Reload().environment({}, checked)
    with (tmp_path / "other").open("w") as other:
        os.dup2(other.fileno(), checked)

    reload = Reload.of_environment(environment)

    os.close(checked)
    assert (reload.was_daemon, reload.checked) == (True, b"")
