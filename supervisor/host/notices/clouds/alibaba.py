"""Alibaba Cloud ECS: the release of a spot instance."""

from supervisor.core.notices.notice import Certainty, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.metadata import MetadataClient, MetadataToken
from supervisor.host.notices.parsing import decode_text, format_time, parse_rfc3339
from supervisor.host.notices.polling import DEFAULT_TIMES, PolledEndpoint, PolledSource, PollTimes, parse_response

BASE = "http://100.100.100.200"
TERMINATION = "/latest/meta-data/instance/spot/termination-time"
EVERY_S = 5.0  # as Alibaba advises
WARNING_S = 300.0


class AlibabaSource(PolledSource):
    """The metadata service of an ECS instance. `base` differs only in tests."""

    def __init__(self, base: str = BASE, times: PollTimes = DEFAULT_TIMES) -> None:
        self._token = MetadataToken(MetadataClient(base, timeout_s=times.timeout_s), "X-aliyun-ecs-metadata-token")
        super().__init__(
            "alibaba",
            server="ECS",
            remedy="check that the instance's metadata service is enabled, or remove alibaba from notices",
            endpoints=(PolledEndpoint("spot", "the release of spot instances", EVERY_S, self._fetch_spot),),
            shortest_s=WARNING_S,
            times=times,
        )

    async def _fetch_spot(self) -> NoticeReport:
        return parse_response(await self._token.get(TERMINATION), parse_termination)


def is_this_host(firmware: Firmware) -> bool:
    """Whether the firmware says that this is an ECS instance."""
    return firmware.dmi("sys_vendor") == "Alibaba Cloud" or firmware.dmi("product_name").startswith("Alibaba Cloud")


def parse_termination(body: bytes) -> NoticeReport:
    """The time in `spot/termination-time`. Raises ParseError."""
    gone = parse_rfc3339(decode_text(body))
    return NoticeReport(
        (
            RawNotice(
                slot="spot",
                id=f"spot-{format_time(gone)}",
                kind=NoticeKind.PREEMPTION,
                certainty=Certainty.CERTAIN,
                gone_wall_at=gone,
                warning_s=WARNING_S,
                is_cancellable=False,
                text=f"Alibaba Cloud will release this spot instance at {format_time(gone)}",
            ),
        )
    )
