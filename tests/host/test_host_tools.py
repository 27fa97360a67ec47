"""A tool of the host gets a clean environment, and answers within limits or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from supervisor.host.children import ALLOWED
from supervisor.host.host_tools import MAX_TOOL_BYTES, ask_tool

pytestmark = [pytest.mark.hostile, pytest.mark.integration]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="what is allowed is decided for root")


@needs_root
def test_a_tool_gets_only_allowed_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/home/alice")
    monkeypatch.setenv("PYTHONPATH", "/home/alice")
    monkeypatch.setenv("TZ", "UTC")

    answer = ask_tool(("env",), 60.0)

    found = dict(line.partition("=")[::2] for line in answer.stdout.decode().splitlines())
    assert found.keys() <= ALLOWED
    assert (found["TZ"], found["PATH"], answer.status) == ("UTC", os.environ["PATH"], 0)


def test_a_tool_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ask_tool(("sleep", "1000"), 0.1)


def test_a_tool_that_says_too_much_is_stopped() -> None:
    answer = ask_tool(("cat", "/dev/zero"), 60.0)

    assert answer.status == -signal.SIGKILL
    assert MAX_TOOL_BYTES < len(answer.stdout) < 2 * MAX_TOOL_BYTES


def test_a_tool_that_takes_too_much_memory_is_not_given_more() -> None:
    takes = "import sys, time; time.sleep(0.2); len(b'x' * (1 << 30))"

    limited = ask_tool((sys.executable, "-c", takes), 60.0, 256 << 20)

    assert limited.status == 1
    assert b"MemoryError" in limited.stderr
