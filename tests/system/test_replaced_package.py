"""The package is replaced beneath the daemon, as by an upgrade before the restart: the daemon answers as before."""

import http.client
import os
import shutil
import socket
import xmlrpc.client
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.static import PAGE
from tests.places import ROOT
from tests.system.harness import Daemon, job

pytestmark = pytest.mark.integration

LOOKS = {
    "status": {}, "top": {}, "notices": {}, "gpus": {}, "history": {"name": "count"}, "goodput": {"name": "count"},
    "timeline": {"name": "count"}, "series": {"name": "count"}, "checkpoints": {"name": "count"}, "reread": {},
    "avail": {}, "pid": {},
}  # fmt: skip


def get(daemon: Daemon, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.connect(str(daemon.socket))
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.slow
def test_everything_is_served_although_the_package_is_gone(tmp_path: Path):
    site = tmp_path / "site"
    for package in ("supervisor", "worker"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    package = site / "supervisor" / "__init__.py"
    package.write_text(package.read_text().replace(__version__, "9.9.9"))
    folder = tmp_path / "run"
    folder.mkdir()
    environment = {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}", "PYTHONDONTWRITEBYTECODE": "1"}
    with Daemon(folder, job("count", folder, STEPS=100_000), environment=environment, is_forked=False) as daemon:
        daemon.until_step("count", 5)
        site.rename(tmp_path / "gone")  # at once: a helper may still be writing what it has compiled

        assert daemon.call("version")["version"] == "9.9.9"  # it was that package
        paths = ["/", "/metrics", "/openapi.json"]
        paths += [f"/page/{file.name}" for file in PAGE.iterdir() if file.name != "index.html"]
        served = {path: get(daemon, path)[0] for path in paths}
        assert {path: status for path, status in served.items() if status != 200} == {}
        for command, arguments in LOOKS.items():
            daemon.call(command, **arguments)
        request = xmlrpc.client.dumps((), "supervisor.getAllProcessInfo").encode()
        assert get(daemon, "/RPC2", "POST", request)[0] == 200
