"""Google Compute Engine and TPU VMs: preemption and host maintenance by requests that wait, upcoming maintenance."""

from collections.abc import Callable
from typing import Any

from supervisor.core.notices.notice import Certainty, NoticeKind
from supervisor.host.notices.announcement import NO_NOTICES, ClockReading, NoticeReport, RawNotice, read_clocks
from supervisor.host.notices.metadata import (
    REQUEST_TIMEOUT_S,
    MetadataClient,
    MetadataError,
    MetadataResponse,
    status_error,
)
from supervisor.host.notices.parsing import ParseError, document, members, rfc3339, stamp, text
from supervisor.host.notices.polling import RETRY_CAP_S, EndpointPoller, PolledEndpoint, parse_response
from supervisor.host.notices.source import NoticeSink

BASE = "http://169.254.169.254"
INSTANCE = "/computeMetadata/v1/instance/"
FLAVOR = {"Metadata-Flavor": "Google"}

WAIT_S = 60  # how long the server may hold a request that waits for a change; Google's own agents use it
WAIT_GRACE_S = 15.0  # its answer may come so much later
PAUSE_S = 1.0  # between requests: should the server not wait, we must not spin; a change meanwhile shows in the ETag
UPCOMING_EVERY_S = 60.0  # it comes hours to days ahead

SOFT_OFF_S = 30.0  # a spot machine loses power so long after the power button is pressed
MAINTENANCE_LEAD_S = 60.0
GPU_MAINTENANCE_LEAD_S = 3600.0  # machines with GPUs can't be moved while they run, and are told an hour ahead
UPCOMING_LEAD_S = 7 * 86400.0


class GoogleSource:
    """The metadata server of a Compute Engine machine. `base` differs only in tests.

    `preemption_notice_s`: 120 where the machine was made with `preemptionNoticeDuration` of 120 s; the machine can't
    ask. `has_gpu`: whether maintenance is announced an hour ahead, not a minute.
    """

    name = "google"

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
        preempted = _Value(metadata, "preempted", wait_s, lambda body: read_preempted(body, self._preemption_s))
        maintenance = _Value(metadata, "maintenance-event", wait_s, lambda body: read_maintenance(body, has_gpu))
        self._preemption_s = preemption_notice_s + SOFT_OFF_S
        self._metadata = metadata
        self._poller = EndpointPoller(
            source=self.name,
            server="Compute Engine",
            remedy="look whether this is a Google machine that reaches 169.254.169.254, or take google out of notices",
            questions=(
                PolledEndpoint("preempted", "preemption", poll_s or PAUSE_S, preempted.ask),
                PolledEndpoint("maintenance", "host maintenance", poll_s or PAUSE_S, maintenance.ask),
                PolledEndpoint("upcoming", "upcoming maintenance", poll_s or UPCOMING_EVERY_S, self._ask_upcoming),
            ),
            clock=clock,
            retry_cap_s=retry_cap_s,
        )

    @property
    def shortest_s(self) -> float | None:
        """From the notice to the power cut of a spot machine."""
        return self._preemption_s

    async def watch(self, sink: NoticeSink) -> None:
        """Tells `sink` what happens until it is cancelled."""
        await self._poller.run(sink)

    async def acknowledge(self, id: str) -> None:
        """Nobody waits for us."""

    async def _ask_upcoming(self) -> NoticeReport:
        answer = await self._metadata.get(INSTANCE + "upcoming-maintenance", FLAVOR, {"alt": "json"})
        if answer.status == 404:  # most machine types don't have it
            return NO_NOTICES
        return parse_response(_genuine(answer), read_upcoming)


class _Value:
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

    async def ask(self) -> NoticeReport:
        """The value now, or once it has changed. Raises MetadataError and ReadingError."""
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
    """What `instance/preempted` says. Raises ReadingError."""
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
    """What `instance/maintenance-event` says. Raises ReadingError."""
    value = text(body)
    if value == "NONE":
        return NO_NOTICES
    if value not in ("TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE"):
        raise ParseError(f"not a maintenance event: {value!r:.60}")
    ends = value.startswith("TERMINATE")
    lead_s = GPU_MAINTENANCE_LEAD_S if has_gpu else MAINTENANCE_LEAD_S
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
    """What `instance/upcoming-maintenance` says, in any of the shapes that are documented. Raises ReadingError."""
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
                warning_s=UPCOMING_LEAD_S,
                is_cancellable=True,
                text=f"Compute Engine has {how[:20]!r} maintenance of this host from {stamp(begins)}, {status.lower()}",
            ),
        )
    )


def _field(said: dict[str, Any], *spellings: str) -> str:
    """The text under whichever spelling is used. Raises ReadingError."""
    for spelling in spellings:
        if isinstance(value := said.get(spelling), str):
            return value
    raise ParseError(f"the upcoming maintenance has no {spellings[0]}: {said!r:.80}")
