"""A real browser."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.page.browser import CHROMIUM

WAIT_MS = 60_000


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("plotly", reason="plotly is not installed")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; apt-get install chromium")
    with api.sync_playwright() as player:
        found = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1300, "height": 900})  # in a context of its own: no cookie is shared
    opened.set_default_timeout(WAIT_MS)
    opened.errors = []
    opened.on("console", lambda message: opened.errors.extend(errors_in(message)))
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.on("dialog", lambda dialog: (opened.errors.append(f"a script ran: {dialog.message}"), dialog.dismiss()))
    yield opened
    errors = list(opened.errors)
    opened.context.close()  # which ends what it is fetching
    assert errors == []


def errors_in(message: Any) -> list[str]:
    """What the console says went wrong, besides the daemon's refusals and absence, which the page shows."""
    is_expected = message.text.startswith("Failed to load resource")
    return [] if message.type != "error" or is_expected else [message.text]


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, an accessibility checker (MPL 2.0), from npm."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "axe-core@4"]
    found = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=120)
    if found.returncode:
        pytest.skip(f"npm cannot install axe-core: {found.stderr[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
