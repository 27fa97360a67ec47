"""Emulators of object stores as child processes on loopback: moto's server for S3, Azurite for Azure.

What a client needs to reach one is in the environment, as on a real host: the address and the credentials, in the
variables that the providers' own tools read. Neither emulator keeps anything on disk.
"""

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path

from tests.places import ROOT
from tests.waiting import wait_until

AZURITE = "azurite-blob"
AZURE_ACCOUNT = "devstoreaccount1"
# Azurite's documented account, the same in every installation
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_REQUEST_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """An empty bucket or container. `url`: what a user writes as `mirror`; `endpoint`: `http://127.0.0.1:port`.

    `environment`: address and credentials, to be added to that of a client. `log`: what the emulator printed.
    """

    url: str
    endpoint: str
    environment: Mapping[str, str] = field(repr=False)
    log: Path

    def behind(self, endpoint: str) -> "ObjectStore":
        """The same store, reached through another address: that of a proxy."""
        environment = {name: value.replace(self.endpoint, endpoint) for name, value in self.environment.items()}
        return replace(self, endpoint=endpoint, environment=environment)


def why_no_azurite() -> str | None:
    """The reason why Azurite can't be started here; None if it can."""
    if find_azurite() is None:
        return f"needs {AZURITE} on PATH or in .venv/azurite: make azurite"
    return None


def find_azurite() -> str | None:
    """Azurite's program: from PATH, or where `make azurite` puts it."""
    installed = ROOT / ".venv" / "azurite" / "node_modules" / ".bin"
    return shutil.which(AZURITE) or shutil.which(AZURITE, path=str(installed))


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Runs moto's server; its endpoint. `folder`: for its log."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with _server(command, r"Running on (http://127\.0\.0\.1:\d+)", folder / "s3.log") as endpoint:
        yield endpoint


@contextmanager
def azure_server(folder: Path) -> Iterator[str]:
    """Runs Azurite; its endpoint. `folder`: for its log."""
    program = find_azurite()
    assert program is not None, why_no_azurite()
    command = [program, "--blobPort", "0", "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    command += ["--skipApiVersionCheck"]  # a client may be newer than the emulator
    with _server(command, r"listens on (http://127\.0\.0\.1:\d+)", folder / "azure.log") as endpoint:
        yield endpoint


@contextmanager
def _server(command: list[str], announcement: str, log: Path) -> Iterator[str]:
    """Runs a server that chooses its port and prints it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=_environment_of_servers(),
        )

    def endpoint() -> str | None:
        found = re.search(announcement, log.read_text(errors="replace"))
        if found is None and process.poll() is not None:
            raise AssertionError(f"{command[0]} ended with {process.returncode}:\n{log.read_text(errors='replace')}")
        return found.group(1) if found is not None else None

    try:
        yield str(wait_until(endpoint, f"{command[0]} listens", details=lambda: log.read_text(errors="replace")))
    finally:
        process.kill()  # it keeps nothing
        process.wait()


def _environment_of_servers() -> dict[str, str]:
    """Without what would lead an emulator, or a library in it, to a real provider."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZURE_", "MOTO_"))}


def new_bucket(endpoint: str, log: Path) -> ObjectStore:
    """A new S3 bucket; moto takes every key."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    _put(f"{endpoint}/{name}", {})
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    return ObjectStore(f"s3://{name}", endpoint, environment, log)


def new_container(endpoint: str, log: Path) -> ObjectStore:
    """A new Azure container; Azurite checks every signature."""
    name = f"container-{uuid.uuid4().hex[:12]}"
    path = f"/{AZURE_ACCOUNT}/{name}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    # Azure's Shared Key: the verb, twelve standard headers (none is set), Azure's own headers, the resource
    signed = "PUT" + "\n" * 12 + "".join(f"{key}:{value}\n" for key, value in headers.items())
    signed += f"/{AZURE_ACCOUNT}{path}\nrestype:container"
    signature = hmac.digest(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256)
    authorization = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(signature).decode()}"
    _put(f"{endpoint}{path}?restype=container", {**headers, "Authorization": authorization})
    environment = {
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{AZURE_ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
    }
    return ObjectStore(f"az://{name}", endpoint, environment, log)


def _put(url: str, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(url, method="PUT", headers=dict(headers))
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_REQUEST_TIMEOUT_S):
        pass
