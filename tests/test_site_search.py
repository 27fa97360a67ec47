"""The search of the documentation's site, opened from a folder without a server, in Chromium."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.places import ROOT
from tests.system.page.browser import CHROMIUM

SITE = ROOT / "build" / "site"


@pytest.fixture
def page() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built; run make docs")
    with api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.mark.integration
@pytest.mark.parametrize("place", ["index.html", "source/examples/digits.py.html"])
def test_the_search_finds_a_page_from_files(page: Any, place: str):
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((SITE / place).as_uri())
    page.locator("body").press("/")

    page.locator(".md-search__input").press_sequentially("quarantine", delay=30)

    page.locator(".md-search-result__link").first.wait_for()
    assert "storage.html" in {href.partition("?")[0].rpartition("/")[2] for href in _links(page)}
    assert {url.partition(":")[0] for url in asked} <= {"file", "data", "about", "blob"}


def _links(page: Any) -> list[str]:
    return [link.get_attribute("href") for link in page.locator(".md-search-result__link").all()]
