"""What an idle daemon does not load, as that is most of its memory; and that it works, and is there when asked for."""

import http.client
import json
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.control.commands.table import COMMANDS
from tests.control.metrics.test_page import Scrape
from tests.system.both import UnixTransport
from tests.system.harness import Daemon

BINARIES = ("/_ssl.", "/libssl", "/libcrypto", "/_bz2.", "/_lzma.", "/google_crc32c/", "/_greenlet.")
"""How the compiled parts of libraries are called in a process' map."""

METADATA = """
import sys
import supervisor.daemon
left_out = {"_decimal", "_hashlib", "bz2", "email", "google_crc32c", "greenlet", "http.client", "http.server"}
left_out |= {"importlib.metadata", "lzma", "multiprocessing", "prometheus_client", "pynvml", "rich", "ssl"}
left_out |= {"statistics", "supervisor.prove", "urllib.request", "xmlrpc", "zipfile"}
print(sorted(left_out & sys.modules.keys()))

import asyncio
from supervisor.host.notices.metadata import MetadataClient

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello")
    await writer.drain()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print((await MetadataClient(f"http://127.0.0.1:{port}", timeout_s=30).get("/", {})).body)

asyncio.run(main())
import ssl, rich.console, urllib.request
print(urllib.request.HTTPSHandler.__name__)
"""


COLLECTED = """
import gc
usual = gc.get_threshold()
import supervisor.daemon
frozen = gc.get_freeze_count()
gc.unfreeze()
print(gc.isenabled(), gc.get_threshold() == usual, frozen > 10_000, gc.collect() < 100)
"""


ERRORS = "daemon.err"
ASKED = [*sorted(set(COMMANDS) - {"reload", "remove", "shutdown"}), "remove"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n", "notices=file", is_forked=False) as daemon:
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


def ask(daemon: Daemon, method: str, path: str, body: str | None = None) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request(method, path, body)
    status = connection.getresponse().status
    connection.close()
    return status


def mapped(daemon: Daemon) -> set[str]:
    assert daemon.process is not None
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    return {binary for binary in BINARIES if binary in maps}


def test_an_idle_daemon_has_mapped_no_library_that_it_seldom_needs(daemon: Daemon):
    assert mapped(daemon) == set()


@pytest.mark.slow
def test_what_is_asked_of_a_daemon_loads_no_module_that_an_upgrade_may_have_replaced(tmp_path: Path):
    logging = {"PYTHONPROFILEIMPORTTIME": "1"}  # every import is a line of standard error
    programs = "[program:sleeper]\ncommand=/bin/sleep 100000\n[program:job]\ncommand=/bin/true\nautostart=false\n"
    programs += f"checkpoint_dir={tmp_path}/checkpoints\n"
    with Daemon(tmp_path, programs, "", logging, is_forked=False) as daemon:
        daemon.until_state("sleeper", "RUNNING")
        started = (tmp_path / ERRORS).read_text()
        proxy = xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket))
        state = proxy.supervisor.getProcessInfo("sleeper")["statename"]
        scrape = Scrape(daemon)
        paths = ("/", "/page/main.js", "/openapi.json", "/api/v1/tail?name=sleeper", "/nothing")
        statuses = {path: ask(daemon, "GET", path) for path in paths}
        for program in ("sleeper", "job"):
            body = json.dumps({"name": program})
            statuses |= {f"{name} {body}": ask(daemon, "POST", f"/api/v1/{name}", body) for name in ASKED}
        later = (tmp_path / ERRORS).read_text().removeprefix(started)

    modules = {line.rpartition("|")[2].strip() for line in later.splitlines() if line.startswith("import time:")}
    assert {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names} == set()
    assert "google_crc32c" in started, "which checkpoints of jobs need"
    assert {path: status for path, status in statuses.items() if status >= 500} == {}
    assert (statuses["/"], statuses["/openapi.json"], statuses['status {"name": "job"}'], state) == (
        200,
        200,
        200,
        "RUNNING",
    )
    assert scrape.value("stepkeeper_programs", state="RUNNING") == 1


def test_the_daemon_imports_no_tls_and_no_drawing_and_asks_the_cloud_all_the_same():
    found = subprocess.run([sys.executable, "-c", METADATA], capture_output=True, text=True, timeout=100, check=False)

    assert found.stdout.splitlines() == ["[]", "b'hello'", "HTTPSHandler"], found.stderr


def test_the_collector_passes_loaded_modules_over_and_no_garbage_is_kept_with_them():
    found = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=100, check=False)

    assert found.stdout.split() == ["True"] * 4, found.stderr


def test_slim_classes_of_the_daemon_behave_as_pythons_own():
    """In a process with our methods and in one without, word for word."""
    results = {run_python(f"{first}\n{CLASSES}") for first in ("", "import supervisor.host.service.slim_classes")}

    assert len(results) == 1, results
    assert results.pop().count("FrozenInstanceError") == 5


CLASSES = """
from dataclasses import dataclass, field

@dataclass(frozen=True)
class Record:
    value: int = 1

class Extended(Record):
    pass

@dataclass(order=True, slots=True, unsafe_hash=True)
class Pair:
    first: float
    second: str = "two"
    unseen: object = field(default=None, compare=False, repr=False)
    inner: object = field(default=(), hash=False)

@dataclass(repr=False)
class Shorter(Pair):
    third: int = 3

@dataclass(frozen=True)
class Nothing:
    pass

def attempt(act):
    try:
        return act()
    except Exception as error:
        return type(error).__name__ + " " + str(error)

record, extended = Record(), Extended()
print(attempt(lambda: setattr(record, "value", 2)), attempt(lambda: setattr(record, "other", 2)))
print(attempt(lambda: delattr(record, "value")), attempt(lambda: setattr(extended, "value", 2)))
print(attempt(lambda: setattr(extended, "other", 2)), extended.other, attempt(lambda: delattr(extended, "other")))
print(attempt(lambda: delattr(extended, "value")), record, record == Record(), record == extended, vars(extended))
print(record == 1, record != Record(2), hash(record) == hash(Record()), {record, Record()}, extended)
nan = float("nan")
print(Record(nan) == Record(nan), Record(nan) == Record(float("nan")), Nothing() == Nothing(), Nothing(), {Nothing()})
pair = Pair(1.5)
pair.inner = [pair]
print(pair, Shorter(1.0, inner=5), repr(pair), Pair.__repr__.__qualname__, Pair.__eq__.__name__)
print(Pair(1) == Pair(1, unseen=4), Pair(1) == Pair(1, inner=4), Pair(1) == Shorter(1))
print(Pair(1) < Pair(2), Pair(1) < Pair(1, "z"))
print(hash(Pair(1, inner=[])) == hash(Pair(1, inner={})), attempt(lambda: hash(Pair([]))))
print(attempt(lambda: hash(Shorter(1))))
print(attempt(lambda: Pair(1) < 1), attempt(lambda: repr(object.__new__(Pair))))
"""


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True).stdout
