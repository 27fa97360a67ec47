"""A host with GPUs of NVIDIA's, without any: a stand-in for its library in C, and a kernel's log that a test writes.

The real nvidia-ml-py calls the stand-in. Where that is not installed, $NVML_PACKAGES may name a folder that has it.
"""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.gpu_guard.client import GpuHelper
from supervisor.host.hooks import HookRunner
from supervisor.runner.fleet.gpu_jobs import JobsOnGpus
from supervisor.runner.gpus.guard import GpuGuard
from supervisor.runner.listeners.hub import ListenerHub
from tests import forked
from tests.places import CHILDREN
from tests.system.harness import Daemon

CODE = CHILDREN / "gpus"
UUIDS = tuple(f"GPU-{letter * 8}-0000-4000-8000-{letter * 12}" for letter in "abcd")
IN_ORDER = "recovery=0 failed=0 pending=0 ecc_c=0 ecc_u=0 slow=4"
ADDRESSES = tuple(f"00000000:{bus:02X}:00.0" for bus in (0x1A, 0x1B, 0xC5, 0xC6))


@cache
def packages() -> str:
    """The folder of nvidia-ml-py; skips the test where there is none."""
    spec = importlib.util.find_spec("pynvml")
    folder = str(Path(spec.origin).parent) if spec is not None and spec.origin else os.environ.get("NVML_PACKAGES", "")
    if not (Path(folder) / "pynvml.py").exists() or not folder:
        pytest.skip("nvidia-ml-py is not installed")
    return folder


@cache
def library() -> bytes:
    """The stand-in, built."""
    built = Path(f"/tmp/stand-in-nvml-{os.getpid()}.so")
    name = "-Wl,-soname,libnvidia-ml.so.1"
    try:
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", name, "-o", built, CODE / "nvml.c"], check=True)
        return built.read_bytes()
    finally:
        built.unlink(missing_ok=True)


class GpuHost:
    """GPUs as `are` says, and what the kernel's log says of them (`log`)."""

    def __init__(self, folder: Path, count: int = 2, *, has_nvml: bool = True, has_log: bool = True) -> None:
        self.folder = folder / "gpu-host"
        self.folder.mkdir()
        self.has_nvml = has_nvml
        self.count = count
        (self.folder / "libnvidia-ml.so.1").write_bytes(library())
        self._records: list[bytes] = []
        self._number = 0
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._clients: list[socket.socket] = []
        if has_log:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._listener.bind(str(self.folder / "kmsg"))
            self._listener.listen()
            threading.Thread(target=self._accept, daemon=True).start()
        self.are()

    def __enter__(self) -> "GpuHost":
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for client in self._clients:
            client.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._changed:
                    for record in self._records:
                        client.send(record)
                    self._clients.append(client)

    def log(self, text: str) -> None:
        """The kernel writes a line."""
        with self._changed:
            self._number += 1
            record = f"3,{self._number},{time.monotonic_ns() // 1000},-;{text}\n".encode()
            self._records.append(record)
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.send(record)

    def xid(self, number: int, gpu: int = 1, pid: int | None = None, more: str = "") -> None:
        """The driver reports an error of a GPU."""
        address = ADDRESSES[gpu][4:-2].lower()
        who = f"pid={pid}, name=python, " if pid is not None else ""
        self.log(f"NVRM: Xid (PCI:{address}): {number}, {who}{more or 'Ch 00000008'}")

    def are(self, *keys: str, init: int = 0, hangs: str = "", count: int | None = None) -> None:
        """What NVML says: `keys` of each GPU, in order (see nvml.c); the others are in order."""
        lines = [f"init {init}", *([f"hang {hangs}"] if hangs else [])]
        for number in range(self.count if count is None else count):
            own = (keys[number] if number < len(keys) else "") or IN_ORDER
            lines.append(f"gpu {UUIDS[number]} {ADDRESSES[number]} {own}")
        new = self.folder / "state.new"
        new.write_text("\n".join(lines) + "\n")
        new.rename(self.folder / "state")

    @property
    def command(self) -> tuple[str, ...]:
        """What starts the helper, without its settings."""
        has = packages() if self.has_nvml else ""
        return (sys.executable, str(CODE / "helper.py"), str(self.folder), has)

    def helper(self, poll_s: float = 15.0, within_s: float = 10.0) -> GpuHelper:
        """The helper of this host."""
        return GpuHelper(self.command, self.folder, poll_s, within_s)


def no_gpus() -> GpuGuard:
    """The guard of a host without NVIDIA's driver."""
    nowhere = Path("/nonexistent")
    helper = GpuHelper(driver=nowhere / "nvidiactl")
    return GpuGuard(helper, nowhere, JobsOnGpus({}, {}, {}), HookRunner(), ListenerHub(), acts=True)


class GpuDaemon(Daemon):
    """A daemon on a `GpuHost`."""

    def __init__(
        self,
        host: GpuHost,
        folder: Path,
        programs: str,
        settings: str = "",
        *,
        poll_s: float = 1.0,
        within_s: float = 10.0,
        **more: Any,
    ) -> None:
        super().__init__(folder, programs, settings, **more)
        helper = host.helper(poll_s, within_s)
        self._host = json.dumps(
            {"command": helper.command, "driver": str(helper.driver), "poll_s": poll_s, "within_s": within_s}
        )

    def launch(self) -> None:
        command = [sys.executable, str(CODE / "daemon.py"), self._host, "-n", "-c", str(self.conf)]
        with (self.folder / "daemon.err").open("ab") as errors:
            options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "stdout": errors, "stderr": errors}
            self.process = forked.ForkedProcess(command, forked.DAEMON, **options)
