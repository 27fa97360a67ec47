"""Talks with systemd: tells it how the daemon is doing, and asks whether the host is shutting down.

The first uses the notification protocol of sd_notify(3), one datagram for each message.

Keys this uses are known to systemd 236 and later, but for MONOTONIC_USEC (253), which older ones ignore. Where no
systemd listens, nothing is sent.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.host.children import start_own_with_streams
from supervisor.host.host_tools import tool_variables

BOOTED = Path("/run/systemd/system")  # sd_booted(3): exists if and only if systemd manages this host
SHUTDOWN_QUERY_TIMEOUT_S = 2.0  # systemd answers in milliseconds; without an answer the daemon exits all the same
GOING_DOWN = b"stopping"  # systemctl(1): the host shuts down, so this is not a stop or restart of our unit alone

_OURS = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "JOURNAL_STREAM",
)
"""Variables through which systemd and the daemon talk; a worker must not send messages in its name."""


def environment_for_children(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for children: without the variables through which systemd and the daemon talk."""
    return {key: value for key, value in environment.items() if key not in _OURS}


class SystemdNotifier:
    """Sends notifications to the service manager that `environment` names; does nothing if it names none.

    `watchdog_s`: systemd restarts the daemon if it gets no message for so long; None if the watchdog is off.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog(environment)

    def send_ready(self, status: str) -> None:
        """Reports that the daemon has started or reloaded completely."""
        self._send("READY=1", f"STATUS={status}")

    @property
    def is_connected(self) -> bool:
        """Whether a service manager listens."""
        return self._address is not None

    def send_status(self, text: str) -> None:
        """Sets the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def send_reloading(self, text: str) -> None:
        """Reports that a reload has begun; `send_ready` ends it.

        By the time, Type=notify-reload distinguishes this answer from that to an earlier reload.
        """
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", f"STATUS={text}")

    def send_stopping(self, text: str) -> None:
        """Reports that the daemon has begun to stop."""
        self._send("STOPPING=1", f"STATUS={text}")

    def send_watchdog(self) -> None:
        """Feeds the watchdog: the event loop runs."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Asks systemd to let the start or stop in progress take so much longer from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)  # a service manager that does not read must not delay supervision
            sender.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), self._address)


async def host_is_shutting_down(booted: Path = BOOTED, timeout_s: float = SHUTDOWN_QUERY_TIMEOUT_S) -> bool:
    """Whether systemd is shutting the host down; False where there is no systemd, or no answer in time.

    /run/systemd/shutdown/scheduled does not help: it exists for a scheduled shutdown, but not for `poweroff`.
    """
    if not booted.is_dir():  # noqa: ASYNC240 - /run is memory
        return False
    try:
        systemctl = await start_own_with_streams(
            ("systemctl", "is-system-running"), tool_variables(), stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await systemctl.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            systemctl.kill()
        await systemctl.wait()
        return False
    return output.strip() == GOING_DOWN


def _address(text: str) -> str | None:
    """A path, or the abstract address that systemd writes with an @; None for what we can't send to."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog(environment: Mapping[str, str]) -> float | None:
    period = environment.get("WATCHDOG_USEC", "")
    meant_for = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not (period.isascii() and period.isdecimal() and int(period) > 0) or meant_for != str(os.getpid()):
        return None
    return int(period) / 1e6
