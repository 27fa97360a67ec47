"""The stream of what pages show: everything first, then what changes; nothing while no page is open."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor.control.commands.status import StatusAnswer
from supervisor.control.http import web
from supervisor.control.page import live
from tests.waiting import stays_async, wait_until_async

REQUEST: Any = None


class Fleet:
    """Programs as `status` would give them."""

    def __init__(self) -> None:
        self.programs: dict[str, dict[str, object]] = {}
        self.looks = 0

    async def status(self, context: object) -> StatusAnswer:
        self.looks += 1
        found = [SimpleNamespace(name=name, **fields) for name, fields in self.programs.items()]
        return StatusAnswer(tuple(found), None, None)  # type: ignore[arg-type]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    found = Fleet()
    monkeypatch.setattr(live, "status", found.status)
    monkeypatch.setattr(live, "_visible", vars)
    monkeypatch.setattr(live, "LOOK_EVERY_S", 0.01)
    return found


@pytest.fixture
def pages() -> live.LivePages:
    context: Any = SimpleNamespace(settings=SimpleNamespace(identifier="test"), programs=SimpleNamespace(closing=False))
    return live.LivePages(context)


class Page:
    """What one browser reads."""

    def __init__(self, answer: web.Response) -> None:
        self.stream: Any = answer.body

    async def read(self) -> dict[str, Any]:
        while True:
            piece = (await asyncio.wait_for(anext(self.stream), 20)).decode()
            if piece.startswith("event: status\n"):
                return dict(json.loads(piece.partition("data: ")[2]))


async def test_page_gets_everything_and_then_what_changes(fleet: Fleet, pages: live.LivePages):
    fleet.programs = {"a": {"step": 1}, "<b>": {"step": 1}}
    page = Page(await pages.respond(REQUEST))
    first = await page.read()
    fleet.programs["a"] = {"step": 2}
    second = await page.read()
    del fleet.programs["<b>"]
    third = await page.read()
    await page.stream.aclose()

    assert first["all"]
    assert first["programs"] == {"a": {"name": "a", "step": 1}, "<b>": {"name": "<b>", "step": 1}}
    assert first["daemon"]["identifier"] == "test"
    assert (second["all"], second["programs"], second["removed"]) == (False, {"a": {"name": "a", "step": 2}}, [])
    assert (third["programs"], third["removed"]) == ({}, ["<b>"])


async def test_page_that_reads_slowly_gets_the_newest_state_and_nothing_piles_up(fleet: Fleet, pages: live.LivePages):
    fleet.programs = {"a": {"step": 0}}
    page = Page(await pages.respond(REQUEST))
    await page.read()
    for step in range(1, 20):
        fleet.programs["a"] = {"step": step}
        looks = fleet.looks
        await wait_until_async(lambda looks=looks: fleet.looks > looks, "it is looked at")
    await wait_until_async(lambda looks=fleet.looks: fleet.looks > looks + 1, "the last look is passed on")

    assert (await page.read())["programs"]["a"]["step"] == 19
    await page.stream.aclose()


async def test_second_page_gets_everything_too(fleet: Fleet, pages: live.LivePages):
    fleet.programs = {"a": {"step": 0}}
    first = Page(await pages.respond(REQUEST))
    await first.read()
    fleet.programs = {"b": {"step": 0}}
    await first.read()
    second = Page(await pages.respond(REQUEST))

    found = await second.read()

    assert (found["all"], list(found["programs"]), found["removed"]) == (True, ["b"], [])
    await first.stream.aclose()
    await second.stream.aclose()


async def test_nothing_is_looked_at_while_no_page_is_open(fleet: Fleet, pages: live.LivePages):
    page = Page(await pages.respond(REQUEST))
    await page.read()
    await page.stream.aclose()
    before = fleet.looks

    await stays_async(lambda: fleet.looks == before, "nobody looks", 0.1)
    page = Page(await pages.respond(REQUEST))
    assert (await page.read())["all"], "a later page begins anew"
    await page.stream.aclose()


async def test_more_pages_than_the_limit_are_refused(fleet: Fleet, pages: live.LivePages, monkeypatch: Any):
    monkeypatch.setattr(live, "MAX_PAGES", 1)
    page = Page(await pages.respond(REQUEST))
    await page.read()

    with pytest.raises(web.RequestRefused):
        await pages.respond(REQUEST)
    await page.stream.aclose()
    await pages.respond(REQUEST)


async def test_look_that_fails_ends_nothing(fleet: Fleet, pages: live.LivePages, monkeypatch: Any):
    fleet.programs = {"a": {"step": 0}}
    page = Page(await pages.respond(REQUEST))
    await page.read()

    async def broken(context: object) -> StatusAnswer:
        monkeypatch.setattr(live, "status", fleet.status)
        raise RuntimeError("a defect")

    monkeypatch.setattr(live, "status", broken)
    fleet.programs = {"a": {"step": 1}}

    assert (await page.read())["programs"]["a"]["step"] == 1
    await page.stream.aclose()
