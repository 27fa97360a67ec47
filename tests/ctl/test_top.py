"""top: what is made of two answers of the daemon, and how it leaves the screen."""

import contextlib
import io
import json
import os
import pty
import signal
import subprocess

import pytest

from supervisor.ctl import top
from supervisor.ctl.client import Client
from supervisor.ctl.terminal import Terminal
from tests.ctl.conftest import CTL
from tests.ctl.daemon_end import program

HIDES_CURSOR, SHOWS_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


def row(name: str, cpu_s: float | None, **other):
    return {
        "name": name,
        "group": name,
        "wire_state": "RUNNING",
        "pid": 4242,
        "processes": 2,
        "cpu_s": cpu_s,
        "memory_bytes": 3 << 20,
        "gpu_memory_bytes": None,
        "step": None,
        "step_s": None,
        **other,
    }


def answer(at_s: float, *programs):
    return {"at_s": at_s, "cpus": 4, "memory_bytes": 8 << 30, "programs": list(programs)}


def test_processor_use_is_the_difference_over_the_time_between():
    before, after = answer(10.0, row("a", 1.0), row("b", 5.0)), answer(12.0, row("a", 2.0), row("b", 8.0))

    assert [(program["name"], program["cpu_percent"]) for program in top.with_cpu_percent(before, after)] == [
        ("b", 150.0),
        ("a", 50.0),
    ]


@pytest.mark.parametrize("earlier", [row("a", 1.0, pid=4000), row("a", None, pid=None), row("other", 1.0)])
def test_of_a_process_that_is_new_it_is_not_known(earlier):
    (program,) = top.with_cpu_percent(answer(10.0, earlier), answer(12.0, row("a", 2.0)))

    assert program["cpu_percent"] is None


def test_time_that_left_with_a_process_is_no_negative_use():
    (program,) = top.with_cpu_percent(answer(10.0, row("a", 9.0)), answer(12.0, row("a", 2.0)))

    assert program["cpu_percent"] == 0.0


def shown(daemon, *names: str, as_json: bool = False):
    out = io.StringIO()
    return top.print_once(Terminal(Client(daemon.url), out, out, as_json), list(names), period_s=0.0), out.getvalue()


@pytest.mark.integration
def test_without_a_terminal_it_is_one_table(daemon):
    clock = iter((10.0, 12.0))
    digits = row("digits", 1.0, gpu_memory_bytes=1 << 30, step=7, step_s=0.5)
    daemon.answers["top"] = lambda _: answer(next(clock), digits, row("off", None, pid=None, processes=0))

    status, out = shown(daemon, "digits", "nope")

    assert out.splitlines() == [
        "nope: ERROR (no such process)",
        "PROGRAM  STATE    PID   PROCS  CPU%  MEMORY  GPU MEM  STEPS/S",
        "digits   RUNNING  4242  2      0.0   3.0 MB  1.0 GB   2",
    ]
    assert status == 4


@pytest.mark.integration
def test_as_json_what_is_not_known_is_null(daemon):
    daemon.answers["top"] = answer(1.0, row("off", None, pid=None))

    (program,) = json.loads(shown(daemon, as_json=True)[1])["programs"]

    assert (program["cpu_percent"], program["gpu_memory_bytes"]) == (None, None)


@pytest.mark.integration
def test_options_are_refused(ctl):
    assert "bad argument -x" in ctl("top", "-x").out


@pytest.mark.integration
@pytest.mark.parametrize("arguments", [("top",), ("status", "--watch")])
def test_a_signal_that_ends_what_is_drawn_live_brings_the_cursor_back(daemon, arguments):
    daemon.answers["top"] = answer(10.0, row("a", 1.0))
    daemon.answers["status"] = {"programs": [program("a")], "ledger_error": None}
    reading, writing = pty.openpty()
    command, environment = [*CTL, "-s", daemon.url, *arguments], {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, env=environment) as client:
        os.close(writing)
        content = b""
        while HIDES_CURSOR not in content:
            content += os.read(reading, 65536)

        client.terminate()

        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(reading, 65536):
                content += piece
        assert client.wait(60) == 128 + signal.SIGTERM
    os.close(reading)
    assert content.rindex(SHOWS_CURSOR) > content.rindex(HIDES_CURSOR)
