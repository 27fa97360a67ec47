"""Azure: Scheduled Events, and the word that one of them need not wait any longer."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import structlog

from supervisor.core.notices.notice import NO_NOTICES, Certainty, ClockReading, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.metadata import MetadataClient, MetadataError, status_error
from supervisor.host.notices.parsing import ParseError, date, document, entries, line, members, stamp, text, word
from supervisor.host.notices.polling import RETRY_CAP_S, PolledEndpoint, PolledSource, parse_response
from supervisor.host.notices.source import read_clocks

BASE = "http://169.254.169.254"
EVENTS = "/metadata/scheduledevents"
EVENTS_VERSION = {"api-version": "2020-07-01"}
NAME = "/metadata/instance/compute/name"
NAME_QUERY = {"api-version": "2021-02-01", "format": "text"}
NAME_IS_FOR = "this machine's name (until it is known, events of its neighbours count as well)"
HEADERS = {"Metadata": "true"}

AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"  # tells Azure from other Hyper-V hosts

EVERY_S = 1.0  # as Azure advises: a preemption may leave no more than 30 s
NAME_EVERY_S = 10.0
FIRST_TIMEOUT_S = 130.0  # the first question turns the service on, which takes up to two minutes
LATER_TIMEOUT_S = 5.0
HARMLESS_FREEZE_S = 9  # Microsoft's own sample ignores shorter ones
ACKNOWLEDGE_TRIES = 3

PREEMPT_WARNING_S = 30.0
LONGEST_WARNING_S = {
    "Preempt": PREEMPT_WARNING_S,
    "Terminate": 15 * 60.0,  # 5 to 15 min, as the owner set it
    "Reboot": 7 * 86400.0,  # at least 15 min; days, where a failure of the hardware is foreseen
    "Redeploy": 7 * 86400.0,  # at least 10 min; likewise
    "Freeze": 7 * 86400.0,
}

_MACHINE = re.compile(r"[\w.-]{1,128}", re.ASCII)

log = structlog.get_logger()


class AzureSource(PolledSource):
    """The metadata service of an Azure machine. `base` differs only in tests.

    `may_acknowledge`: whether `acknowledge` tells Azure to go ahead, which is one-way.
    """

    def __init__(
        self,
        base: str = BASE,
        *,
        may_acknowledge: bool = False,
        poll_s: float | None = None,
        timeout_s: float = LATER_TIMEOUT_S,
        first_timeout_s: float = FIRST_TIMEOUT_S,
        retry_cap_s: float = RETRY_CAP_S,
        clock: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._metadata = MetadataClient(base, timeout_s=timeout_s)
        self._may_acknowledge = may_acknowledge
        self._events_timeout_s = first_timeout_s
        self._machine: str | None = None
        self._name_requested = asyncio.Event()
        self._ours_alone: frozenset[str] = frozenset()
        super().__init__(
            "azure",
            server="Azure",
            remedy="check that this is an Azure machine that can reach 169.254.169.254, or remove azure from notices",
            endpoints=(
                PolledEndpoint("events", "scheduled events", poll_s or EVERY_S, self._fetch_events),
                PolledEndpoint("name", NAME_IS_FOR, poll_s or NAME_EVERY_S, self._fetch_name),
            ),
            shortest_s=PREEMPT_WARNING_S,
            clock=clock,
            retry_cap_s=retry_cap_s,
        )

    async def acknowledge(self, id: str) -> None:
        """Lets Azure begin the event at once, if that is allowed and the event is no other machine's as well.

        Not getting through costs nothing but time: the event then begins at its own hour.
        """
        if not self._may_acknowledge or id not in self._ours_alone:
            return
        error = ""
        for _ in range(ACKNOWLEDGE_TRIES):
            try:
                answer = await self._metadata.post(
                    EVENTS, HEADERS, EVENTS_VERSION, {"StartRequests": [{"EventId": id}]}
                )
            except MetadataError as failure:
                error = str(failure)
            else:
                if answer.status == 200:
                    return
                error = str(status_error(answer))
            await asyncio.sleep(1.0)
        log.warning("notice.acknowledge_failed", source=self.name, id=id, error=error, next="waits for its own hour")

    async def _fetch_events(self) -> NoticeReport:
        answer = await self._metadata.get(EVENTS, HEADERS, EVENTS_VERSION, self._events_timeout_s)
        self._events_timeout_s = self._metadata.timeout_s
        await self._name_requested.wait()  # else a neighbour's event would count as ours until the name is there
        reading = parse_response(answer, lambda body: read_events(body, self._machine), none=())
        self._ours_alone = only_ours(answer.body, self._machine)
        return reading

    async def _fetch_name(self) -> NoticeReport:
        if self._machine is not None:  # names don't change
            return NO_NOTICES
        try:
            answer = await self._metadata.get(NAME, HEADERS, NAME_QUERY)
            if answer.status != 200:
                raise status_error(answer)
            self._machine = read_name(answer.body)
        finally:
            self._name_requested.set()
        return NO_NOTICES


def is_this_host(firmware: Firmware) -> bool:
    """Whether the firmware says that this is an Azure machine."""
    return (firmware.dmi("sys_vendor"), firmware.dmi("chassis_asset_tag")) == ("Microsoft Corporation", AZURE_ASSET_TAG)


def read_name(body: bytes) -> str:
    """The machine's own name, as events list it. Raises ParseError."""
    name = text(body)
    if not _MACHINE.fullmatch(name):  # any other text would hide every event of ours
        raise ParseError(f"not a machine's name: {name!r:.60}")
    return name


def read_events(body: bytes, machine: str | None) -> NoticeReport:
    """The events that concern `machine`, or all of them if its name is not known. Raises ParseError."""
    announced, problem = [], ""
    for event in _events(body):
        try:
            one = _event(members(event, "a scheduled event"), machine)
        except ParseError as error:  # one that is not understood must not hide the others
            problem = str(error)
            continue
        if one is not None:
            announced.append(one)
    return NoticeReport(tuple(announced), problem)


def only_ours(body: bytes, machine: str | None) -> frozenset[str]:
    """The ids of events that concern `machine` and nobody else: starting one does no harm to a neighbour."""
    return frozenset(
        str(event["EventId"])
        for event in _events(body)
        if isinstance(event, dict)
        and machine is not None
        and event.get("Resources") == [machine]
        and "EventId" in event
    )


def _events(body: bytes) -> list[Any]:
    return entries(members(document(body), "the document").get("Events"), "Events")


def _event(event: dict[str, Any], machine: str | None) -> RawNotice | None:
    id, kind, status = line(word(event, "EventId"), 100), word(event, "EventType"), word(event, "EventStatus")
    resources = [each for each in entries(event.get("Resources"), "Resources") if isinstance(each, str)]
    if kind not in LONGEST_WARNING_S or status not in ("Scheduled", "Started") or not id:
        raise ParseError(f"not a scheduled event: EventId {id!r}, type {kind!r:.40}, status {status!r:.40}")
    if machine is not None and machine not in resources:
        return None
    began = status == "Started"
    not_before = word(event, "NotBefore")  # empty once it has started
    begins = date(not_before) if not_before else None
    when = "now" if began or begins is None else f"at {stamp(begins)}"
    if kind == "Freeze":
        return _freeze(event, id, when, began)
    return RawNotice(
        slot=id,
        id=id,
        kind=NoticeKind.PREEMPTION if kind in ("Preempt", "Terminate") else NoticeKind.MAINTENANCE,
        certainty=Certainty.CERTAIN,
        gone_wall_at=None if began else begins,
        warning_s=0.0 if began or begins is None else LONGEST_WARNING_S[kind],
        is_cancellable=True,
        text=f"Azure: {kind} of this machine {when}",
    )


def _freeze(event: dict[str, Any], id: str, when: str, began: bool) -> RawNotice | None:
    """A pause: worth a checkpoint where it is not known to be short, and never worth stopping for."""
    duration_s = event.get("DurationInSeconds", -1)
    if isinstance(duration_s, int) and 0 <= duration_s < HARMLESS_FREEZE_S:
        return None
    return RawNotice(
        slot=id,
        id=id,
        kind=NoticeKind.FREEZE if began else NoticeKind.MAINTENANCE,  # until it begins nothing stands still
        certainty=Certainty.POSSIBLE,
        gone_wall_at=None,
        warning_s=None,
        is_cancellable=True,
        text=f"Azure: this machine freezes {when}, for {_span(duration_s)}",
    )


def _span(duration_s: object) -> str:
    is_known = isinstance(duration_s, int) and duration_s >= 0
    return f"{str(duration_s)[:12]} s" if is_known else "an unknown time"
