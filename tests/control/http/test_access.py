"""Who may do what, told by the kernel: with a real daemon and a process of another user."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reading import alive
from tests.system.harness import Daemon

pytestmark = pytest.mark.integration

NOBODY = 65534
ASK = """
import http.client, json, os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect({path!r})
connection.request("POST", "/api/v1/" + sys.argv[1], sys.argv[2], {headers!r})
print(connection.getresponse().read().decode())
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


def ask_as(
    uid: int,
    daemon: Daemon,
    command: str,
    headers: dict[str, str] | None = None,
    /,
    body: str | None = None,
    **arguments: object,
) -> dict[str, Any]:
    script = ASK.format(uid=uid, path=str(daemon.socket), headers=headers or {})
    given = json.dumps(arguments or {"name": "sleeper"}) if body is None else body
    asked = subprocess.run([sys.executable, "-c", script, command, given], capture_output=True, text=True, check=True)
    return dict(json.loads(asked.stdout))


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that others may enter. Not in pytest's, which every run of pytest by this user closes to others again."""
    with tempfile.TemporaryDirectory(prefix="sk", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def daemon(folder: Path):
    with Daemon(folder, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


@needs_root
def test_another_user_whom_the_mode_lets_in_may_look_but_not_change(daemon: Daemon):
    daemon.socket.chmod(0o777)
    pid = daemon.status("sleeper")["pid"]

    looked = ask_as(NOBODY, daemon, "status")
    refused = ask_as(NOBODY, daemon, "stop")

    assert "result" in looked
    assert refused["error"]["code"] == "FORBIDDEN"  # type: ignore[index]
    assert alive(pid)


@needs_root
def test_read_permission_covers_metrics_and_the_api_description(daemon: Daemon):
    daemon.socket.chmod(0o777)

    for path, content in (("/metrics", "stepkeeper_build_info{"), ("/openapi.json", '"openapi": "3.1.0"')):
        script = ASK.format(uid=NOBODY, path=str(daemon.socket), headers={}).replace('"POST", "/api/v1/" +', '"GET",')
        asked = subprocess.run([sys.executable, "-c", script, path, ""], capture_output=True, text=True, check=True)
        assert content in asked.stdout


@needs_root
def test_socket_is_closed_to_others_by_default(daemon: Daemon):
    assert daemon.socket.stat().st_mode & 0o777 == 0o700

    with pytest.raises(subprocess.CalledProcessError):
        ask_as(NOBODY, daemon, "status")


OTHERS = [
    {"Origin": "https://example.org"},
    {"Origin": "null"},
    {"Origin": "http://"},
    {"Origin": "http://localhost.example.org"},
    {"Origin": "http://localhost:81"},
    {"Origin": "file://localhost"},
    {"Origin": "http://example.org", "Host": "localhost"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
]


@pytest.mark.parametrize("headers", OTHERS, ids=str)
def test_requests_of_other_sites_pages_are_refused(daemon: Daemon, headers: dict[str, str]):
    refused = ask_as(os.geteuid(), daemon, "stop", {"Host": "localhost", **headers})

    assert refused["error"]["code"] == "FORBIDDEN"  # type: ignore[index]
    assert daemon.status("sleeper")["state"] == "RUNNING"


def test_requests_of_our_own_page_are_answered(daemon: Daemon):
    own = {"Host": "localhost:9001", "Origin": "http://localhost:9001", "Sec-Fetch-Site": "same-origin"}

    assert "result" in ask_as(os.geteuid(), daemon, "pid", own)


HOARD = """
import os, socket, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
held = []
for _ in range(420):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect({path!r})
    held[-1].sendall(b"POST /api")
print(flush=True)
sys.stdin.read()
"""


@needs_root
def test_half_requests_of_another_user_leave_room_for_root(folder: Path) -> None:
    with Daemon(folder, "[program:sleeper]\ncommand=/bin/sleep 100000\n") as daemon:
        daemon.socket.chmod(0o777)
        script = HOARD.format(uid=NOBODY, path=str(daemon.socket))
        hoarder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert hoarder.stdout is not None and hoarder.stdout.readline()
            programs = daemon.call("status")["programs"]
        finally:
            hoarder.kill()
            hoarder.communicate()

    assert [program["name"] for program in programs] == ["sleeper"]
