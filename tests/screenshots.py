"""Makes the pictures in docs/images, of the page and of `supervisorctl status --watch`: `python -m tests.screenshots`.

Needs Chromium and playwright; `python -m tests.screenshots watch` makes only the second, without them.

A real job (examples/digits.py) is trained under a daemon, and its worker is killed once.
"""

import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from supervisor.ctl.watch import frame
from tests.system.harness import Daemon

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PORT = 9001
CONFIGURATION = """[inet_http_server]
port = 127.0.0.1:{port}
[program:digits]
command = {python} -u {root}/examples/digits.py
checkpoint_dir = {folder}/digits
checkpoint_interval = 200 steps
environment = TF_CPP_MIN_LOG_LEVEL="3"
[program:tensorboard]
command = /bin/sleep 100000
[program:nightly-export]
command = /bin/sleep 100000
autostart = false
"""


def take_pages() -> None:
    from playwright.sync_api import Page, sync_playwright

    from tests.system.test_page import CHROMIUM

    def _take(page: Page, name: str) -> None:
        IMAGES.mkdir(exist_ok=True)
        page.screenshot(path=IMAGES / f"{name}.png")

    with tempfile.TemporaryDirectory() as name, sync_playwright() as player:
        folder = Path(name)
        text = CONFIGURATION.format(port=PORT, python=sys.executable, root=ROOT, folder=folder)
        with (
            Daemon(folder, text) as daemon,
            player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as it,
        ):
            page = it.new_page(viewport={"width": 1200, "height": 420})
            page.goto(f"http://127.0.0.1:{PORT}/#/program/digits")
            page.get_by_role("heading", name="digits").wait_for()
            pid = daemon.until_step("digits", 500, patience_s=200)["pid"]
            os.kill(pid, signal.SIGKILL)
            daemon.until(lambda: (daemon.status("digits")["job"]["attempt"]) == 2, "the next attempt", 60)
            daemon.until_step("digits", 800, patience_s=200)
            page.locator(".plot").first.wait_for()
            page.wait_for_timeout(11_000)  # everything is looked at again every ten seconds
            page.set_viewport_size({"width": 1200, "height": 1300})
            page.wait_for_timeout(1500)
            _take(page, "page-job")
            page.set_viewport_size({"width": 1200, "height": 330})
            page.goto(f"http://127.0.0.1:{PORT}/#/")
            page.wait_for_timeout(6000)  # memory is measured every five seconds
            _take(page, "page-list")
            page.set_viewport_size({"width": 390, "height": 640})
            page.emulate_media(color_scheme="dark")
            page.wait_for_timeout(500)
            _take(page, "page-phone")


def take_watch() -> None:
    """As an SVG of the terminal, without the fonts that rich would load from another host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = CONFIGURATION.format(port=PORT, python=sys.executable, root=ROOT, folder=folder)
        with Daemon(folder, text) as daemon, (folder / "out").open("w") as out:
            daemon.until_step("digits", 500, patience_s=400)
            console = Console(record=True, width=124, file=out, force_terminal=True)
            console.print(frame(daemon.call("status")["programs"], [], time.time(), console.width))
            written = console.export_svg(title="supervisorctl status --watch", unique_id="watch")
    written = re.sub(r"@font-face \{.*?\}\n", "", written, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    (IMAGES / "watch.svg").write_text(written)


def main() -> None:
    if sys.argv[1:] != ["watch"]:
        take_pages()
    take_watch()


if __name__ == "__main__":
    main()
