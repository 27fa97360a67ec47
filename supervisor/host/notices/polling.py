"""Asks the questions of one source for ever, each at its own pace, and says when it can't."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass

import structlog

from supervisor.host.notices.announcement import NO_NOTICES, ClockReading, NoticeReport, read_clocks
from supervisor.host.notices.heard import Heard
from supervisor.host.notices.metadata import MetadataError, MetadataResponse, status_error
from supervisor.host.notices.parsing import ParseError
from supervisor.host.notices.source import NoticeSink

RETRY_CAP_S = 10.0  # a spot notice may leave 30 s: whoever waits longer than this between tries sleeps through it
JITTER = 0.25  # so that a rack of hosts that lost its server together doesn't come back together

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PolledEndpoint:
    """Something to ask again and again. `every_s`: from the start of one to the start of the next.

    `ask` raises MetadataError or ReadingError.
    """

    name: str
    what: str
    every_s: float
    ask: Callable[[], Awaitable[NoticeReport]]


class EndpointErrors:
    """Which questions of a source get no answer at present; the sink hears of the source as a whole."""

    def __init__(self, source: str, sink: NoticeSink) -> None:
        self._source = source
        self._sink = sink
        self._errors: dict[str, str] = {}

    def record(self, question: str, error: str | None) -> None:
        """Takes how the latest try went. The sink hears each of them: the last success is worth knowing."""
        if error is None:
            self._errors.pop(question, None)
        else:
            self._errors[question] = error  # keeps its place: of several the same one is told until it is over
        self._sink.troubled(self._source, next(iter(self._errors.values()), None))


@dataclass(frozen=True, slots=True)
class EndpointPoller:
    """How one source asks. `remedy`: what people can do where there is no answer at all."""

    source: str
    server: str
    remedy: str
    questions: Sequence[PolledEndpoint]
    clock: Callable[[], ClockReading] = read_clocks
    retry_cap_s: float = RETRY_CAP_S

    async def run(self, sink: NoticeSink) -> None:
        """Asks all questions, side by side, until cancelled."""
        heard, troubles = Heard(self.source, sink), EndpointErrors(self.source, sink)
        async with asyncio.TaskGroup() as group:
            for question in self.questions:
                group.create_task(self._repeat(question, heard, troubles))

    async def _repeat(self, question: PolledEndpoint, heard: Heard, troubles: EndpointErrors) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            asked_at = loop.time()
            error = await self._ask(question, heard)
            troubles.record(question.name, error)
            failures = 0 if error is None else failures + 1
            next_at = asked_at + retry_s(question.every_s, failures, self.retry_cap_s)
            await asyncio.sleep(max(0.0, next_at - loop.time()))

    async def _ask(self, question: PolledEndpoint, heard: Heard) -> str | None:
        """Asks once and passes on what was heard; gives what went wrong."""
        cannot = f"cannot ask the {self.server} metadata server for {question.what}"
        try:
            reading = await question.ask()
            heard.hear(question.name, reading, self.clock())
        except MetadataError as error:
            return f"{cannot}: {error}; {self.remedy}"
        except ParseError as error:
            return f"{cannot}: {error}; notices from it are not understood, so report this answer"
        except Exception as error:  # a source has to outlive whatever it meets, and the host's others with it
            log.exception("notices.failed", source=self.source, question=question.name)
            return f"{cannot}: an error of stepkeeper's own ({error!r:.200}); the log has the story, so report it"
        if reading.problem:
            return f"{cannot}: {reading.problem}; what else it said was understood"
        return None


def retry_s(every_s: float, failures: int, cap_s: float = RETRY_CAP_S) -> float:
    """How long after the start of a try the next one begins: doubled by each failure up to `cap_s`, with jitter.

    Never less than `every_s`.
    """
    if failures == 0:
        return every_s
    doubled = min(every_s * 2.0 ** min(failures - 1, 30), max(cap_s, every_s))
    return doubled * (1 + JITTER * random.random())  # noqa: S311 - spreads load, guards nothing


def parse_response(
    answer: MetadataResponse, read: Callable[[bytes], NoticeReport], none: Container[int] = (404,)
) -> NoticeReport:
    """What an answer says: 200 is read, the statuses in `none` say that nothing will happen, others say nothing.

    Raises MetadataError for those, and what `read` raises.
    """
    if answer.status in none:
        return NO_NOTICES
    if answer.status != 200:
        raise status_error(answer)
    return read(answer.body)
