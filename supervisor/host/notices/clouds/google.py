"""Google Compute Engine and TPU VMs: preemption and host maintenance by requests that wait, upcoming maintenance."""

from collections.abc import Callable
from typing import Any

from supervisor.core.notices.notice import NO_NOTICES, Certainty, ClockReading, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.metadata import (
    REQUEST_TIMEOUT_S,
    MetadataClient,
    MetadataError,
    MetadataResponse,
    status_error,
)
from supervisor.host.notices.parsing import ParseError, document, members, rfc3339, stamp, text
from supervisor.host.notices.polling import RETRY_CAP_S, PolledEndpoint, PolledSource, parse_response
from supervisor.host.notices.source import read_clocks

BASE = "http://169.254.169.254"
INSTANCE = "/computeMetadata/v1/instance/"
FLAVOR = {"Metadata-Flavor": "Google"}
GOOGLE_PCI = "0x1ae0"  # its network cards and TPUs
NVIDIA_PCI = "0x10de"

WAIT_S = 60  # how long the server may hold a request that waits for a change; Google's own agents use it
WAIT_GRACE_S = 15.0  # its answer may come so much later
PAUSE_S = 1.0  # between requests: should the server not wait, we must not spin; a change meanwhile shows in the ETag
UPCOMING_EVERY_S = 60.0  # it comes hours to days ahead

SOFT_OFF_S = 30.0  # a spot machine loses power so long after the power button is pressed
MAINTENANCE_WARNING_S = 60.0
GPU_MAINTENANCE_WARNING_S = 3600.0  # machines with GPUs can't be moved while they run, and are told an hour ahead
UPCOMING_WARNING_S = 7 * 86400.0


class GoogleSource(PolledSource):
    """The metadata server of a Compute Engine machine. `base` differs only in tests.

    `preemption_notice_s`: 120 where the machine was made with `preemptionNoticeDuration` of 120 s; the machine can't
    ask. `has_gpu`: whether maintenance is announced an hour ahead, not a minute.
    """

    def __init__(
        self,
        base: str = BASE,
        *,
        preemption_notice_s: float = 0.0,
        has_gpu: bool = False,
        poll_s: float | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        retry_cap_s: float = RETRY_CAP_S,
        wait_s: int = WAIT_S,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        metadata = MetadataClient(base, timeout_s=timeout_s)
        preemption_warning_s = preemption_notice_s + SOFT_OFF_S
        preempted = _WatchedValue(
            metadata, "preempted", wait_s, lambda body: read_preempted(body, preemption_warning_s)
        )
        maintenance = _WatchedValue(metadata, "maintenance-event", wait_s, lambda body: read_maintenance(body, has_gpu))
        self._metadata = metadata
        super().__init__(
            "google",
            server="Compute Engine",
            remedy="check that this is a Google machine that can reach 169.254.169.254, or remove google from notices",
            endpoints=(
                PolledEndpoint("preempted", "preemption", poll_s or PAUSE_S, preempted.fetch),
                PolledEndpoint("maintenance", "host maintenance", poll_s or PAUSE_S, maintenance.fetch),
                PolledEndpoint("upcoming", "upcoming maintenance", poll_s or UPCOMING_EVERY_S, self._fetch_upcoming),
            ),
            shortest_s=preemption_warning_s,  # from the notice to the power cut
            clock=clock,
            retry_cap_s=retry_cap_s,
        )

    async def _fetch_upcoming(self) -> NoticeReport:
        answer = await self._metadata.get(INSTANCE + "upcoming-maintenance", FLAVOR, {"alt": "json"})
        if answer.status == 404:  # most machine types don't have it
            return NO_NOTICES
        return parse_response(_genuine(answer), read_upcoming)


def is_this_host(firmware: Firmware) -> bool:
    """Whether this is a Compute Engine machine, or a TPU VM seen from a container that is not shown the firmware."""
    is_named = firmware.dmi("sys_vendor") == "Google" or firmware.dmi("product_name").startswith("Google")
    return is_named or firmware.has_pci_vendor(GOOGLE_PCI)


def has_gpu(firmware: Firmware) -> bool:
    """Whether the host has an NVIDIA GPU; Google announces maintenance of those an hour ahead."""
    return firmware.has_pci_vendor(NVIDIA_PCI)


class _WatchedValue:
    """One value that the server is asked to hold back until it changes.

    The first request, and the one after any failure, reads what is there at once; the next ones name the ETag of what
    was read, so a change between two requests is not missed.
    """

    def __init__(self, metadata: MetadataClient, key: str, wait_s: int, read: Callable[[bytes], NoticeReport]) -> None:
        self._metadata = metadata
        self._key = key
        self._wait_s = wait_s
        self._read = read
        self._etag = ""

    async def fetch(self) -> NoticeReport:
        """The value now, or once it has changed. Raises MetadataError and ParseError."""
        etag, self._etag = self._etag, ""
        query, timeout_s = {}, self._metadata.timeout_s
        if etag:
            query = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": str(self._wait_s)}
            timeout_s = self._wait_s + min(WAIT_GRACE_S, self._metadata.timeout_s * 8)
        answer = _genuine(await self._metadata.get(INSTANCE + self._key, FLAVOR, query, timeout_s))
        reading = parse_response(answer, self._read, none=())
        self._etag = answer.headers.get("etag", "")  # without one it is read again after the pause
        return reading


def _genuine(answer: MetadataResponse) -> MetadataResponse:
    """The answer, if it is the metadata server's, which says so in a header. Raises MetadataError."""
    if answer.status != 200:
        raise status_error(answer)
    if answer.headers.get("metadata-flavor") != "Google":
        raise MetadataError("the answer lacks the header Metadata-Flavor: Google, so something else gave it")
    return answer


def read_preempted(body: bytes, warning_s: float) -> NoticeReport:
    """What `instance/preempted` says. Raises ParseError."""
    value = text(body)
    if value == "FALSE":
        return NO_NOTICES
    if value != "TRUE":
        raise ParseError(f"neither TRUE nor FALSE: {value!r:.40}")
    return NoticeReport(
        (
            RawNotice(
                slot="preempted",
                id="preempted",
                kind=NoticeKind.PREEMPTION,
                certainty=Certainty.CERTAIN,
                gone_wall_at=None,
                warning_s=warning_s,
                is_cancellable=False,
                text=f"Compute Engine preempts this machine; its power is cut in about {warning_s:g} s",
            ),
        )
    )


def read_maintenance(body: bytes, has_gpu: bool) -> NoticeReport:
    """What `instance/maintenance-event` says. Raises ParseError."""
    value = text(body)
    if value == "NONE":
        return NO_NOTICES
    if value not in ("TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE"):
        raise ParseError(f"not a maintenance event: {value!r:.60}")
    ends = value.startswith("TERMINATE")
    lead_s = GPU_MAINTENANCE_WARNING_S if has_gpu else MAINTENANCE_WARNING_S
    return NoticeReport(
        (
            RawNotice(
                slot="maintenance",
                id="maintenance-terminate" if ends else "maintenance-migrate",
                kind=NoticeKind.MAINTENANCE if ends else NoticeKind.FREEZE,
                certainty=Certainty.CERTAIN if ends else Certainty.POSSIBLE,
                gone_wall_at=None,
                warning_s=lead_s if ends else None,  # a machine that is moved pauses, and is not gone
                is_cancellable=True,
                text=f"Compute Engine stops this machine for host maintenance in about {lead_s:g} s"
                if ends
                else "Compute Engine moves this machine to another host; it pauses for a moment",
            ),
        )
    )


def read_upcoming(body: bytes) -> NoticeReport:
    """What `instance/upcoming-maintenance` says, in any of the shapes that are documented. Raises ParseError."""
    if text(body).strip('"') in ("NONE", ""):
        return NO_NOTICES
    said = members(document(body), "the upcoming maintenance")
    said = next((each for each in said.values() if isinstance(each, dict)), said)  # one example wraps it in a name
    if not said or "no notifications" in str(said.get("error", "")):
        return NO_NOTICES
    status = _field(said, "maintenance_status", "maintenanceStatus").upper()
    if status == "COMPLETE":
        return NO_NOTICES
    if status not in ("PENDING", "ONGOING"):
        raise ParseError(f"not the status of a maintenance: {status!r:.40}")
    begins = rfc3339(_field(said, "window_start_time", "windowStartTime"))
    how = _field(said, "type", "maintenanceType").lower()
    return NoticeReport(
        (
            RawNotice(
                slot="upcoming",
                id=f"upcoming-{stamp(begins)}",
                kind=NoticeKind.MAINTENANCE,
                certainty=Certainty.CERTAIN,
                gone_wall_at=begins,
                warning_s=UPCOMING_WARNING_S,
                is_cancellable=True,
                text=f"Compute Engine has {how[:20]!r} maintenance of this host from {stamp(begins)}, {status.lower()}",
            ),
        )
    )


def _field(said: dict[str, Any], *spellings: str) -> str:
    """The text under whichever spelling is used. Raises ParseError."""
    for spelling in spellings:
        if isinstance(value := said.get(spelling), str):
            return value
    raise ParseError(f"the upcoming maintenance has no {spellings[0]}: {said!r:.80}")
