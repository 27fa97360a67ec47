"""Makes the pictures in docs/images, of the page and of `supervisorctl status --watch`: `python -m tests.screenshots`.

Needs Chromium, playwright, gcc and nvidia-ml-py. The argument `page` or `watch` makes only the one or the other.

Real jobs (examples/digits.py) are trained under a daemon, and the worker of one is killed once. The GPUs are those of
`tests/gpu_host.py`.
"""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from supervisor.ctl.watch import frame
from tests.gpu_host import GpuDaemon, GpuHost
from tests.system.harness import Daemon, job
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PORT = 9001
SECTION = """[program:{name}]
command = {python} -u {root}/examples/digits.py
checkpoint_dir = {folder}/{name}
checkpoint_interval = 200 steps
environment = TF_CPP_MIN_LOG_LEVEL="3",CUDA_VISIBLE_DEVICES="",STEPS="5000"
"""
OTHERS = """[program:tensorboard]
command = /bin/sleep 100000
[program:nightly-export]
command = /bin/sleep 100000
autostart = false
"""
MORE = """[program:publish]
command = /bin/sh -c 'sleep 2; echo "PermissionError: [Errno 13] Permission denied: /srv/models" >&2; exit 1'
startsecs = 0
autorestart = false
startretries = 0
[program:readers]
command = /bin/sleep 100000
numprocs = 12
process_name = %(process_num)02d
[program:serve]
command = /bin/sleep 100000
numprocs = 2
process_name = %(process_num)d
"""
VIEWS = {
    "list": "/",
    "job": "/program/digits",
    "fault": "/program/publish",
    "notices": "/notices",
    "gpus": "/gpus",
    "log": "/log",
    "configuration": "/configuration",
}
SCREENS: dict[str, dict[str, Any]] = {  # the options of a browser's window
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 800}, "color_scheme": "light"},
}
COLOURS = 200  # of a picture; more make it larger, and nobody sees them


def configuration(folder: Path, *names: str) -> str:
    sections = (SECTION.format(name=name, python=sys.executable, root=ROOT, folder=folder) for name in names)
    return f"[inet_http_server]\nport = 127.0.0.1:{PORT}\n{''.join(sections)}{OTHERS}"


def take_pages() -> None:
    from playwright.sync_api import sync_playwright

    from tests.system.page.browser import CHROMIUM

    with tempfile.TemporaryDirectory() as name, sync_playwright() as player:
        folder = Path(name)
        on_gpus = job("charlm", folder, STEPS=200_000, EVERY=500, STEP_S=0.05, CUDA_VISIBLE_DEVICES="0,1")
        with (
            GpuHost(folder, 4) as host,
            GpuDaemon(host, folder, configuration(folder, "digits") + MORE + on_gpus) as daemon,
            player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]) as browser,
        ):
            pid = daemon.until_step("digits", 500, patience_s=200)["pid"]
            os.kill(pid, signal.SIGKILL)
            daemon.until(lambda: (daemon.status("digits")["job"]["attempt"]) == 2, "the next attempt", 60)
            host.xid(79, 3)
            host.are("", "", "", "error=15")
            daemon.until_step("digits", 900, patience_s=200)
            for screen, options in SCREENS.items():
                page = browser.new_page(**options)
                for view, address in VIEWS.items():
                    if view == "notices":
                        daemon.call("drill", name="digits", in_s=3600)
                    page.goto(f"http://127.0.0.1:{PORT}/#{address}")
                    page.wait_for_timeout(6500 if view in ("list", "job") else 2000)  # memory comes every five seconds
                    if view == "job":  # a busy machine draws the second plot much later than the first
                        undrawn = page.locator(".panel:not(:has(.plot .trace)) .plot")
                        wait_until(lambda undrawn=undrawn: undrawn.count() == 0, "all plots are drawn")
                    _save(page.screenshot(full_page=True), f"page-{view}-{screen}")
                    if view == "notices":
                        daemon.call("drill", name="digits", withdraw=True)
                page.close()
            _take_hosts(browser, folder)


def _take_hosts(browser: Any, folder: Path) -> None:
    """Of the daemon at PORT, of another one, and of a host that is gone."""
    (folder / "other").mkdir()
    hosts = folder / "hosts"
    with Daemon(folder / "other", configuration(folder / "other", "words").replace(str(PORT), str(PORT + 1))) as other:
        hosts.write_text(f"gpu-1 http://127.0.0.1:{PORT}\ngpu-2 unix://{other.socket}\ngpu-3 unix://{folder}/none\n")
        other.until_step("words", 500, patience_s=200)
        command = [sys.executable, "-m", "supervisor.ctl.main", "--hosts", str(hosts), "page"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            for screen, options in SCREENS.items():
                page = browser.new_page(**options)
                page.goto(address)
                page.locator(".row.training").first.wait_for()
                page.wait_for_timeout(2000)
                _save(page.screenshot(full_page=True), f"page-hosts-{screen}")
                page.close()
            process.send_signal(signal.SIGINT)


def _save(png: bytes, name: str) -> None:
    from PIL import Image

    IMAGES.mkdir(exist_ok=True)
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    picture.save(IMAGES / f"{name}.png", optimize=True)


def take_watch() -> None:
    """As an SVG of the terminal, without the fonts that rich would load from another host."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Daemon(folder, configuration(folder, "digits")) as daemon, (folder / "out").open("w") as out:
            daemon.until_step("digits", 500, patience_s=400)
            console = Console(record=True, width=124, file=out, force_terminal=True)
            console.print(frame(daemon.call("status")["programs"], [], time.time(), console.width))
            written = console.export_svg(title="supervisorctl status --watch", unique_id="watch")
    written = re.sub(r"@font-face \{.*?\}\n", "", written, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")
    (IMAGES / "watch.svg").write_text(written)


def main() -> None:
    if sys.argv[1:] != ["watch"]:
        take_pages()
    if sys.argv[1:] != ["page"]:
        take_watch()


if __name__ == "__main__":
    main()
