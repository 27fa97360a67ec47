"""The D-Bus calls for logind: a lock, two properties, one signal; and how long systemd lets this daemon stop.

Imports the optional dbus-fast.
"""

import asyncio
import math
import os
from typing import Any

from dbus_fast import BusType, DBusError, Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.errors import AuthError, InvalidAddressError

SERVICE = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
INTERFACE = "org.freedesktop.login1.Manager"
SIGNAL = "PrepareForShutdown"
MATCH = f"type='signal',sender='{SERVICE}',path='{PATH}',interface='{INTERFACE}',member='{SIGNAL}'"
SYSTEMD, SYSTEMD_PATH = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
INFINITY_USEC = (1 << 64) - 1  # USEC_INFINITY
CALL_TIMEOUT_S = 10.0  # a busy host at boot; the bus itself gives up after 25 s


class BusError(Exception):
    """The bus or logind does not answer; the text says why."""


class BusCallRefused(BusError):
    """The service answered with an error."""


class LogindBus:
    """A connection to the bus, within `async with`. Every method raises BusError once the bus is lost."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._changed = asyncio.Event()
        self._lock: int | None = None

    async def __aenter__(self) -> "LogindBus":
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                self._bus = await MessageBus(
                    bus_address=self._address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True
                ).connect()
        except (OSError, EOFError, AuthError, InvalidAddressError, DBusError) as error:
            raise BusError(f"the system bus does not answer ({str(error) or type(error).__name__})") from error
        self._bus.add_message_handler(self._on_message)
        self._disconnected = asyncio.ensure_future(self._bus.wait_for_disconnect())  # type: ignore[no-untyped-call]
        self._disconnected.add_done_callback(self._on_disconnect)
        try:
            await self._call(
                "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", "s", MATCH
            )
        except BaseException:
            self._bus.disconnect()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release_lock()
        self._bus.disconnect()

    async def take_lock(self) -> str | None:
        """Takes the lock that delays shutdown, if not held; returns logind's reason if it refuses."""
        if self._lock is not None:
            return None
        words = ("shutdown", "stepkeeper", "writing checkpoints", "delay")
        try:
            reply = await self._call(SERVICE, PATH, INTERFACE, "Inhibit", "ssss", *words)
        except BusCallRefused as error:
            return str(error)
        if not reply.unix_fds:
            return "logind returned no lock"
        self._lock = reply.unix_fds[0]
        os.set_inheritable(self._lock, False)  # a worker that held it would delay every shutdown
        return None

    def release_lock(self) -> None:
        """Releases the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    async def lock_delay_s(self) -> float:
        """InhibitDelayMaxSec= in force: how long logind waits for locks (s)."""
        return float(await self._property("InhibitDelayMaxUSec")) / 1e6

    async def stop_timeout_s(self) -> float:
        """TimeoutStopSec= in force: how long systemd lets this process stop before it kills it (s).

        inf: it never kills it; 0: this process is not a service. The daemon may ask for more while it stops.
        """
        try:
            unit = await self._call(SYSTEMD, SYSTEMD_PATH, f"{SYSTEMD}.Manager", "GetUnitByPID", "u", os.getpid())
            service = f"{SYSTEMD}.Service"
            if await self._property("MainPID", service, SYSTEMD, unit.body[0]) != os.getpid():
                return 0.0
            limit = await self._property("TimeoutStopUSec", service, SYSTEMD, unit.body[0])
        except BusCallRefused:  # no systemd, or a session that ends with its user
            return 0.0
        return math.inf if limit == INFINITY_USEC else float(limit) / 1e6

    async def is_shutting_down(self) -> bool:
        """Whether a shutdown has begun."""
        return bool(await self._property("PreparingForShutdown"))

    async def wait_for_change(self) -> bool:
        """Waits for logind's next signal: True if a shutdown begins, False if it was cancelled.

        Anybody on the bus can send such a signal, so logind is asked for the state.
        """
        await self._changed.wait()
        if self._disconnected.done():
            raise BusError("the connection to the bus was lost")
        self._changed.clear()
        return await self.is_shutting_down()

    async def _property(self, name: str, interface: str = INTERFACE, service: str = SERVICE, path: str = PATH) -> Any:
        reply = await self._call(service, path, "org.freedesktop.DBus.Properties", "Get", "ss", interface, name)
        return reply.body[0].value

    async def _call(
        self, service: str, path: str, interface: str, member: str, signature: str, *body: object
    ) -> Message:
        message = Message(
            destination=service, path=path, interface=interface, member=member, signature=signature, body=list(body)
        )
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await self._bus.call(message)
        except (OSError, EOFError, DBusError) as error:
            raise BusError(f"{member} got no answer ({str(error) or type(error).__name__})") from error
        if reply is None or reply.message_type is MessageType.ERROR:
            reason = reply.body[0] if reply is not None and reply.body else "no reason"
            raise BusCallRefused(f"{member} was refused ({reason!s:.200})")
        return reply

    def _on_message(self, message: Message) -> None:
        is_ours = message.message_type is MessageType.SIGNAL and message.path == PATH and message.member == SIGNAL
        if is_ours and message.interface == INTERFACE:
            self._changed.set()

    def _on_disconnect(self, ending: "asyncio.Future[None]") -> None:
        if not ending.cancelled():
            ending.exception()  # retrieved, so that asyncio does not warn
        self._changed.set()
