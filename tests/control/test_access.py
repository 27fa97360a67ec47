"""Who may do what, told by the kernel: with a real daemon and a process of another user."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.harness import Daemon, alive

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


def ask_as(uid: int, daemon: Daemon, command: str, headers: dict[str, str] | None = None) -> dict[str, object]:
    script = ASK.format(uid=uid, path=str(daemon.socket), headers=headers or {})
    body = json.dumps({"name": "sleeper"})
    asked = subprocess.run([sys.executable, "-c", script, command, body], capture_output=True, text=True, check=True)
    return dict(json.loads(asked.stdout))


@pytest.fixture
def daemon(tmp_path: Path):
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100\n") as daemon:
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
def test_socket_is_closed_to_others_by_default(daemon: Daemon):
    assert daemon.socket.stat().st_mode & 0o777 == 0o700

    with pytest.raises(subprocess.CalledProcessError):
        ask_as(NOBODY, daemon, "status")


def test_requests_of_web_pages_are_refused(daemon: Daemon):
    refused = ask_as(os.geteuid(), daemon, "stop", {"Origin": "https://example.org"})

    assert refused["error"]["code"] == "FORBIDDEN"  # type: ignore[index]
    assert daemon.status("sleeper")["state"] == "RUNNING"
