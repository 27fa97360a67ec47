"""Measures the page with many programs in Chromium: first paint, first rows, scrolling, memory.

Run with `python -m bench.page_many`. Prints a table and writes bench/results/page_many.json. Needs Chromium and
playwright. Each round is a new browser context, so nothing is cached; the browser runs already.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import harness
from bench.daemon import System, running, spread
from bench.page import free_port

MANY = """[inet_http_server]
port = 127.0.0.1:{port}
[program:many]
command = /bin/sleep 100000
autostart = false
numprocs = {programs}
process_name = %(process_num)04d
"""
SCROLL = """async () => {
  const frames = [];
  let last = performance.now();
  for (let frame = 0; frame < 200; frame++) {
    window.scrollBy(0, 150);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def measure(browser: Any, port: int) -> dict[str, float]:
    """One visit. Times in milliseconds since the address was entered."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        # groups of this size are folded until somebody opens them
        context.add_init_script('localStorage.setItem("folds", JSON.stringify([["many", false]]))')
        page = context.new_page()
        page.add_init_script(
            "new MutationObserver((_, watch) => { if (document.querySelector('.row .name a')) "
            "{ window.rowsAt = performance.now(); watch.disconnect(); } })"
            ".observe(document, { childList: true, subtree: true })"
        )
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator(".row .name a").first.wait_for()
        frames = sorted(page.evaluate(SCROLL))
        return {
            "first paint, ms": page.evaluate(PAINTED),
            "first rows, ms": page.evaluate("rowsAt"),
            "a frame while scrolling, median, ms": statistics.median(frames),
            "a frame while scrolling, 95 %, ms": frames[int(0.95 * len(frames))],
            "elements": page.evaluate("document.querySelectorAll('*').length"),
            "JavaScript's memory, MiB": page.evaluate("performance.memory.usedJSHeapSize") / 2**20,
        }
    finally:
        context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--programs", type=int, default=1000)
    options = parser.parse_args()
    port = free_port()
    sections = MANY.format(port=port, programs=options.programs)
    ours = (sys.executable, "-m", "supervisor.daemon")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        system = System("stepkeeper", ours, f"state_dir = {Path(folder, 'state')}", sections)
        arguments = ["--no-sandbox", "--enable-precise-memory-info"]
        with (
            running(system),
            player.chromium.launch(executable_path=shutil.which("chromium"), args=arguments) as browser,
        ):
            rounds = []
            for _ in range(options.rounds):
                rounds.append(measure(browser, port))
                time.sleep(1)
    table = Table(f"The page with {options.programs} programs", "")
    for name in rounds[0]:
        table.add_row(name, spread([values[name] for values in rounds]))
    Console(width=110).print(table)
    harness.write("page_many", {"programs": options.programs, "rounds": rounds})


if __name__ == "__main__":
    main()
