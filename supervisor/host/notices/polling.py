"""Polls the endpoints of one source, each at its own interval, and reports what they say and what goes wrong."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from supervisor.core.notices.notice import NO_NOTICES, NoticeReport, RawNotice
from supervisor.host.notices.metadata import REQUEST_TIMEOUT_S, MetadataError, MetadataResponse, status_error
from supervisor.host.notices.parsing import ParseError, json_object
from supervisor.host.notices.source import NoticeSink, read_clocks

RETRY_CAP_S = 10.0  # a spot notice may leave 30 s, so a longer pause between two tries could miss it
JITTER = 0.25  # hosts of a rack that lost their server together do not come back together

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PolledEndpoint:
    """Something to poll. `what`: for messages. `every_s`: from the start of one request to the start of the next.

    `fetch` raises MetadataError or ParseError.
    """

    name: str
    what: str
    every_s: float
    fetch: Callable[[], Awaitable[NoticeReport]]


@dataclass(frozen=True, slots=True)
class PollTimes:
    """`timeout_s`: for one request. `retry_cap_s`: the longest pause after failures. `every_s`: instead of each
    endpoint's own interval."""

    timeout_s: float = REQUEST_TIMEOUT_S
    retry_cap_s: float = RETRY_CAP_S
    every_s: float | None = None


DEFAULT_TIMES = PollTimes()


class EndpointErrors:
    """Which endpoints of a source fail at present; the sink gets one state for the whole source."""

    def __init__(self, source: str, sink: NoticeSink) -> None:
        self._source = source
        self._sink = sink
        self._errors: dict[str, str] = {}

    def record(self, endpoint: str, error: str | None) -> None:
        """Records the result of the latest request, and reports the source's health after every one of them."""
        if error is None:
            self._errors.pop(endpoint, None)
        else:
            self._errors[endpoint] = error  # in the order of their first failure: the one reported stays until it ends
        self._sink.on_source_health(self._source, next(iter(self._errors.values()), None))


class PolledSource:
    """A source that polls a metadata server. `server`: its name in messages; `remedy`: what to do if it is silent."""

    def __init__(
        self,
        name: str,
        server: str,
        remedy: str,
        endpoints: Sequence[PolledEndpoint],
        *,
        shortest_s: float | None = None,
        times: PollTimes = DEFAULT_TIMES,
    ) -> None:
        self.name = name
        self.shortest_s = shortest_s
        self._server = server
        self._remedy = remedy
        self._endpoints = endpoints
        self._times = times

    async def watch(self, sink: NoticeSink) -> None:
        """Polls all endpoints, side by side, until cancelled."""
        errors = EndpointErrors(self.name, sink)
        async with asyncio.TaskGroup() as group:
            for endpoint in self._endpoints:
                group.create_task(self._poll(endpoint, sink, errors))

    async def acknowledge(self, id: str) -> None:
        """Does nothing: most providers do not wait."""

    async def _poll(self, endpoint: PolledEndpoint, sink: NoticeSink, errors: EndpointErrors) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            began_at = loop.time()
            error = await self._fetch_once(endpoint, sink)
            errors.record(endpoint.name, error)
            failures = 0 if error is None else failures + 1
            every_s = self._times.every_s or endpoint.every_s
            next_at = began_at + retry_s(every_s, failures, self._times.retry_cap_s)
            await asyncio.sleep(max(0.0, next_at - loop.time()))

    async def _fetch_once(self, endpoint: PolledEndpoint, sink: NoticeSink) -> str | None:
        """Reports what the endpoint says; returns the error, None if there was none."""
        cannot = f"cannot ask the {self._server} metadata server for {endpoint.what}"
        try:
            report = await endpoint.fetch()
            sink.on_report(self.name, endpoint.name, report, read_clocks())
        except MetadataError as error:
            return f"{cannot}: {error}; {self._remedy}"
        except ParseError as error:
            return f"{cannot}: {error}; its notices are not understood, please report this answer"
        except Exception as error:  # a bug must stop neither this source nor the others of this host
            log.exception("notices.failed", source=self.name, endpoint=endpoint.name)
            return f"{cannot}: internal error {error!r:.200}; the log has the traceback, please report it"
        if report.problem:
            return f"{cannot}: {report.problem}; the rest of its answer was understood"
        return None


def retry_s(every_s: float, failures: int, cap_s: float = RETRY_CAP_S) -> float:
    """How long after the start of a request the next one begins: doubled by each failure up to `cap_s`, with jitter.

    Never less than `every_s`.
    """
    if failures == 0:
        return every_s
    doubled = min(every_s * 2.0 ** min(failures - 1, 30), max(cap_s, every_s))
    return doubled * (1 + JITTER * random.random())  # noqa: S311 - spreads load, guards nothing


def parse_response(
    response: MetadataResponse, parse: Callable[[bytes], NoticeReport], none: Container[int] = (404,)
) -> NoticeReport:
    """Parses a response: status 200 is parsed, the statuses in `none` say that nothing is going to happen.

    Raises MetadataError for any other status, and what `parse` raises.
    """
    if response.status in none:
        return NO_NOTICES
    if response.status != 200:
        raise status_error(response)
    return parse(response.body)


def parse_each(entries: list[Any], parse: Callable[[dict[str, Any]], RawNotice | None]) -> NoticeReport:
    """The notices of a list of scheduled events; one that is not understood is a problem, and does not hide the others.

    `parse` gives None for an event that is no notice, and raises ParseError.
    """
    notices, problem = [], ""
    for entry in entries:
        try:
            notice = parse(json_object(entry, "a scheduled event"))
        except ParseError as error:
            problem = str(error)
            continue
        if notice is not None:
            notices.append(notice)
    return NoticeReport(tuple(notices), problem)
