"""The notification protocol against a socket that listens as systemd does."""

import os
import socket
import time
from pathlib import Path

import pytest

from supervisor.host.service.systemd import SystemdNotifier, environment_for_children


@pytest.fixture
def manager(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        yield listener


def test_messages_are_single_datagrams_of_assignments(manager: socket.socket):
    systemd = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})

    systemd.send_ready("3 programs")
    systemd.extend_timeout(10)
    systemd.send_status("zwei\nZeilen äöü")

    assert manager.recv(4096) == b"READY=1\nSTATUS=3 programs"
    assert manager.recv(4096) == b"EXTEND_TIMEOUT_USEC=10000000"
    assert manager.recv(4096).decode() == "STATUS=zwei Zeilen äöü"


def test_reloading_says_since_when(manager: socket.socket):
    systemd = SystemdNotifier({"NOTIFY_SOCKET": manager.getsockname()})
    before = time.monotonic_ns() // 1000

    systemd.send_reloading("reading")
    after = time.monotonic_ns() // 1000

    told = dict(line.split("=", 1) for line in manager.recv(4096).decode().splitlines())
    assert (told["RELOADING"], told["STATUS"]) == ("1", "reading")
    assert before <= int(told["MONOTONIC_USEC"]) <= after


def test_abstract_sockets_are_spoken_to():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"stepkeeper-test-{os.getpid()}"
        listener.bind("\0" + name)
        listener.settimeout(5)

        SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"}).send_watchdog()

        assert listener.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "vsock:2:1", "relative"])
def test_absent_service_managers_are_no_error(address: str):
    SystemdNotifier({"NOTIFY_SOCKET": address}).send_ready("")


@pytest.mark.parametrize(
    ("environment", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_is_fed_only_where_it_watches_this_process(environment: dict[str, str], watchdog_s: float | None):
    assert SystemdNotifier(environment).watchdog_s == watchdog_s


def test_children_do_not_get_what_is_between_systemd_and_the_daemon():
    between = {"NOTIFY_SOCKET": "/x", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "JOURNAL_STREAM": "8:1"}

    assert environment_for_children({**between, "PATH": "/bin"}) == {"PATH": "/bin"}
