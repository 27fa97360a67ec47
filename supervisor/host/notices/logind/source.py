"""Somebody powers off or reboots this host: systemd-logind says so before services stop, and waits a moment for us."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.host.notices.polling import RETRY_CAP_S, retry_s
from supervisor.host.notices.source import NoticeSink

if TYPE_CHECKING:
    from supervisor.host.notices.logind.bus import Bus

SEATS = Path("/run/systemd/seats")  # logind makes it when it starts
SYSTEM_BUS = Path("/run/dbus/system_bus_socket")
USUAL_DELAY_S = 5.0  # InhibitDelayMaxSec, where nobody changed it
LONGEST_STOP_S = 1800.0  # JobTimeoutSec= of poweroff.target and reboot.target
NOTICE_ID = "shutdown"

log = structlog.get_logger()


class LogindSource:
    """The session manager of systemd. After its delay the service manager stops us, and waits for that too.

    Holds a lock that delays shutdown until `acknowledge`, or until logind's own limit. `address`: of the bus, None for
    the system's; differs only in tests.
    """

    name = "logind"

    def __init__(
        self,
        *,
        address: str | None = None,
        retry_cap_s: float = RETRY_CAP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stop_s = 0.0
        self._address = address
        self._retry_cap_s = retry_cap_s
        self._clock = clock
        self._delay_s = USUAL_DELAY_S
        self._bus: Bus | None = None
        self._is_told = False

    @property
    def shortest_s(self) -> float | None:
        """logind's delay, as far as it is known, and the time to stop after it; None where that is not known.

        The delay alone is no warning: the host waits for services to stop as well.
        """
        return self._delay_s + self._stop_s if self._stop_s > 0 else None

    async def watch(self, sink: NoticeSink) -> None:
        """Tells `sink` what happens until it is cancelled."""
        try:
            from supervisor.host.notices.logind.bus import Bus, BusError
        except ImportError as error:
            missing = (
                f"cannot listen to logind: {error}; pip install 'stepkeeper[logind]', or take logind out of notices"
            )
            sink.troubled(self.name, missing)
            await asyncio.Event().wait()  # it can't come back in this process
            return
        failures = 0
        while True:
            try:
                async with Bus(self._address) as self._bus:
                    await self._listen(self._bus, sink)
            except BusError as error:
                self._bus = None
                failures += 1
                sink.troubled(
                    self.name, f"cannot listen to logind: {error}; start systemd-logind, or take logind out of notices"
                )
            except Exception as error:  # a source has to outlive whatever it meets, and the host's others with it
                failures += 1
                log.exception("notices.failed", source=self.name)
                sink.troubled(self.name, f"cannot listen to logind: an error of stepkeeper's own ({error!r:.200})")
            await asyncio.sleep(retry_s(1.0, failures, self._retry_cap_s))

    async def acknowledge(self, id: str) -> None:
        """Gives up the lock: as far as we are concerned the shutdown may go on."""
        if self._bus is not None and id == NOTICE_ID:
            self._bus.unlock()

    async def _listen(self, bus: "Bus", sink: NoticeSink) -> None:
        """Tells of the state there is, and then of every change, until the bus is lost (BusError)."""
        await self._lock(bus)
        self._tell(bus, sink, is_preparing=await bus.is_preparing())
        sink.troubled(self.name, None)
        while True:
            is_preparing = await bus.next_change()
            self._tell(bus, sink, is_preparing)
            if not is_preparing:
                await self._lock(bus)

    async def _lock(self, bus: "Bus") -> None:
        refused = await bus.lock()
        self._delay_s = await bus.delay_s() if refused is None else 0.0
        self._stop_s = min(await bus.stop_s(), LONGEST_STOP_S)
        if refused is not None:  # shutdowns are still heard of, only closer to their end
            log.info("notices.lock_refused", source=self.name, error=refused)

    def _tell(self, bus: "Bus", sink: NoticeSink, is_preparing: bool) -> None:
        if self._is_told and not is_preparing:
            sink.withdrawn(self.name, NOTICE_ID)
        if is_preparing and not self._is_told:
            sink.received(
                Notice(
                    source=self.name,
                    id=NOTICE_ID,
                    kind=NoticeKind.SHUTDOWN,
                    certainty=Certainty.CERTAIN,
                    deadline_at=self._clock() + self._delay_s + self._stop_s,
                    is_cancellable=True,
                    text="systemd is about to shut this host down",
                )
            )
        self._is_told = is_preparing
