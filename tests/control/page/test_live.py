"""The stream of what pages show: everything first, then what changes; nothing while no page is open."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from supervisor.control.commands.status import StatusAnswer
from supervisor.control.http import web
from supervisor.control.page.live import LivePages
from tests.gpu_host import no_gpus
from tests.waiting import stays_async, wait_until_async

REQUEST: Any = None


class Fleet:
    """Programs as `status` would give them."""

    def __init__(self) -> None:
        self.steps: dict[str, int] = {}
        self.looks = 0
        self.is_broken = False
        self.on_read: Callable[[], object] = lambda: None

    async def status(self, context: object) -> StatusAnswer:
        self.looks += 1
        await asyncio.sleep(0)  # as for those who look at scripts
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("a defect")
        on_read, self.on_read = self.on_read, lambda: None
        on_read()
        programs = [Program(name, step) for name, step in self.steps.items()]
        return StatusAnswer(tuple(programs), None, None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Program:
    """What pages are to show of it."""

    name: str
    step: int
    wire_state: str = "STOPPED"


def shown(name: str, step: int) -> dict[str, object]:
    return {"name": name, "step": step, "wire_state": "STOPPED"}


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def pages(fleet: Fleet) -> LivePages:
    context: Any = SimpleNamespace(
        settings=SimpleNamespace(identifier="test", logfile=None),
        programs=SimpleNamespace(closing=False, configuration=SimpleNamespace(remarks=())),
        gpus=no_gpus(),
    )
    return LivePages(context, look_every_s=0.01, max_pages=2, look=fleet.status)


class Page:
    """What one browser reads."""

    def __init__(self, answer: web.Response) -> None:
        self.stream: Any = answer.body

    async def read(self) -> dict[str, Any]:
        while True:
            piece = (await asyncio.wait_for(anext(self.stream), 20)).decode()
            if piece.startswith("event: status\n"):
                return dict(json.loads(piece.partition("data: ")[2]))


async def test_page_gets_everything_and_then_what_changes(fleet: Fleet, pages: LivePages):
    fleet.steps = {"a": 1, "<b>": 1}
    page = Page(await pages.respond(REQUEST))
    first = await page.read()
    fleet.steps["a"] = 2
    second = await page.read()
    del fleet.steps["<b>"]
    third = await page.read()
    await page.stream.aclose()

    assert first["all"]
    assert first["programs"] == {"a": shown("a", 1), "<b>": shown("<b>", 1)}
    assert first["daemon"]["identifier"] == "test"
    assert (second["all"], second["programs"], second["removed"]) == (False, {"a": shown("a", 2)}, [])
    assert (third["programs"], third["removed"]) == ({}, ["<b>"])


async def test_page_that_reads_slowly_gets_the_newest_state_and_nothing_piles_up(fleet: Fleet, pages: LivePages):
    fleet.steps = {"a": 0}
    page = Page(await pages.respond(REQUEST))
    await page.read()
    for step in range(1, 20):
        fleet.steps["a"] = step
        looks = fleet.looks
        await wait_until_async(lambda looks=looks: fleet.looks > looks, "it is looked at")
    await wait_until_async(lambda looks=fleet.looks: fleet.looks > looks + 1, "the last look is passed on")

    assert (await page.read())["programs"]["a"]["step"] == 19
    await page.stream.aclose()


async def test_page_whose_connection_is_ended_as_something_changes_ends_too(fleet: Fleet, pages: LivePages):
    """As when the daemon leaves, which waits for its connections."""
    fleet.steps = {"a": 0}
    page = Page(await pages.respond(REQUEST))
    await page.read()

    async def read_on() -> None:
        async for _ in page.stream:
            pass

    reading = asyncio.create_task(read_on())
    await wait_until_async(lambda looks=fleet.looks: fleet.looks > looks, "it waits for a change")
    fleet.steps["a"] = 1
    fleet.on_read = lambda: asyncio.get_running_loop().call_soon(reading.cancel)
    await asyncio.wait({reading}, timeout=5)

    assert reading.cancelled()


async def test_second_page_gets_everything_too(fleet: Fleet, pages: LivePages):
    fleet.steps = {"a": 0}
    first = Page(await pages.respond(REQUEST))
    await first.read()
    fleet.steps = {"b": 0}
    await first.read()
    second = Page(await pages.respond(REQUEST))

    update = await second.read()

    assert (update["all"], list(update["programs"]), update["removed"]) == (True, ["b"], [])
    await first.stream.aclose()
    await second.stream.aclose()


async def test_nothing_is_looked_at_while_no_page_is_open(fleet: Fleet, pages: LivePages):
    page = Page(await pages.respond(REQUEST))
    await page.read()
    await page.stream.aclose()
    before = fleet.looks

    await stays_async(lambda: fleet.looks == before, "nobody looks", 0.1)
    page = Page(await pages.respond(REQUEST))
    assert (await page.read())["all"], "a later page begins anew"
    await page.stream.aclose()


async def test_pages_that_come_back_together_have_one_look_in_common(fleet: Fleet, pages: LivePages):
    """After a restart of the daemon all of them do."""
    both = [Page(await pages.respond(REQUEST)), Page(await pages.respond(REQUEST))]
    await asyncio.gather(*(page.read() for page in both))
    for page in both:
        await page.stream.aclose()
    before = fleet.looks

    await stays_async(lambda: fleet.looks == before, "nobody looks", 0.1)


async def test_more_pages_than_the_limit_are_refused(fleet: Fleet, pages: LivePages):
    page, other = Page(await pages.respond(REQUEST)), Page(await pages.respond(REQUEST))
    await page.read()
    await other.read()

    with pytest.raises(web.RequestRefused):
        await pages.respond(REQUEST)
    await page.stream.aclose()
    await pages.respond(REQUEST)
    await other.stream.aclose()


async def test_look_that_fails_ends_nothing(fleet: Fleet, pages: LivePages):
    fleet.steps = {"a": 0}
    page = Page(await pages.respond(REQUEST))
    await page.read()

    fleet.is_broken = True
    with structlog.testing.capture_logs() as logged:  # to show a traceback takes long, and looks have their share
        fleet.steps = {"a": 1}

        assert (await page.read())["programs"]["a"]["step"] == 1
    assert [line["event"] for line in logged] == ["internal.failed"]
    await page.stream.aclose()
