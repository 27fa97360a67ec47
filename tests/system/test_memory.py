"""What an idle daemon does not load, as that is most of its memory; and that it works, and is there when asked for."""

import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.metrics.test_page import Scrape
from tests.system.both import UnixTransport
from tests.system.harness import Daemon

BINARIES = ("/_ssl.", "/libssl", "/pyexpat.", "/google_crc32c/", "/_pydantic_core.")
"""How the compiled parts of libraries are called in a process' map."""

METADATA = """
import sys
import supervisor.daemon
left_out = {"defusedxml", "email", "google_crc32c", "http.client", "prometheus_client"}
left_out |= {"pynvml", "rich", "ssl", "zipfile"}
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


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, "[program:sleeper]\ncommand=/bin/sleep 100000\n", "notices=file", is_forked=False) as daemon:
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


def mapped(daemon: Daemon) -> set[str]:
    assert daemon.process is not None
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    return {each for each in BINARIES if each in maps}


def test_a_library_is_loaded_with_its_first_use(daemon: Daemon):
    idle = mapped(daemon)
    proxy = xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(daemon.socket))
    state = proxy.supervisor.getProcessInfo("sleeper")["statename"]
    after_a_call = mapped(daemon)
    scrape = Scrape(daemon)

    assert idle == set()
    assert (state, after_a_call) == ("RUNNING", {"/pyexpat."})
    assert scrape.status == 200
    assert scrape.value("stepkeeper_programs", state="RUNNING") == 1


def test_the_daemon_imports_no_tls_and_no_drawing_and_asks_the_cloud_all_the_same():
    found = subprocess.run([sys.executable, "-c", METADATA], capture_output=True, text=True, timeout=100, check=False)

    assert found.stdout.splitlines() == ["[]", "b'hello'", "HTTPSHandler"], found.stderr


def test_the_collector_passes_loaded_modules_over_and_no_garbage_is_kept_with_them():
    found = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, timeout=100, check=False)

    assert found.stdout.split() == ["True"] * 4, found.stderr
