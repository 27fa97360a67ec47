"""Azure: Scheduled Events, and telling Azure that one of them need not wait any longer."""

import asyncio
import re
from typing import Any

import structlog

from supervisor.core.notices.notice import NO_NOTICES, Certainty, NoticeKind, NoticeReport, RawNotice
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.metadata import MetadataClient, MetadataError, status_error
from supervisor.host.notices.parsing import (
    ParseError,
    decode_text,
    format_time,
    json_list,
    json_object,
    parse_http_date,
    parse_json,
    printable_line,
    text_field,
)
from supervisor.host.notices.polling import PolledEndpoint, PolledSource, PollTimes, parse_each, parse_response

BASE = "http://169.254.169.254"
EVENTS = "/metadata/scheduledevents"
EVENTS_VERSION = {"api-version": "2020-07-01"}
NAME = "/metadata/instance/compute/name"
NAME_QUERY = {"api-version": "2021-02-01", "format": "text"}
NAME_WHAT = "this machine's name (until it is known, events of other machines count too)"
HEADERS = {"Metadata": "true"}

AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"  # tells Azure from other Hyper-V hosts

EVERY_S = 1.0  # as Azure advises: a preemption may leave no more than 30 s
NAME_EVERY_S = 10.0
FIRST_TIMEOUT_S = 130.0  # the first question turns the service on, which takes up to two minutes
TIMES = PollTimes(timeout_s=5.0)  # after the first question
HARMLESS_FREEZE_S = 9  # Microsoft's own sample ignores shorter ones
ACKNOWLEDGE_TRIES = 3

PREEMPT_WARNING_S = 30.0
LONGEST_WARNING_S = {
    "Preempt": PREEMPT_WARNING_S,
    "Terminate": 15 * 60.0,  # 5 to 15 min, as configured for the machine
    "Reboot": 7 * 86400.0,  # at least 15 min; days if a hardware failure is predicted
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
        times: PollTimes = TIMES,
        first_timeout_s: float = FIRST_TIMEOUT_S,
    ) -> None:
        self._metadata = MetadataClient(base, timeout_s=times.timeout_s)
        self._may_acknowledge = may_acknowledge
        self._events_timeout_s = first_timeout_s
        self._machine: str | None = None
        self._name_requested = asyncio.Event()
        self._own_event_ids: frozenset[str] = frozenset()
        super().__init__(
            "azure",
            server="Azure",
            remedy="check that this is an Azure machine that can reach 169.254.169.254, or remove azure from notices",
            endpoints=(
                PolledEndpoint("events", "scheduled events", EVERY_S, self._fetch_events),
                PolledEndpoint("name", NAME_WHAT, NAME_EVERY_S, self._fetch_name),
            ),
            shortest_s=PREEMPT_WARNING_S,
            times=times,
        )

    async def acknowledge(self, id: str) -> None:
        """Lets Azure begin the event at once, if that is allowed and the event concerns no other machine.

        If Azure does not answer, the event begins at its scheduled time.
        """
        if not self._may_acknowledge or id not in self._own_event_ids:
            return
        error = ""
        for _ in range(ACKNOWLEDGE_TRIES):
            try:
                response = await self._metadata.post(
                    EVENTS, HEADERS, EVENTS_VERSION, {"StartRequests": [{"EventId": id}]}
                )
            except MetadataError as failure:
                error = str(failure)
            else:
                if response.status == 200:
                    return
                error = str(status_error(response))
            await asyncio.sleep(1.0)
        log.warning(
            "notice.acknowledge_failed", source=self.name, id=id, error=error, next="the event begins as scheduled"
        )

    async def _fetch_events(self) -> NoticeReport:
        response = await self._metadata.get(EVENTS, HEADERS, EVENTS_VERSION, self._events_timeout_s)
        self._events_timeout_s = self._metadata.timeout_s
        await self._name_requested.wait()  # else events of other machines would count until the name is known
        report = parse_response(response, lambda body: parse_events(body, self._machine), none=())
        self._own_event_ids = ids_of_own_events(response.body, self._machine)
        return report

    async def _fetch_name(self) -> NoticeReport:
        if self._machine is not None:  # names don't change
            return NO_NOTICES
        try:
            response = await self._metadata.get(NAME, HEADERS, NAME_QUERY)
            if response.status != 200:
                raise status_error(response)
            self._machine = parse_name(response.body)
        finally:
            self._name_requested.set()
        return NO_NOTICES


def is_this_host(firmware: Firmware) -> bool:
    """Whether the firmware says that this is an Azure machine."""
    return (firmware.dmi("sys_vendor"), firmware.dmi("chassis_asset_tag")) == ("Microsoft Corporation", AZURE_ASSET_TAG)


def parse_name(body: bytes) -> str:
    """The machine's own name, as events list it. Raises ParseError."""
    name = decode_text(body)
    if not _MACHINE.fullmatch(name):  # any other text would hide this machine's events
        raise ParseError(f"not a machine's name: {name!r:.60}")
    return name


def parse_events(body: bytes, machine: str | None) -> NoticeReport:
    """The events that concern `machine`, or all of them if its name is not known. Raises ParseError."""
    return parse_each(_event_list(body), lambda event: _parse_event(event, machine))


def ids_of_own_events(body: bytes, machine: str | None) -> frozenset[str]:
    """The ids of events that concern only `machine`: starting one of these affects no other machine."""
    return frozenset(
        str(event["EventId"])
        for event in _event_list(body)
        if isinstance(event, dict)
        and machine is not None
        and event.get("Resources") == [machine]
        and "EventId" in event
    )


def _event_list(body: bytes) -> list[Any]:
    return json_list(json_object(parse_json(body), "the document").get("Events"), "Events")


def _parse_event(event: dict[str, Any], machine: str | None) -> RawNotice | None:
    id = printable_line(text_field(event, "EventId"), 100)
    kind, status = text_field(event, "EventType"), text_field(event, "EventStatus")
    resources = [resource for resource in json_list(event.get("Resources"), "Resources") if isinstance(resource, str)]
    if kind not in LONGEST_WARNING_S or status not in ("Scheduled", "Started") or not id:
        raise ParseError(f"not a scheduled event: EventId {id!r}, type {kind!r:.40}, status {status!r:.40}")
    if machine is not None and machine not in resources:
        return None
    began = status == "Started"
    not_before = text_field(event, "NotBefore")  # empty once it has started
    begins = parse_http_date(not_before) if not_before else None
    when = "now" if began or begins is None else f"at {format_time(begins)}"
    if kind == "Freeze":
        return _parse_freeze(event, id, when, began)
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


def _parse_freeze(event: dict[str, Any], id: str, when: str, began: bool) -> RawNotice | None:
    """A pause: worth a checkpoint unless it is known to be short, but never worth stopping for."""
    duration_s = event.get("DurationInSeconds", -1)
    if isinstance(duration_s, int) and 0 <= duration_s < HARMLESS_FREEZE_S:
        return None
    return RawNotice(
        slot=id,
        id=id,
        kind=NoticeKind.FREEZE if began else NoticeKind.MAINTENANCE,  # nothing is paused until it begins
        certainty=Certainty.POSSIBLE,
        gone_wall_at=None,
        warning_s=None,
        is_cancellable=True,
        text=f"Azure: this machine freezes {when}, for {_duration_text(duration_s)}",
    )


def _duration_text(duration_s: object) -> str:
    is_known = isinstance(duration_s, int) and duration_s >= 0
    return f"{str(duration_s)[:12]} s" if is_known else "an unknown time"
