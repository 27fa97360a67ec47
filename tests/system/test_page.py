"""The page in a real browser: a job trained and killed, every button, the daemon restarted beneath it."""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.proof import Difference, KillPlace, ProofKill, ProofReport, Verdict
from tests.system.harness import Daemon, job

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LOUD = f"""[program:loud<b>]
command=/bin/sh -c 'echo "{EVIL}"; echo "{EVIL}" >&2; exec sleep 100000'
"""
BROKEN = f"""[program:broken]
command=/bin/sh -c 'echo "{EVIL}" >&2; exit 3'
startretries=0
"""
WAIT_MS = 60_000
KILLS = (ProofKill(KillPlace.STEP, 30),) * 3


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
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
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    opened.set_default_timeout(WAIT_MS)
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.on("dialog", lambda dialog: (opened.errors.append(f"a script ran: {dialog.message}"), dialog.dismiss()))
    yield opened
    assert opened.errors == []


def row(page: Any, name: str) -> Any:
    link = page.get_by_role("link", name=name, exact=True)
    return page.locator("table.programs tbody tr").filter(has=link)


def press(page: Any, place: Any, action: str, *, confirm: bool = False) -> None:
    place.locator(f'button[data-action="{action}"]').click()
    if confirm:
        page.locator("dialog button[value=yes]").click()


def server(port: int, more: str = "") -> str:
    return f"[inet_http_server]\nport=127.0.0.1:{port}\n{more}"


def test_job_is_watched_and_commanded_from_a_browser(tmp_path: Path, port: int, page: Any):
    programs = (
        server(port) + LOUD + BROKEN + job("count", tmp_path, STEPS=1_000_000, EVERY=50, STEP_S=0.01, METRIC=EVIL)
    )
    with Daemon(tmp_path, programs) as daemon:
        pid = daemon.until_step("count", 60)["pid"]
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "count").get_by_text("RUNNING").wait_for()
        row(page, "broken").get_by_text("FATAL").wait_for()

        # the list's buttons
        press(page, row(page, "count"), "checkpoint")
        page.get_by_text("checkpoint count: done").wait_for()
        press(page, row(page, "loud<b>"), "stop", confirm=True)
        row(page, "loud<b>").get_by_text("STOPPED").wait_for()
        assert daemon.status("loud<b>")["state"] == "STOPPED"
        press(page, row(page, "loud<b>"), "start")
        row(page, "loud<b>").get_by_text("RUNNING").wait_for()
        before = daemon.status("loud<b>")["pid"]
        press(page, row(page, "loud<b>"), "restart", confirm=True)
        daemon.until(lambda: daemon.status("loud<b>")["pid"] not in (None, before), "it is restarted")
        row(page, "loud<b>").locator('button[data-action="signal"]').click()
        page.locator("dialog select").select_option("KILL")
        killed = daemon.status("loud<b>")["pid"]
        page.locator("dialog button[value=yes]").click()
        daemon.until(lambda: daemon.status("loud<b>")["pid"] != killed, "it got the signal")
        page.locator("#filter").fill("cou")
        row(page, "broken").wait_for(state="hidden")
        page.locator("#filter").fill("")

        # the job's page, through a death of the worker
        page.get_by_role("link", name="count", exact=True).click()
        page.get_by_role("heading", name="count").wait_for()
        page.get_by_text("step-").first.wait_for()
        os.kill(pid, signal.SIGKILL)
        page.get_by_role("cell", name="crash", exact=True).first.wait_for()
        page.locator(".bar i.training").first.wait_for(state="attached")
        page.locator(".plot .main-svg").first.wait_for()
        page.locator(".life .mark.death").first.wait_for(state="attached")
        daemon.call("drill", name="count", in_s=3000)
        page.locator(".life .mark.notice").first.wait_for(state="attached")
        page.locator(".plot text").filter(has_text="notice").first.wait_for(state="attached")
        page.locator(".plot text").filter(has_text="crash").first.wait_for(state="attached")
        page.locator(".plot text").filter(has_text=EVIL).first.wait_for(state="attached")

        # a damaged checkpoint is shown with the reason
        daemon.call("stop", name="count")
        newest = max((tmp_path / "count").glob("step-*"))
        (newest / "MANIFEST.json").write_text("{")
        daemon.call("start", name="count")
        page.get_by_text("quarantined:").first.wait_for()

        # what programs say stays text
        page.goto(f"http://127.0.0.1:{port}/#/program/broken")
        page.get_by_role("heading", name="broken").wait_for()
        page.get_by_label("Which log").select_option("stderr")
        page.locator("pre.log").filter(has_text=EVIL).wait_for()
        page.get_by_role("button", name="What attempt 1 printed").click()
        assert page.get_by_label("Of which attempt").input_value() == "1"
        page.locator("pre.log").filter(has_text=EVIL).wait_for()
        page.get_by_label("Which log").select_option("stdout")
        page.locator("pre.log").filter(has_not_text=EVIL).wait_for()
        page.get_by_label("Of which attempt").select_option("live")
        page.get_by_label("Which log").select_option("stderr")
        page.get_by_label("Show lines with").fill("no such line")
        page.locator("pre.log").filter(has_not_text=EVIL).wait_for()
        assert page.locator("img").count() == 0
        press(page, page.locator("article"), "clear", confirm=True)
        page.get_by_text("clear broken: done").wait_for()

        # the daemon goes away and comes back beneath the page
        page.goto(f"http://127.0.0.1:{port}/#/")
        daemon.die()
        page.get_by_text("the daemon does not answer").wait_for()
        daemon.start()
        page.get_by_text("live", exact=True).wait_for()
        row(page, "count").get_by_text("RUNNING").wait_for()


def test_a_jobs_newest_proof_is_among_its_facts_as_text(tmp_path: Path, port: int, page: Any):
    differences = (Difference(f"metric {EVIL}", 41, "0.5", "0.25"),)
    known = {
        "count": ProofReport(Verdict.EXACT, "count", time.time() - 3 * 86400 - 60, 9.0, 214, kills=KILLS),
        "other": ProofReport(Verdict.DIFFERENT, "other", 1e9, 9.0, differences=differences, remedy="keep it"),
    }
    (tmp_path / "state").mkdir()
    with closing(Ledger(tmp_path / "state" / "ledger.sqlite3")) as ledger:
        for name, report in known.items():
            ledger.proofs.store(name, report)
    with Daemon(tmp_path, server(port) + "".join(job(name, tmp_path) for name in known)):
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name="count", exact=True).click()
        page.get_by_text("proven exact 3 days ago (3 kills, 214 steps)").wait_for()
        page.get_by_role("link", name="All programs").click()
        page.get_by_role("link", name="other", exact=True).click()
        page.get_by_text(f"metric {EVIL} at step 41: 0.5 undisturbed, 0.25 killed").wait_for()
        page.get_by_text("keep it", exact=True).wait_for()


def test_page_of_another_site_changes_nothing(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + LOUD) as daemon:
        daemon.until_state("loud<b>", "RUNNING")
        (tmp_path / "evil.html").write_text(
            f'<form id=f method=post enctype="text/plain" action="http://127.0.0.1:{port}/api/v1/shutdown">'
            f"<input name='{{\"a\":\"' value='\"}}'></form><script>"
            f'fetch("http://127.0.0.1:{port}/api/v1/stop", {{method: "POST", mode: "no-cors", '
            f'body: \'{{"name": "loud<b>"}}\'}})'
            f".finally(() => document.getElementById('f').submit())</script>"
        )
        page.goto((tmp_path / "evil.html").as_uri())
        page.get_by_text("web pages of other servers are refused").wait_for()

        assert daemon.status("loud<b>")["state"] == "RUNNING"
        assert daemon.events("daemon.leaving") == []


def test_thousand_programs_are_shown(tmp_path: Path, port: int, page: Any):
    many = "[program:many]\ncommand=/bin/sleep 100000\nautostart=false\nnumprocs=1000\nprocess_name=%(process_num)04d\n"
    with Daemon(tmp_path, server(port) + many) as daemon:
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("table.programs tbody tr").nth(999).wait_for()
        daemon.call("start", name="many:0999")

        row(page, "many:0999").get_by_text("RUNNING").wait_for()


def test_page_asks_for_the_password_and_works_with_it(tmp_path: Path, port: int, browser: Any):
    with Daemon(tmp_path, server(port, "username=me\npassword=secret\n") + LOUD):
        with pytest.raises(Exception, match="ERR_INVALID_AUTH_CREDENTIALS"):
            browser.new_page().goto(f"http://127.0.0.1:{port}/")
        known = browser.new_context(http_credentials={"username": "me", "password": "secret"}).new_page()
        known.goto(f"http://127.0.0.1:{port}/")

        row(known, "loud<b>").get_by_text("RUNNING").wait_for(timeout=WAIT_MS)
        press(known, row(known, "loud<b>"), "stop", confirm=True)
        row(known, "loud<b>").get_by_text("STOPPED").wait_for(timeout=WAIT_MS)


def test_a_restart_that_can_not_save_is_refused_with_its_words_until_the_user_insists(
    tmp_path: Path, port: int, page: Any
) -> None:
    section = job("count", tmp_path, "flush_timeout=1\nstopwaitsecs=1", STEPS=1_000_000, EVERY=50, STEP_S=0.01)
    with Daemon(tmp_path, server(port) + section) as daemon:
        pid = daemon.until_step("count", 60)["pid"]
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "count").get_by_text("RUNNING").wait_for()
        os.kill(pid, signal.SIGSTOP)

        press(page, row(page, "count"), "restart", confirm=True)
        page.locator("dialog").get_by_text("no checkpoint came within 1 s (flush_timeout); count trains on").wait_for()
        page.locator('dialog button[value=""]').click()
        page.locator("#said").get_by_text("count trains on").wait_for()
        assert daemon.status("count")["pid"] == pid

        press(page, row(page, "count"), "restart", confirm=True)
        page.locator("dialog").get_by_text("Restart it nevertheless?").wait_for()
        page.locator("dialog button[value=yes]").click()
        page.locator("#said").get_by_text("will be trained again").wait_for()
        daemon.until(lambda: daemon.status("count")["pid"] not in (None, pid), "it is restarted")
