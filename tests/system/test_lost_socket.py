"""The file of the control socket is deleted or replaced: it comes back, and nobody who is connected notices."""

import http.client
import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.system.harness import Daemon

SLEEPER = "[program:x]\ncommand=/bin/sleep 100000\n"


class Connected:
    """A client with one connection that it keeps."""

    def __init__(self, path: Path) -> None:
        self._connection = http.client.HTTPConnection("localhost", timeout=60)
        self._connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.sock.connect(str(path))

    def pid(self) -> int:
        self._connection.request("POST", "/api/v1/pid", "{}")
        return int(json.loads(self._connection.getresponse().read())["result"]["pid"])

    def close(self) -> None:
        self._connection.close()


def answers(daemon: Daemon) -> bool:
    try:
        return bool(daemon.call("pid"))
    except OSError:
        return False


def test_deleted_socket_comes_back_without_disturbing_who_is_connected(tmp_path: Path):
    with Daemon(tmp_path, SLEEPER) as daemon:
        daemon.until_state("x", "RUNNING")  # the logger, which has pipes to the daemon, is there too by then
        client, open_files = Connected(daemon.socket), daemon.descriptors()
        pid = client.pid()
        mode = daemon.socket.stat().st_mode
        for _ in range(3):
            daemon.socket.unlink()

            daemon.until(lambda: answers(daemon), "new clients get in")

            assert client.pid() == pid
            assert daemon.socket.stat().st_mode == mode
        daemon.until(lambda: daemon.descriptors() <= open_files + 2, "no descriptor is left over")
        assert daemon.events("control.socket_made_again") == ["control.socket_made_again"] * 3
        client.close()
    assert not daemon.socket.exists(), "it is removed at the end, as ever"


@pytest.mark.parametrize("how", ["renamed", "replaced"])
def test_socket_that_is_moved_away_comes_back(tmp_path: Path, how: str):
    with Daemon(tmp_path, SLEEPER) as daemon:
        if how == "replaced":
            (tmp_path / "other").touch()
            (tmp_path / "other").rename(daemon.socket)
        else:
            daemon.socket.rename(tmp_path / "elsewhere")

        daemon.until(lambda: answers(daemon), "new clients get in")


@pytest.mark.slow
def test_socket_comes_back_with_its_folder(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    daemon = Daemon(tmp_path, SLEEPER)
    daemon.socket = folder / "s.sock"
    daemon.write(SLEEPER)
    with daemon:
        shutil.rmtree(folder)
        daemon.until(lambda: daemon.events("control.socket_lost"), "the log says that it is lost")

        folder.mkdir()

        daemon.until(lambda: answers(daemon), "new clients get in")
        assert daemon.events("control.socket_lost") == ["control.socket_lost"]
