"""The page in a real browser: a job trained and killed, every button, the daemon restarted beneath it."""

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.host.ledger.ledger import Ledger
from supervisor.protocol.proof import Difference, KillPlace, ProofKill, ProofReport, Verdict
from tests.gpu_host import UUIDS, GpuDaemon, GpuHost
from tests.system.harness import Daemon, job
from tests.system.page.browser import row, server, violations_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
LOUD = f"""[program:loud<b>]
command=/bin/sh -c 'echo "{EVIL}"; echo "{EVIL}" >&2; exec sleep 100000'
"""
BROKEN = f"""[program:broken]
command=/bin/sh -c 'echo "{EVIL}" >&2; exit 3'
startretries=0
"""

SOON_MS = 10_000  # before the page asks again for what it asked at its beginning, or takes away what it said
KILLS = (ProofKill(KillPlace.STEP, 30),) * 3


def press(page: Any, place: Any, action: str, *, confirm: bool = False) -> None:
    """Presses the button that a program's state asks for, or what its menu has."""
    if action in ("start", "stop"):
        place.locator(f'button[data-action="{action}"]').click()
    else:
        place.locator('button[data-action="menu"]').click()
        page.locator(f'.popup [data-action="{action}"]').click()
    if confirm:
        page.locator("dialog button[value=yes]").click()


def pressed(page: Any, group: str) -> str:
    found = page.get_by_role("group", name=group).locator('[aria-pressed="true"]')
    return str(found.get_attribute("data-value"))


def test_job_is_watched_and_commanded_from_a_browser(tmp_path: Path, port: int, page: Any):
    programs = (
        server(port) + LOUD + BROKEN + job("count", tmp_path, STEPS=1_000_000, EVERY=50, STEP_S=0.01, METRIC=EVIL)
    )
    with Daemon(tmp_path, programs) as daemon:
        pid = daemon.until_step("count", 60)["pid"]
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "count").get_by_text("Running").wait_for()
        row(page, "broken").get_by_text("Fatal").wait_for()

        # the list's buttons
        press(page, row(page, "count"), "checkpoint")
        page.get_by_text("checkpoint count: done").wait_for()
        press(page, row(page, "loud<b>"), "stop", confirm=True)
        row(page, "loud<b>").get_by_text("Stopped").wait_for()
        assert daemon.status("loud<b>")["state"] == "STOPPED"
        press(page, row(page, "loud<b>"), "start")
        row(page, "loud<b>").get_by_text("Running").wait_for()
        before = daemon.status("loud<b>")["pid"]
        press(page, row(page, "loud<b>"), "restart", confirm=True)
        daemon.until(lambda: daemon.status("loud<b>")["pid"] not in (None, before), "it is restarted")
        press(page, row(page, "loud<b>"), "signal")
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
        page.locator('tr[title^="step-"]').first.wait_for()
        os.kill(pid, signal.SIGKILL)
        page.get_by_role("cell", name="crash: terminated by SIGKILL").first.wait_for()
        page.locator(".died").get_by_text("terminated by SIGKILL").wait_for()
        page.locator(".bar i.training").first.wait_for(state="attached")
        page.locator(".plot .main-svg").first.wait_for()
        page.locator(".life .mark.death").first.wait_for(state="attached")
        # before the notice: of marks that stand close together only the last keeps its label
        page.locator(".plot text").filter(has_text="crash").first.wait_for(state="attached")
        daemon.call("drill", name="count", in_s=3000)
        page.locator(".life .mark.notice").first.wait_for(state="attached")
        page.locator(".plot text").filter(has_text="notice").first.wait_for(state="attached")
        page.locator(".panel-head b").filter(has_text=EVIL).first.wait_for()

        # a damaged checkpoint is shown with the reason
        daemon.call("stop", name="count")
        newest = max((tmp_path / "count").glob("step-*"))
        (newest / "MANIFEST.json").write_text("{")
        daemon.call("start", name="count")
        page.get_by_text("quarantined:").first.wait_for()

        # what programs say stays text
        page.goto(f"http://127.0.0.1:{port}/#/program/broken")
        page.get_by_role("heading", name="broken").wait_for()
        assert pressed(page, "Which log") == "stderr", "it opens where the reason is"
        page.locator(".log").filter(has_text=EVIL).wait_for()
        page.get_by_role("button", name="What attempt 1 printed").click()
        assert page.get_by_label("Of which attempt").input_value() == "1"
        page.locator(".log").filter(has_text=EVIL).wait_for()
        page.get_by_role("button", name="stdout", exact=True).click()
        page.locator(".log").filter(has_not_text=EVIL).wait_for()
        assert page.locator("img").count() == 0
        press(page, page.locator("article"), "clear", confirm=True)
        page.get_by_text("clear broken: done").wait_for()

        # the daemon goes away and comes back beneath the page
        page.goto(f"http://127.0.0.1:{port}/#/")
        daemon.die()
        page.get_by_text("the daemon does not answer").wait_for()
        daemon.start()
        page.get_by_text("live", exact=True).wait_for()
        row(page, "count").get_by_text("Running").wait_for()


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


def test_of_a_thousand_programs_only_the_rows_in_view_exist(tmp_path: Path, port: int, page: Any):
    many = "[program:many]\ncommand=/bin/sleep 100000\nautostart=false\nnumprocs=1000\nprocess_name=%(process_num)04d\n"
    with Daemon(tmp_path, server(port) + many) as daemon:
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("button", name="many", exact=True).click()
        row(page, "many:0000").wait_for()
        assert page.locator(".programs .row").count() < 100
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        row(page, "many:0999").wait_for()
        assert row(page, "many:0000").count() == 0
        daemon.call("start", name="many:0999")

        row(page, "many:0999").get_by_text("Running").wait_for()


def names(page: Any) -> list[str]:
    return [str(text) for text in page.locator(".programs .row .name a").all_inner_texts()]


def test_list_is_filtered_sorted_and_folded(tmp_path: Path, port: int, page: Any):
    sleeper = "command=/bin/sleep 100000\n"
    programs = f"[program:b]\n{sleeper}[program:a]\n{sleeper}autostart=false\n" + (
        f"[program:few]\n{sleeper}numprocs=2\nprocess_name=%(process_num)d\n" + BROKEN
    )
    with Daemon(tmp_path, server(port) + programs) as daemon:
        daemon.until_state("broken", "FAILED")
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "broken").get_by_text("Fatal").wait_for()

        assert names(page) == ["broken", "a", "b", "few:0", "few:1"], "what is wrong comes first"
        page.locator(".facts-line").get_by_text("last fault: broken").wait_for()
        page.get_by_role("columnheader", name="Program").get_by_role("button").click()
        assert names(page) == ["broken", "few:1", "few:0", "b", "a"]
        page.get_by_role("columnheader", name="State").get_by_role("button").click()
        assert names(page) == ["broken", "b", "few:0", "few:1", "a"]
        page.get_by_role("button", name="few", exact=True).click()
        assert names(page) == ["broken", "b", "a"]
        page.reload()
        row(page, "b").wait_for()
        assert names(page) == ["broken", "a", "b"], "a group stays folded"
        page.keyboard.press("/")
        page.keyboard.type("few running")
        row(page, "few:1").wait_for()
        assert names(page) == ["few:0", "few:1"], "what was looked for is unfolded"
        page.locator("#filter").fill("")
        page.locator('.chip[data-state="STOPPED"]').click()
        assert names(page) == ["a"]
        page.locator('.chip[data-state="FATAL"]').click()
        assert names(page) == ["broken", "a"]
        page.locator('.chip[data-state=""]').click()
        assert len(names(page)) == 3


def test_several_programs_are_commanded_at_once(tmp_path: Path, port: int, page: Any):
    programs = "".join(f"[program:{name}]\ncommand=/bin/sleep 100000\n" for name in ("a", "b", "c"))
    with Daemon(tmp_path, server(port) + programs) as daemon:
        page.goto(f"http://127.0.0.1:{port}/")
        for name in ("a", "b"):
            row(page, name).get_by_role("checkbox").check()
        page.get_by_text("2 programs chosen").wait_for()
        before = daemon.until_state("c", "RUNNING")["pid"]
        page.locator('[data-action="all-stop"]').click()
        page.locator("dialog button[value=yes]").click()
        page.get_by_text("stop 2 programs: done").wait_for()
        assert [daemon.status(name)["state"] for name in "abc"] == ["STOPPED", "STOPPED", "RUNNING"]
        page.locator('[data-action="all-start"]').click(timeout=SOON_MS)  # what was said is not in front of it
        page.get_by_text("start 2 programs: done").wait_for()
        pid = daemon.until_state("a", "RUNNING")["pid"]

        page.get_by_label("Choose all that are shown").check()
        page.locator('[data-action="all-restart"]').click()
        page.locator("dialog button[value=yes]").click()
        page.get_by_text("restart 3 programs: done").wait_for()
        daemon.until(lambda: daemon.status("a")["pid"] not in (None, pid), "a is restarted")
        daemon.until(lambda: daemon.status("c")["pid"] not in (None, before), "c is restarted")
        page.get_by_role("button", name="Choose none").click()
        page.locator(".chosen-bar").wait_for(state="hidden")


def test_steps_that_a_restart_of_several_lost_are_told(tmp_path: Path, port: int, page: Any):
    programs = "".join(f"[program:{name}]\ncommand=/bin/sleep 100000\n" for name in ("a", "b"))
    lost = {"is_loss": True, "text": "did step 9, its newest checkpoint is step 5; 4 steps will be trained again"}

    def answer(route: Any) -> None:
        request = route.request.post_data_json
        result = lost if request["command"] == "stop" else {}
        outcomes = [{"name": name, "result": result, "error": None} for name in request["names"]]
        route.fulfill(body="".join(f"{json.dumps(outcome)}\n" for outcome in outcomes))

    with Daemon(tmp_path, server(port) + programs):
        page.route("**/api/v1/each", answer)
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "a").get_by_text("Running").wait_for()
        page.get_by_label("Choose all that are shown").check()
        page.locator('[data-action="all-restart"]').click()
        page.locator("dialog button[value=yes]").click()

        page.locator("#said").get_by_text("b: did step 9").wait_for(timeout=SOON_MS)


def test_steps_that_were_lost_are_told_also_where_no_start_follows(tmp_path: Path, port: int, page: Any):
    lost = {"is_loss": True, "text": "did step 9, its newest checkpoint is step 5"}

    def answer(route: Any) -> None:
        request = route.request.post_data_json
        outcomes = [{"name": name, "result": lost, "error": None} for name in request["names"]]
        is_stop = request["command"] == "stop"
        route.fulfill(body="".join(f"{json.dumps(outcome)}\n" for outcome in outcomes) if is_stop else "")

    with Daemon(tmp_path, server(port) + "[program:a]\ncommand=/bin/sleep 100000\n"):
        page.route("**/api/v1/each", answer)
        page.route("**/api/v1/stop", lambda route: route.fulfill(json={"result": lost}))
        page.route("**/api/v1/start", lambda route: route.fulfill(status=500))
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "a").get_by_text("Running").wait_for()
        press(page, row(page, "a"), "restart", confirm=True)
        page.locator("#said").get_by_text("did step 9").wait_for(timeout=SOON_MS)

        page.get_by_label("Choose all that are shown").check()
        page.locator('[data-action="all-restart"]').click()
        page.locator("dialog button[value=yes]").click()
        page.locator("#said").get_by_text("the connection ended after 0 of 1").wait_for(timeout=SOON_MS)
        page.locator("#said").get_by_text("a: did step 9").wait_for(timeout=SOON_MS)


def test_program_that_ends_just_before_its_restart_is_started(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + "[program:a]\ncommand=/bin/sleep 100000\nautorestart=false\n") as daemon:
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "a").get_by_text("Running").wait_for()
        pid = daemon.status("a")["pid"]
        row(page, "a").locator('button[data-action="menu"]').click()
        page.locator('.popup [data-action="restart"]').click()
        os.kill(pid, signal.SIGKILL)
        daemon.until_state("a", "EXITED")
        page.locator("dialog button[value=yes]").click()

        assert daemon.until_state("a", "RUNNING")["pid"] != pid


def test_menu_is_used_by_keyboard_and_gives_the_focus_back(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + LOUD):
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "loud<b>").get_by_text("Running").wait_for()
        more = row(page, "loud<b>").locator('button[data-action="menu"]')
        more.focus()
        page.keyboard.press("Enter")
        page.locator('.popup [data-action="stop"]:focus').wait_for()  # what is possible comes first
        page.keyboard.press("ArrowDown")
        page.locator('.popup [data-action="restart"]:focus').wait_for()
        page.keyboard.press("Escape")
        page.locator(".popup").wait_for(state="detached")

        assert more.evaluate("button => button === document.activeElement")


PRINTER = r"""[program:printer]
command=/bin/sh -c 'printf "\033[31mred\033[0m plain\n1/3 [=  ]\r2/3 [== ]\r3/3 [===]\n\033[1A\033[2Kwritten anew\nlast\n"; echo to-stderr >&2; exec sleep 100000'
"""  # noqa: E501


def test_log_is_shown_as_a_terminal_shows_it(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + PRINTER):
        page.goto(f"http://127.0.0.1:{port}/#/program/printer")
        page.locator(".log .stderr").get_by_text("to-stderr").wait_for()
        page.locator(".log").get_by_text("last", exact=True).wait_for()
        assert page.locator(".log div:not(.stderr)").all_inner_texts() == ["red plain", "written anew", "last"]
        assert page.locator(".log .f1").all_inner_texts() == ["red"]
        page.get_by_role("button", name="Side by side").click()
        page.locator(".log").nth(1).get_by_text("to-stderr").wait_for()
        page.get_by_role("button", name="stdout", exact=True).click()
        page.get_by_label("Show lines with").fill("ANEW")
        page.locator(".log mark").get_by_text("anew").wait_for()
        assert page.locator(".log div").all_inner_texts() == ["written anew"]
        page.get_by_label("Show lines with").fill("")
        page.get_by_label("How much").select_option("1048576")
        page.locator(".log").get_by_text("last", exact=True).wait_for()
        page.get_by_label("follow").uncheck()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download stdout").click()

        assert b"3/3 [===]" in Path(download.value.path()).read_bytes()
        page.locator('.job-head [data-action="menu"]').click()
        page.locator('.popup [data-action="log"]').click()


def test_a_log_of_both_streams_is_shown_once(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + PRINTER + "redirect_stderr=true\n"):
        page.goto(f"http://127.0.0.1:{port}/#/program/printer")
        page.locator(".log").get_by_text("last", exact=True).wait_for()
        page.locator(".log").get_by_text("to-stderr").wait_for()

        assert page.locator(".log div").all_inner_texts() == ["red plain", "written anew", "last", "to-stderr"]
        assert page.get_by_role("button", name="Together").count() == 0
        assert page.get_by_role("link", name="Download stderr").count() == 0


def test_a_stream_whose_file_comes_after_the_other_streams_text_is_shown_too(tmp_path: Path, port: int, page: Any):
    early: list[Any] = []  # the request that comes before the file exists

    def hold_the_first(route: Any) -> None:
        if early:
            route.continue_()
        else:
            early.append(route)

    with Daemon(tmp_path, server(port) + PRINTER):
        page.route("**/api/v1/tail?*channel=stdout*", hold_the_first)
        page.goto(f"http://127.0.0.1:{port}/#/program/printer")
        page.locator(".log .stderr").get_by_text("to-stderr").wait_for()
        early[0].fulfill(status=404, json={"error": {"code": "NO_FILE", "message": "stdout.log does not exist yet"}})

        page.locator(".log").get_by_text("last", exact=True).wait_for()


def test_log_goes_on_after_the_daemon_was_killed_and_stays_until_then(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + PRINTER) as daemon:
        page.goto(f"http://127.0.0.1:{port}/#/program/printer")
        last = page.locator(".log").get_by_text("last", exact=True)
        last.wait_for()
        page.locator(".log .stderr").get_by_text("to-stderr").wait_for()
        daemon.die()
        page.get_by_text("the daemon does not answer").wait_for()
        with page.expect_event("requestfailed", lambda request: request.url.endswith("/api/v1/pid")):
            pass
        assert last.count() == 1
        daemon.start()
        daemon.call("stop", name="printer")
        daemon.call("start", name="printer")

        last.nth(1).wait_for()


def traces(page: Any) -> list[dict[str, Any]]:
    """What the first plot draws."""
    code = "plot => plot.data.map(({ name, y, opacity }) => ({ name, opacity, y: Array.from(y) }))"
    return list(page.locator(".plot.js-plotly-plot").first.evaluate(code))


def test_curves_are_smoothed_scaled_cut_and_drawn_along_time(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + job("count", tmp_path, STEPS=1_000_000, EVERY=50, STEP_S=0.01)) as daemon:
        os.kill(daemon.until_step("count", 80)["pid"], signal.SIGKILL)
        daemon.until(lambda: daemon.status("count")["job"]["attempt"] == 2, "the next attempt begins")
        daemon.until_step("count", 120)
        daemon.call("stop", name="count")
        last = daemon.status("count")["job"]["step"]
        page.goto(f"http://127.0.0.1:{port}/#/program/count")
        page.locator(".plot .main-svg").first.wait_for()
        plot = page.locator(".plot.js-plotly-plot").first
        first, lost, second = traces(page)
        assert [first["name"], lost["name"], second["name"]] == ["attempt 1", "attempt 1, done again", "attempt 2"]
        assert lost["opacity"] < first["opacity"] < second["opacity"] == 1, "older attempts are paler"

        page.get_by_label("Smoothing").fill("0.9")
        assert len(traces(page)) == 6, "the values stay behind the line"
        assert max(traces(page)[1]["y"][1:]) > max(traces(page)[0]["y"][1:]), "1/step falls; its mean lags behind"
        page.get_by_label("logarithmic").check()
        assert plot.evaluate("plot => plot.layout.yaxis.type") == "log"
        page.get_by_role("button", name="By time").click()
        assert plot.evaluate("plot => plot.layout.xaxis.type") == "date"
        page.get_by_role("button", name="By step").click()
        page.get_by_label("Range").select_option("last half")
        begin, end = plot.evaluate("plot => plot.layout.xaxis.range")
        assert 40 < begin < end <= last + 5
        page.get_by_role("button", name="Draw loss larger").click()
        assert page.locator(".panel.wide").count() == 1


def test_without_the_plotting_library_curves_are_plain_lines(tmp_path: Path, port: int, page: Any):
    page.route("**/page/plotly.min.js", lambda route: route.fulfill(status=404))
    with Daemon(tmp_path, server(port) + job("count", tmp_path, STEPS=1_000_000, STEP_S=0.01)) as daemon:
        daemon.until_step("count", 30)
        page.goto(f"http://127.0.0.1:{port}/#/program/count")

        page.get_by_text("pip install 'plotly").wait_for()
        page.locator(".plot svg.spark path").first.wait_for()


def test_notice_in_force_is_shown_with_its_countdown(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + job("count", tmp_path, STEPS=1_000_000, STEP_S=0.01)) as daemon:
        daemon.until_step("count", 5)
        page.goto(f"http://127.0.0.1:{port}/")
        daemon.call("drill", name="count", in_s=3000)
        page.locator(".banner").get_by_text("Drill for count: this host").wait_for()
        first = page.locator(".banner time").inner_text()

        page.locator(".banner time").filter(has_not_text=first).wait_for()
        assert first.startswith("in 49:") or first.startswith("in 50:")


def test_drill_is_started_and_ended_from_the_notices(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + job("count", tmp_path, STEPS=1_000_000, STEP_S=0.01)) as daemon:
        daemon.until_step("count", 5)
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name="Notices", exact=True).click()
        page.get_by_text("No notice is in force").wait_for(timeout=SOON_MS)
        page.get_by_label("Program", exact=True).select_option("count")
        page.get_by_label("The host goes away in").fill("2")
        page.get_by_label("Unit of time").select_option("hours")
        page.get_by_label("As if").select_option("freeze")
        assert page.get_by_label("Certainty").input_value() == "possible", "jobs do not stop for a freeze"
        page.get_by_label("As if").select_option("preemption")
        page.get_by_label("Certainty").select_option("certain")
        page.locator('[data-action="drill"]').click()
        page.locator("dialog").get_by_text("as if this host went away in 2 h").wait_for()
        page.locator("dialog button[value=yes]").click()

        page.get_by_role("timer").filter(has_text="in 1:59:").wait_for()
        page.locator(".notice").get_by_text("preemption", exact=True).wait_for()
        page.locator(".notice").get_by_role("link", name="count").wait_for()
        [notice] = daemon.call("notices")["notices"]
        assert (notice["program"], notice["kind"], notice["certainty"]) == ("count", "preemption", "certain")
        page.locator('[data-action="withdraw"]').click()
        page.get_by_text("No notice is in force").wait_for()
        assert daemon.call("notices")["notices"] == []


def test_gpu_that_is_left_out_is_shown_and_given_back(tmp_path: Path, port: int, page: Any):
    with (
        GpuHost(tmp_path) as host,
        GpuDaemon(host, tmp_path, server(port) + LOUD + job("count", tmp_path, CUDA_VISIBLE_DEVICES="0")) as daemon,
    ):
        daemon.until(lambda: len(daemon.call("gpus")["gpus"]) == 2, "the GPUs are listed")
        host.xid(79)
        daemon.until(lambda: daemon.call("gpus")["gpus"][1]["left_out"], "one is left out")
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name="1 of 2 GPUs not in order").click()
        ill = page.locator("tr").filter(has_text=UUIDS[1])
        ill.get_by_text("left out", exact=True).wait_for()
        ill.get_by_text("Xid 79: it fell off the bus").wait_for()
        ill.get_by_role("button", name="Use again").click()
        page.locator("dialog button[value=yes]").click()
        page.get_by_text("jobs get it with their next start").first.wait_for()

        ill.get_by_text("ok", exact=True).wait_for()
        assert [gpu["left_out"] for gpu in daemon.call("gpus")["gpus"]] == [None, None]


def test_daemons_log_is_filtered_and_goes_on(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + LOUD + BROKEN) as daemon:
        daemon.until_state("broken", "FAILED")
        page.goto(f"http://127.0.0.1:{port}/#/log")
        page.locator(".entry").filter(has_text="daemon ready").wait_for()
        page.get_by_role("button", name="Errors").click()
        page.locator(".entry").filter(has_text="daemon ready").wait_for(state="detached")
        page.locator(".entry.bad").filter(has_text=EVIL).wait_for()
        page.get_by_role("button", name="All", exact=True).click()
        page.get_by_label("Show lines with").fill("loud<b>")
        page.locator(".entry").filter(has_text="daemon ready").wait_for(state="detached")
        daemon.call("stop", name="loud<b>")
        page.locator(".entry").filter(has_text="state STOPPED").wait_for()
        page.get_by_label("How much").select_option("1048576")
        page.get_by_label("follow").uncheck()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the daemon's log").click()

        assert b"daemon.ready" in Path(download.value.path()).read_bytes()
        page.locator(".entry").get_by_role("link", name="loud<b>").first.click()
        page.get_by_role("heading", name="loud<b>").wait_for()


def test_file_is_read_again_and_applied(tmp_path: Path, port: int, page: Any):
    with Daemon(tmp_path, server(port) + LOUD + BROKEN) as daemon:
        page.goto(f"http://127.0.0.1:{port}/#/configuration")
        page.locator(".remarks").get_by_text("as there is no password").wait_for()
        page.get_by_role("button", name="Read the file again").click()
        page.get_by_text("there is nothing to apply").wait_for()
        daemon.write(server(port) + LOUD + "[program:new]\ncommand=/bin/sleep 100000\n[program:bad]\nautostart=maybe\n")
        page.get_by_role("button", name="Read the file again").click()
        page.get_by_text("[program:bad] can't be loaded").first.wait_for()
        page.locator("tr").filter(has_text="is new").get_by_text("new", exact=True).wait_for()
        page.get_by_role("button", name="Apply the changes…").click()
        page.locator("dialog button[value=yes]").click()
        page.get_by_text("update: done").wait_for()

        daemon.until_state("new", "RUNNING")
        page.get_by_role("link", name="new", exact=True).click()
        page.get_by_role("heading", name="new").wait_for()


def test_two_metrics_and_two_jobs_are_drawn_in_one_plot(tmp_path: Path, port: int, page: Any):
    jobs = "".join(job(name, tmp_path, STEPS=1_000_000, STEP_S=0.01, METRIC="accuracy") for name in ("count", "other"))
    with Daemon(tmp_path, server(port) + jobs) as daemon:
        for name in ("count", "other"):
            daemon.until_step(name, 30)
        page.goto(f"http://127.0.0.1:{port}/#/program/count")
        page.get_by_label("Draw beside loss").select_option("metric accuracy")
        axes = "() => document.querySelector('.js-plotly-plot')?.data.map(({ name, yaxis }) => [name, yaxis])"

        def drawn_beside() -> Any:
            return (page.evaluate(axes) or [])[1:]

        wait_until(lambda: drawn_beside() == [["accuracy", "y2"]], "the other metric is drawn, on a scale of its own")
        page.get_by_label("Draw beside loss").select_option("job other")
        wait_until(lambda: drawn_beside() == [["other", "y"]], "the other job is drawn, on the same scale")


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        *(("light", 1280), ("dark", 390)),
        *(pytest.param(*other, marks=pytest.mark.nightly) for other in (("light", 390), ("dark", 1280))),
    ],
)
def test_views_are_accessible_and_fit(tmp_path: Path, port: int, page: Any, axe: str, scheme: str, width: int):
    trained = job("count", tmp_path, STEPS=1_000_000, EVERY=20, STEP_S=0.01)
    many = "[program:many]\ncommand=/bin/sleep 100000\nnumprocs=3\nprocess_name=%(process_num)d\n"
    with Daemon(tmp_path, server(port) + LOUD + BROKEN + many + trained) as daemon:
        os.kill(daemon.until_step("count", 50)["pid"], signal.SIGKILL)
        daemon.until(lambda: daemon.status("count")["job"]["attempt"] == 2, "the next attempt begins")
        daemon.call("drill", name="loud<b>", in_s=3000)
        page.on("response", lambda response: response.status < 400 or page.errors.append(response.url))
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        for view, ready in (
            ("/", row(page, "count")),
            ("/program/count", page.locator(".plot .main-svg").first),
            ("/program/broken", page.locator(".died")),
            ("/notices", page.locator(".notice")),
            ("/gpus", page.get_by_text("This host has no GPU")),
            ("/log", page.locator(".entry").first),
            ("/configuration", page.locator("td").first),
        ):
            page.goto(f"http://127.0.0.1:{port}/#{view}")
            ready.wait_for()
            assert violations_of(page, axe) == [], view
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        row_height = 100
        page.goto(f"http://127.0.0.1:{port}/#/")
        row(page, "count").wait_for()
        assert (
            max(
                box["height"]
                for box in page.locator(".programs .row").evaluate_all(
                    "rows => rows.map(row => ({ height: row.getBoundingClientRect().height }))"
                )
            )
            < row_height
        ), "no row is a screen tall"


def test_page_asks_for_the_password_and_works_with_it(tmp_path: Path, port: int, browser: Any):
    login = {"username": "me", "password": "secret"}
    with (
        Daemon(tmp_path, server(port, "username=me\npassword=secret\n") + LOUD),
        browser.new_page() as unknown,
        browser.new_page(http_credentials=login) as known,
    ):
        with pytest.raises(Exception, match="ERR_INVALID_AUTH_CREDENTIALS"):
            unknown.goto(f"http://127.0.0.1:{port}/")
        known.goto(f"http://127.0.0.1:{port}/")

        row(known, "loud<b>").get_by_text("Running").wait_for(timeout=60_000)
        press(known, row(known, "loud<b>"), "stop", confirm=True)
        row(known, "loud<b>").get_by_text("Stopped").wait_for(timeout=60_000)


def test_a_restart_that_can_not_save_is_refused_with_its_words_until_the_user_insists(
    tmp_path: Path, port: int, page: Any
) -> None:
    section = job("count", tmp_path, "flush_timeout=1\nstopwaitsecs=1", STEPS=1_000_000, EVERY=50, STEP_S=0.01)
    with Daemon(tmp_path, server(port) + section) as daemon:
        pid = daemon.until_step("count", 60)["pid"]
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "count").get_by_text("Running").wait_for()
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
