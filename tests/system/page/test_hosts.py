"""The page of several hosts in a real browser: two daemons, and a host that is gone."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import Daemon, job
from tests.system.page.browser import row, server, violations_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

BROKEN = "[program:broken]\ncommand=/bin/sh -c 'echo no model >&2; exit 3'\nstartretries=0\n"


@contextmanager
def shown(hosts: Path) -> Iterator[str]:
    """Gives the address of the page."""
    command = [sys.executable, "-m", "supervisor.ctl.main", "--hosts", str(hosts), "page"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)


def test_hosts_are_in_one_list_and_lead_to_their_own_pages(tmp_path: Path, port: int, page: Any, axe: str):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    trained = job("count", tmp_path / "a", STEPS=1_000_000, EVERY=50, STEP_S=0.01)
    hosts = tmp_path / "hosts"
    with (
        Daemon(tmp_path / "a", server(port) + trained + BROKEN) as first,
        Daemon(tmp_path / "b", "[program:web]\ncommand=/bin/sleep 100000\n") as second,
    ):
        hosts.write_text(f"gpu-1 http://127.0.0.1:{port}\ngpu-2 unix://{second.socket}\ngpu-3 unix://{tmp_path}/none\n")
        first.until_step("count", 60)
        with shown(hosts) as url:
            page.goto(url)
            page.locator("#identifier").get_by_text("3 hosts, 1 without an answer").wait_for()
            attention = page.locator(".programs .row.attention")
            assert [text.split("\n")[0] for text in attention.all_inner_texts()] == ["gpu-1:broken", "gpu-3"]
            assert "no such file" in attention.nth(1).inner_text()
            row(page, "gpu-1:count").get_by_text("steps").first.wait_for()
            page.locator(".programs .row").get_by_text("gpu-2:web").wait_for()
            for scheme, width in (("light", 1280), ("dark", 390)):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 800})
                assert violations_of(page, axe) == [], scheme
                assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator(".programs button[data-action]:visible").count() == 0
            assert "#" not in page.url, "the secret is not shown"

            second.call("stop", name="web")
            page.locator(".programs .row", has_text="gpu-2:web").get_by_text("Stopped").wait_for()
            page.reload()
            page.locator("#filter").fill("count")
            row(page, "gpu-1:broken").wait_for(state="hidden")
            page.get_by_role("link", name="gpu-1:count", exact=True).click()
            page.get_by_role("heading", name="count").wait_for()
            page.go_back()
            page.locator("#identifier").get_by_text("3 hosts").wait_for()
        page.locator("#connection").get_by_text("supervisorctl does not answer").wait_for()
