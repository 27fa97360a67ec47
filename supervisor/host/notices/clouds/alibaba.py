"""Alibaba Cloud ECS: the release of a spot instance."""

from collections.abc import Callable

from supervisor.core.notices.notice import Certainty, NoticeKind
from supervisor.host.notices.announcement import ClockReading, NoticeReport, RawNotice, read_clocks
from supervisor.host.notices.metadata import REQUEST_TIMEOUT_S, MetadataClient, MetadataToken
from supervisor.host.notices.parsing import rfc3339, stamp, text
from supervisor.host.notices.polling import RETRY_CAP_S, EndpointPoller, PolledEndpoint, parse_response
from supervisor.host.notices.source import NoticeSink

BASE = "http://100.100.100.200"
TERMINATION = "/latest/meta-data/instance/spot/termination-time"
EVERY_S = 5.0  # as Alibaba advises
LEAD_S = 300.0


class AlibabaSource:
    """The metadata service of an ECS instance. `base` differs only in tests."""

    name = "alibaba"
    shortest_s: float | None = LEAD_S

    def __init__(
        self,
        base: str = BASE,
        *,
        poll_s: float | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        retry_cap_s: float = RETRY_CAP_S,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._token = MetadataToken(MetadataClient(base, timeout_s=timeout_s), "X-aliyun-ecs-metadata-token")
        self._poller = EndpointPoller(
            source=self.name,
            server="ECS",
            remedy="look whether the instance's metadata service is on, or take alibaba out of notices",
            questions=(PolledEndpoint("spot", "the release of spot instances", poll_s or EVERY_S, self._ask_spot),),
            clock=clock,
            retry_cap_s=retry_cap_s,
        )

    async def watch(self, sink: NoticeSink) -> None:
        """Tells `sink` what happens until it is cancelled."""
        await self._poller.run(sink)

    async def acknowledge(self, id: str) -> None:
        """Nobody waits for us."""

    async def _ask_spot(self) -> NoticeReport:
        return parse_response(await self._token.get(TERMINATION), read_termination)


def read_termination(body: bytes) -> NoticeReport:
    """The time in `spot/termination-time`. Raises ReadingError."""
    gone = rfc3339(text(body))
    return NoticeReport(
        (
            RawNotice(
                slot="spot",
                id=f"spot-{stamp(gone)}",
                kind=NoticeKind.PREEMPTION,
                certainty=Certainty.CERTAIN,
                gone_wall_at=gone,
                warning_s=LEAD_S,
                is_cancellable=False,
                text=f"Alibaba Cloud will release this spot instance at {stamp(gone)}",
            ),
        )
    )
