"""Asks a tool of the host, such as systemctl: its answer, limited in time, length and, where that matters, memory.

What it may find in its environment is `children`'s rule for all that may run as root.
"""

import contextlib
import os
import resource
import select
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.host.children import ALLOWED, start_own

MAX_TOOL_BYTES = 4 << 20  # of each of its outputs; the nodes of the largest allocation are a hundredth


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool said. `status`: its exit status, negative if a signal ended it, as when it says too much."""

    status: int
    stdout: bytes
    stderr: bytes


def ask_tool(argv: tuple[str, ...], timeout_s: float, memory_bytes: int | None = None) -> ToolAnswer:
    """Runs a tool to its end; blocks. Raises OSError, subprocess.TimeoutExpired.

    `memory_bytes`: that it may take, for one that looks into a process of a job's user, who decides what it sees there.
    """
    ends_at = time.monotonic() + timeout_s
    with start_own(argv, tool_variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            if memory_bytes is not None:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
            assert process.stdout is not None and process.stderr is not None
            stdout, stderr = _read_both(process.stdout.fileno(), process.stderr.fileno(), ends_at)
            if max(len(stdout), len(stderr)) <= MAX_TOOL_BYTES:
                process.wait(max(0.0, ends_at - time.monotonic()))
        except TimeoutError:
            raise subprocess.TimeoutExpired(argv, timeout_s) from None
        finally:
            process.kill()
    return ToolAnswer(process.returncode, stdout, stderr)


def _read_both(stdout: int, stderr: int, ends_at: float) -> tuple[bytes, bytes]:
    """What comes out of two pipes until both are closed, or one of them has given too much. Raises TimeoutError."""
    parts = {stdout: bytearray(), stderr: bytearray()}
    poll = select.poll()
    for descriptor in parts:
        poll.register(descriptor, select.POLLIN)
    is_open = set(parts)
    while is_open and max(map(len, parts.values())) <= MAX_TOOL_BYTES:
        ready = poll.poll(max(0.0, ends_at - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutError
        for descriptor, _ in ready:
            piece = os.read(descriptor, 1 << 16)
            parts[descriptor] += piece
            if not piece:
                poll.unregister(descriptor)
                is_open.remove(descriptor)
    return bytes(parts[stdout]), bytes(parts[stderr])


def tool_variables() -> Mapping[str, str]:
    """The environment of a tool: the daemon's own, as root only what is allowed of it."""
    if os.geteuid() != 0:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name in ALLOWED}
