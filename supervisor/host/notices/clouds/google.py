"""Google Compute Engine and TPU VMs: preemption, host maintenance, upcoming maintenance.

The first two are long polls: the server holds a request until the value changes.
"""

from collections.abc import Callable
from typing import Any

from supervisor.core.notices.notice import NO_NOTICES, Certainty, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.metadata import (
    MetadataClient,
    MetadataError,
    MetadataResponse,
    status_error,
)
from supervisor.host.notices.parsing import ParseError, decode_text, format_time, json_object, parse_json, parse_rfc3339
from supervisor.host.notices.polling import DEFAULT_TIMES, PolledEndpoint, PolledSource, PollTimes, parse_response

BASE = "http://169.254.169.254"
INSTANCE = "/computeMetadata/v1/instance/"
FLAVOR = {"Metadata-Flavor": "Google"}
GOOGLE_PCI = "0x1ae0"  # its network cards and TPUs
NVIDIA_PCI = "0x10de"

WAIT_S = 60  # how long the server may hold a request that waits for a change; Google's own agents use it
WAIT_GRACE_S = 15.0  # so much later the response may come
PAUSE_S = 1.0  # between requests, in case the server does not hold them; the ETag shows a change in between
UPCOMING_EVERY_S = 60.0  # it comes hours to days ahead

SOFT_OFF_S = 30.0  # from the power button signal to the power cut of a spot machine
MAINTENANCE_WARNING_S = 60.0
GPU_MAINTENANCE_WARNING_S = 3600.0  # machines with GPUs can't be moved live, and get an hour's notice
UPCOMING_WARNING_S = 7 * 86400.0


class GoogleSource(PolledSource):
    """The metadata server of a Compute Engine machine. `base` differs only in tests.

    `preemption_notice_s`: 120 if the machine was created with `preemptionNoticeDuration` of 120 s, which the metadata
    server does not tell. `has_gpu`: whether maintenance is announced an hour ahead, not a minute.
    """

    def __init__(
        self,
        base: str = BASE,
        *,
        preemption_notice_s: float = 0.0,
        has_gpu: bool = False,
        times: PollTimes = DEFAULT_TIMES,
        wait_s: int = WAIT_S,
    ) -> None:
        metadata = MetadataClient(base, timeout_s=times.timeout_s)
        preemption_warning_s = preemption_notice_s + SOFT_OFF_S
        preempted = _WatchedValue(
            metadata, "preempted", wait_s, lambda body: parse_preempted(body, preemption_warning_s)
        )
        maintenance = _WatchedValue(
            metadata, "maintenance-event", wait_s, lambda body: parse_maintenance(body, has_gpu)
        )
        self._metadata = metadata
        super().__init__(
            "google",
            server="Compute Engine",
            remedy="check that this is a Google machine that can reach 169.254.169.254, or remove google from notices",
            endpoints=(
                PolledEndpoint("preempted", "preemption", PAUSE_S, preempted.fetch),
                PolledEndpoint("maintenance", "host maintenance", PAUSE_S, maintenance.fetch),
                PolledEndpoint("upcoming", "upcoming maintenance", UPCOMING_EVERY_S, self._fetch_upcoming),
            ),
            shortest_s=preemption_warning_s,  # from the notice to the power cut
            times=times,
        )

    async def _fetch_upcoming(self) -> NoticeReport:
        response = await self._metadata.get(INSTANCE + "upcoming-maintenance", FLAVOR, {"alt": "json"})
        if response.status == 404:  # most machine types don't have it
            return NO_NOTICES
        return parse_response(_require_google(response), parse_upcoming)


def is_this_host(firmware: Firmware) -> bool:
    """Whether this is a Compute Engine machine, or a TPU VM seen from a container that is not shown the firmware."""
    is_named = firmware.dmi("sys_vendor") == "Google" or firmware.dmi("product_name").startswith("Google")
    return is_named or firmware.has_pci_vendor(GOOGLE_PCI)


def has_gpu(firmware: Firmware) -> bool:
    """Whether the host has an NVIDIA GPU; Google announces maintenance of those an hour ahead."""
    return firmware.has_pci_vendor(NVIDIA_PCI)


class _WatchedValue:
    """A value that is read by long polling.

    The first request, and the first after a failure, reads the value at once. Each later one names the ETag of the last
    value, so a change between two requests is not missed.
    """

    def __init__(self, metadata: MetadataClient, key: str, wait_s: int, parse: Callable[[bytes], NoticeReport]) -> None:
        self._metadata = metadata
        self._key = key
        self._wait_s = wait_s
        self._parse = parse
        self._etag = ""

    async def fetch(self) -> NoticeReport:
        """The value now, or once it has changed. Raises MetadataError and ParseError."""
        etag, self._etag = self._etag, ""
        query, timeout_s = {}, self._metadata.timeout_s
        if etag:
            query = {"wait_for_change": "true", "last_etag": etag, "timeout_sec": str(self._wait_s)}
            timeout_s = self._wait_s + min(WAIT_GRACE_S, self._metadata.timeout_s * 8)
        response = _require_google(await self._metadata.get(INSTANCE + self._key, FLAVOR, query, timeout_s))
        report = parse_response(response, self._parse, none=())
        self._etag = response.headers.get("etag", "")  # without one, the value is read again after the pause
        return report


def _require_google(response: MetadataResponse) -> MetadataResponse:
    """The response, if its header says that it is from the metadata server. Raises MetadataError."""
    if response.status != 200:
        raise status_error(response)
    if response.headers.get("metadata-flavor") != "Google":
        raise MetadataError("the response has no header Metadata-Flavor: Google, so it is from another server")
    return response


def parse_preempted(body: bytes, warning_s: float) -> NoticeReport:
    """Parses the value of `instance/preempted`. Raises ParseError."""
    value = decode_text(body)
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


def parse_maintenance(body: bytes, has_gpu: bool) -> NoticeReport:
    """Parses the value of `instance/maintenance-event`. Raises ParseError."""
    value = decode_text(body)
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
                warning_s=lead_s if ends else None,  # a machine that is moved only pauses
                is_cancellable=True,
                text=f"Compute Engine stops this machine for host maintenance in about {lead_s:g} s"
                if ends
                else "Compute Engine moves this machine to another host; it pauses for a moment",
            ),
        )
    )


def parse_upcoming(body: bytes) -> NoticeReport:
    """Parses the value of `instance/upcoming-maintenance`, in any of the documented formats. Raises ParseError."""
    if decode_text(body).strip('"') in ("NONE", ""):
        return NO_NOTICES
    fields = json_object(parse_json(body), "the upcoming maintenance")
    # one documented example wraps it in a name
    fields = next((value for value in fields.values() if isinstance(value, dict)), fields)
    if not fields or "no notifications" in str(fields.get("error", "")):
        return NO_NOTICES
    status = _text_field(fields, "maintenance_status", "maintenanceStatus").upper()
    if status == "COMPLETE":
        return NO_NOTICES
    if status not in ("PENDING", "ONGOING"):
        raise ParseError(f"not the status of a maintenance: {status!r:.40}")
    begins = parse_rfc3339(_text_field(fields, "window_start_time", "windowStartTime"))
    how = _text_field(fields, "type", "maintenanceType").lower()
    return NoticeReport(
        (
            RawNotice(
                slot="upcoming",
                id=f"upcoming-{format_time(begins)}",
                kind=NoticeKind.MAINTENANCE,
                certainty=Certainty.CERTAIN,
                gone_wall_at=begins,
                warning_s=UPCOMING_WARNING_S,
                is_cancellable=True,
                text=f"Compute Engine: {how[:20]!r} host maintenance from {format_time(begins)}, {status.lower()}",
            ),
        )
    )


def _text_field(fields: dict[str, Any], *spellings: str) -> str:
    """The text under whichever spelling is used. Raises ParseError."""
    for spelling in spellings:
        if isinstance(value := fields.get(spelling), str):
            return value
    raise ParseError(f"the upcoming maintenance has no {spellings[0]}: {fields!r:.80}")
