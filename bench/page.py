"""Measures what the page costs an idle daemon, closed and open in a browser, compared with PyPI's Supervisor.

Run with `python -m bench.page`. Prints a table and writes bench/results/page.json. An open page is a client that reads
the stream of events (/page/live); with Supervisor it is one that asks for its page once a second, as people do there
by reloading. Rounds in turn; the daemon supervises one `sleep`.
"""

import argparse
import contextlib
import http.client
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from bench import harness
from bench.daemon import System, cost, running, spread, systems

RELOAD_S = 1.0
SETTLE_S = 2.0
PORT = "[inet_http_server]\nport = 127.0.0.1:{port}\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def open_page(port: int, *, has_stream: bool) -> Iterator[None]:
    """A page in a browser, as far as the daemon sees it."""
    closed = threading.Event()

    def read() -> None:
        while not closed.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            with contextlib.suppress(OSError), contextlib.closing(connection):
                connection.request("GET", "/page/live" if has_stream else "/")
                answer = connection.getresponse()
                while answer.read1(65536) and not closed.is_set():
                    pass
            closed.wait(RELOAD_S)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()


def measure(system: System, is_open: bool, idle_s: float) -> float:
    """CPU of the daemon in percent of one core."""
    port = free_port()
    served = replace(system, sections=PORT.format(port=port))
    with running(served) as daemon, contextlib.ExitStack() as stack:
        if is_open:
            stack.enter_context(open_page(port, has_stream=system.name == "stepkeeper"))
        time.sleep(SETTLE_S)
        before, _, _ = cost(daemon)
        time.sleep(idle_s)
        after, _, _ = cost(daemon)
        return 100 * (after - before) / idle_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=30.0, help="seconds per round")
    options = parser.parse_args()
    harness.compiled()
    percents: dict[tuple[str, bool], list[float]] = {
        (system.name, it): [] for system in systems() for it in (False, True)
    }
    for _ in range(options.rounds):
        for system in systems():
            for is_open in (False, True):
                percents[system.name, is_open].append(measure(system, is_open, options.idle))
    table = Table("CPU of an idle daemon, % of one core", "page closed", "page open")
    for system in systems():
        table.add_row(system.name, spread(percents[system.name, False]), spread(percents[system.name, True]))
    Console(width=110).print(table)
    medians = {
        f"{name}, {'open' if it else 'closed'}": statistics.median(values) for (name, it), values in percents.items()
    }
    harness.write("page", {"idle_cpu_percent": medians})


if __name__ == "__main__":
    main()
