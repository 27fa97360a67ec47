"""The package is replaced beneath the daemon, as by an upgrade before the restart: the daemon answers as before, and is
not replaced by one that would not start."""

import http.client
import os
import shutil
import socket
import xmlrpc.client
from pathlib import Path

import pytest

from supervisor import __version__
from supervisor.host.ledger.schema import SCHEMA
from supervisor.static import PAGE
from tests.places import ROOT
from tests.system.harness import Daemon, Refused, job

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


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a copy of the packages."""
    site = tmp_path / "site"
    for package in ("supervisor", "worker"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    package = site / "supervisor" / "__init__.py"
    package.write_text(package.read_text().replace(__version__, "9.9.9"))
    return site


def start_from(site: Path) -> Daemon:
    """A daemon with a job, of the packages in `site`."""
    folder = site.parent / "run"
    folder.mkdir()
    environment = {"PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Daemon(folder, job("count", folder, STEPS=100_000), environment=environment, is_forked=False)


@pytest.mark.slow
def test_everything_is_served_although_the_package_is_gone(site: Path):
    with start_from(site) as daemon:
        daemon.until_step("count", 5)
        site.rename(site.with_name("gone"))  # at once: a helper may still be writing what it has compiled

        assert daemon.call("version")["version"] == "9.9.9"  # it was that package
        paths = ["/", "/metrics", "/openapi.json"]
        paths += [f"/page/{file.name}" for file in PAGE.iterdir() if file.name != "index.html"]
        served = {path: get(daemon, path)[0] for path in paths}
        assert {path: status for path, status in served.items() if status != 200} == {}
        for command, arguments in LOOKS.items():
            daemon.call(command, **arguments)
        request = xmlrpc.client.dumps((), "supervisor.getAllProcessInfo").encode()
        assert get(daemon, "/RPC2", "POST", request)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "why"),
    [
        ("supervisor/assembly.py", "raise ImportError('half of an upgrade')", "half of an upgrade"),
        ("supervisor/host/ledger/schema.py", f"SCHEMA = {SCHEMA - 1}", "a newer stepkeeper wrote it"),
    ],
)
def test_a_reload_into_a_package_that_does_not_start_is_refused(site: Path, file: str, line: str, why: str):
    with start_from(site) as daemon:
        before = daemon.until_step("count", 5)
        with (site / file).open("a") as code:
            code.write(f"\n{line}\n")

        with pytest.raises(Refused, match=f"cannot reload: the next daemon would not start: .*{why}"):
            daemon.call("reload")

        after = daemon.until_step("count", before["job"]["step"] + 5)
        assert (after["pid"], after["job"]["attempt"]) == (before["pid"], 1)
        assert daemon.events("daemon.leaving") == []
