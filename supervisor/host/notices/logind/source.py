"""Somebody powers off or reboots this host: systemd-logind announces it before services stop, and waits a moment.

A delay lock makes it wait (https://systemd.io/INHIBITOR_LOCKS/): until the lock is released, or InhibitDelayMaxSec.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from supervisor.core.notices.notice import NO_NOTICES, Certainty, ClockReading, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.polling import RETRY_CAP_S, retry_s
from supervisor.host.notices.source import NoticeSink, read_clocks
from supervisor.protocol.installation import install_extra

if TYPE_CHECKING:
    from supervisor.host.notices.logind.bus import LogindBus

SEATS = Path("/run/systemd/seats")  # logind creates it when it starts
SYSTEM_BUS = Path("/run/dbus/system_bus_socket")
DEFAULT_DELAY_S = 5.0  # InhibitDelayMaxSec=, unless configured
LONGEST_STOP_S = 1800.0  # JobTimeoutSec= of poweroff.target and reboot.target
NOTICE_ID = "shutdown"
DROP_IT = "remove logind from notices"

log = structlog.get_logger()


class LogindSource:
    """systemd's login manager. After its delay systemd stops this daemon, and waits for that too.

    Holds a lock that delays shutdown until `acknowledge`, or until logind's own limit. `address`: of the bus, None for
    the system bus; differs only in tests.
    """

    name = "logind"

    def __init__(
        self,
        *,
        address: str | None = None,
        retry_cap_s: float = RETRY_CAP_S,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._stop_s = 0.0
        self._address = address
        self._retry_cap_s = retry_cap_s
        self._clock = clock
        self._delay_s = DEFAULT_DELAY_S
        self._bus: LogindBus | None = None
        self._shutdown: RawNotice | None = None
        self._failures = 0  # in a row

    @property
    def shortest_s(self) -> float | None:
        """logind's delay plus the time that services have to stop; None where the latter is not known.

        The delay alone says nothing: the host also waits for services to stop.
        """
        return self._delay_s + self._stop_s if self._stop_s > 0 else None

    async def watch(self, sink: NoticeSink) -> None:
        """Reports to `sink` until cancelled."""
        try:
            from supervisor.host.notices.logind.bus import BusError, LogindBus
        except ImportError as error:
            sink.on_source_health(
                self.name, f"cannot listen to logind: {error}; install it with: {install_extra('logind')}, or {DROP_IT}"
            )
            await asyncio.Event().wait()  # it can't be imported in this process any more
            return
        while True:
            try:
                async with LogindBus(self._address) as self._bus:
                    await self._listen(self._bus, sink)
            except BusError as error:
                self._bus = None
                self._failures += 1
                sink.on_source_health(
                    self.name, f"cannot listen to logind: {error}; start systemd-logind, or {DROP_IT}"
                )
            except Exception as error:  # a bug must stop neither this source nor the others of this host
                self._failures += 1
                log.exception("notices.failed", source=self.name)
                sink.on_source_health(
                    self.name, f"cannot listen to logind: internal error {error!r:.200}; please report it"
                )
            await asyncio.sleep(retry_s(1.0, self._failures, self._retry_cap_s))

    async def acknowledge(self, id: str) -> None:
        """Releases the lock: the shutdown need not wait for this daemon any longer."""
        if self._bus is not None and id == NOTICE_ID:
            self._bus.release_lock()

    async def _listen(self, bus: "LogindBus", sink: NoticeSink) -> None:
        """Reports the present state, and then every change, until the bus is lost (BusError)."""
        await self._take_lock(bus)
        self._report(sink, is_preparing=await bus.is_shutting_down())
        sink.on_source_health(self.name, None)
        self._failures = 0
        while True:
            is_preparing = await bus.wait_for_change()
            self._report(sink, is_preparing)
            if not is_preparing:
                await self._take_lock(bus)

    async def _take_lock(self, bus: "LogindBus") -> None:
        refused = await bus.take_lock()
        self._delay_s = await bus.lock_delay_s() if refused is None else 0.0
        self._stop_s = min(await bus.stop_timeout_s(), LONGEST_STOP_S)
        if refused is not None:  # shutdowns are still announced, only closer to their end
            log.info("notices.lock_refused", source=self.name, error=refused)

    def _report(self, sink: NoticeSink, is_preparing: bool) -> None:
        """Reports a shutdown with the limits that were in force when it began."""
        if is_preparing:
            self._shutdown = self._shutdown or RawNotice(
                slot=NOTICE_ID,
                id=NOTICE_ID,
                kind=NoticeKind.SHUTDOWN,
                certainty=Certainty.CERTAIN,
                gone_wall_at=None,
                warning_s=self._delay_s + self._stop_s,
                is_cancellable=True,
                text="systemd is about to shut this host down",
            )
        else:
            self._shutdown = None
        report = NO_NOTICES if self._shutdown is None else NoticeReport((self._shutdown,))
        sink.on_report(self.name, NOTICE_ID, report, self._clock())
