"""Alibaba Cloud ECS: the release of a spot instance."""

from collections.abc import Callable

from supervisor.core.notices.notice import Certainty, Kind
from supervisor.host.notices.announcement import Announcement, Moment, Reading, read_clocks
from supervisor.host.notices.metadata import REQUEST_TIMEOUT_S, Metadata, Token
from supervisor.host.notices.polling import RETRY_CAP_S, Poller, Question, meaning
from supervisor.host.notices.reading import rfc3339, stamp, text
from supervisor.host.notices.source import Sink

BASE = "http://100.100.100.200"
TERMINATION = "/latest/meta-data/instance/spot/termination-time"
EVERY_S = 5.0  # as Alibaba advises
LEAD_S = 300.0


class Alibaba:
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
        clock: Callable[[], Moment] = read_clocks,
    ) -> None:
        self._token = Token(Metadata(base, timeout_s=timeout_s), "X-aliyun-ecs-metadata-token")
        self._poller = Poller(
            source=self.name,
            server="ECS",
            remedy="look whether the instance's metadata service is on, or take alibaba out of notices",
            questions=(Question("spot", "the release of spot instances", poll_s or EVERY_S, self._ask_spot),),
            clock=clock,
            retry_cap_s=retry_cap_s,
        )

    async def watch(self, sink: Sink) -> None:
        """Tells `sink` what happens until it is cancelled."""
        await self._poller.run(sink)

    async def acknowledge(self, id: str) -> None:
        """Nobody waits for us."""

    async def _ask_spot(self) -> Reading:
        return meaning(await self._token.get(TERMINATION), read_termination)


def read_termination(body: bytes) -> Reading:
    """The time in `spot/termination-time`. Raises ReadingError."""
    gone = rfc3339(text(body))
    return Reading(
        (
            Announcement(
                slot="spot",
                id=f"spot-{stamp(gone)}",
                kind=Kind.PREEMPTION,
                certainty=Certainty.CERTAIN,
                gone_wall=gone,
                lead_s=LEAD_S,
                is_cancellable=False,
                text=f"Alibaba Cloud will release this spot instance at {stamp(gone)}",
            ),
        )
    )
