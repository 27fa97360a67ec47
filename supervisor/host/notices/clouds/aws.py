"""Amazon EC2: spot interruptions, rebalance recommendations, scheduled events and Auto Scaling; IMDSv2 only."""

from collections.abc import Awaitable, Callable
from typing import Any

from supervisor.core.notices.notice import NO_NOTICES, Certainty, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.metadata import MetadataClient, MetadataToken
from supervisor.host.notices.parsing import (
    ParseError,
    decode_text,
    format_time,
    json_list,
    json_object,
    parse_http_date,
    parse_json,
    parse_rfc3339,
    printable_line,
    text_field,
)
from supervisor.host.notices.polling import (
    DEFAULT_TIMES,
    PolledEndpoint,
    PolledSource,
    PollTimes,
    parse_each,
    parse_response,
)

BASE = "http://169.254.169.254"
SPOT = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
SCHEDULED = "/latest/meta-data/events/maintenance/scheduled"
AUTOSCALING = "/latest/meta-data/autoscaling/target-lifecycle-state"

SPOT_EVERY_S = 2.0  # AWS advises 5 s; its own node termination handler polls every 2 s, which leaves 3 s more
SLOW_EVERY_S = 30.0  # scheduled events come hours ahead
SPOT_WARNING_S = 120.0
SCHEDULED_WARNING_S = 30 * 86400.0  # they come hours to days ahead; this only limits a nonsensical date
_SPOT_ACTIONS = {
    "terminate": SPOT_WARNING_S,
    "stop": SPOT_WARNING_S,
    "hibernate": 0.0,  # hibernation starts with the notice
}
_LIFECYCLE_STATES = ("InService", "Standby", "Detached", "Pending", "EnteringStandby")


class AwsSource(PolledSource):
    """The metadata service of an EC2 instance. `base` differs only in tests.

    Nothing is acknowledged: completing a lifecycle hook takes rights that a daemon on the host should not have.
    """

    def __init__(self, base: str = BASE, times: PollTimes = DEFAULT_TIMES) -> None:
        self._token = MetadataToken(MetadataClient(base, timeout_s=times.timeout_s), "X-aws-ec2-metadata-token")
        super().__init__(
            "aws",
            server="EC2",
            remedy="check that the instance's metadata service is enabled, with a hop limit of 2 for a container, or "
            "remove aws from notices",
            endpoints=(
                PolledEndpoint("spot", "spot interruptions", SPOT_EVERY_S, self._fetcher(SPOT, parse_spot)),
                PolledEndpoint(
                    "rebalance", "rebalance recommendations", SPOT_EVERY_S, self._fetcher(REBALANCE, parse_rebalance)
                ),
                PolledEndpoint(
                    "autoscaling", "the Auto Scaling state", SPOT_EVERY_S, self._fetcher(AUTOSCALING, parse_autoscaling)
                ),
                PolledEndpoint(
                    "scheduled", "scheduled events", SLOW_EVERY_S, self._fetcher(SCHEDULED, parse_scheduled, none=())
                ),
            ),
            shortest_s=SPOT_WARNING_S,
            times=times,
        )

    def _fetcher(
        self, path: str, parse: Callable[[bytes], NoticeReport], none: tuple[int, ...] = (404,)
    ) -> Callable[[], Awaitable[NoticeReport]]:
        async def fetch() -> NoticeReport:
            return parse_response(await self._token.get(path), parse, none)

        return fetch


def is_this_host(firmware: Firmware) -> bool:
    """Whether the firmware says that this is an EC2 instance."""
    return firmware.dmi("sys_vendor") == "Amazon EC2" or "amazon" in firmware.dmi("bios_version").lower()  # Xen


def parse_spot(body: bytes) -> NoticeReport:
    """The interruption in `spot/instance-action`. Raises ParseError."""
    fields = json_object(parse_json(body), "the spot action")
    action, gone = text_field(fields, "action"), parse_rfc3339(text_field(fields, "time"))
    if action not in _SPOT_ACTIONS:
        raise ParseError(f"not a spot action: {action!r:.40}")
    return NoticeReport(
        (
            RawNotice(
                slot="spot",
                id=f"spot-{action}-{format_time(gone)}",
                kind=NoticeKind.PREEMPTION,
                certainty=Certainty.CERTAIN,
                gone_wall_at=gone,
                warning_s=_SPOT_ACTIONS[action],
                is_cancellable=False,
                text=f"EC2 will {action} this spot instance at {format_time(gone)}",
            ),
        )
    )


def parse_rebalance(body: bytes) -> NoticeReport:
    """The recommendation in `events/recommendations/rebalance`; its time is when it was made. Raises ParseError."""
    made = format_time(parse_rfc3339(text_field(json_object(parse_json(body), "the recommendation"), "noticeTime")))
    return NoticeReport(
        (
            RawNotice(
                slot="rebalance",
                id=f"rebalance-{made}",
                kind=NoticeKind.REBALANCE,
                certainty=Certainty.POSSIBLE,
                gone_wall_at=None,
                warning_s=None,
                is_cancellable=True,
                text=f"EC2 reported at {made} that this spot instance is at elevated risk of interruption",
            ),
        )
    )


def parse_autoscaling(body: bytes) -> NoticeReport:
    """The state that the Auto Scaling group wants for the instance. Raises ParseError."""
    state = decode_text(body)
    if state in _LIFECYCLE_STATES or state.startswith("Warmed:"):
        return NO_NOTICES
    if state != "Terminated":
        raise ParseError(f"not a lifecycle state: {state!r:.40}")
    return NoticeReport(
        (
            RawNotice(
                slot="autoscaling",
                id="autoscaling-terminated",
                kind=NoticeKind.PREEMPTION,
                certainty=Certainty.CERTAIN,
                gone_wall_at=None,
                warning_s=None,
                is_cancellable=True,
                text="the Auto Scaling group is terminating this instance",
            ),
        )
    )


def parse_scheduled(body: bytes) -> NoticeReport:
    """The active entries of `events/maintenance/scheduled`. Raises ParseError."""
    return parse_each(json_list(parse_json(body), "the list of scheduled events"), _parse_scheduled_event)


def _parse_scheduled_event(event: dict[str, Any]) -> RawNotice | None:
    state = text_field(event, "State")
    if state in ("canceled", "completed"):
        return None
    if state != "active":
        raise ParseError(f"not the state of a scheduled event: {state!r:.40}")
    code, id = printable_line(text_field(event, "Code"), 60), printable_line(text_field(event, "EventId"), 100)
    begins = parse_http_date(text_field(event, "NotBefore"))
    if not id:
        raise ParseError("a scheduled event has no EventId")
    return RawNotice(
        slot=id,
        id=id,
        kind=NoticeKind.MAINTENANCE,
        # maintenance of the host's network or power; the instance goes on
        certainty=Certainty.POSSIBLE if code == "system-maintenance" else Certainty.CERTAIN,
        gone_wall_at=begins,
        warning_s=SCHEDULED_WARNING_S,
        is_cancellable=True,
        text=f"EC2 scheduled {code} from {format_time(begins)}",
    )
