"""What a check's command says, by real ones."""

import os
import threading
import time
from pathlib import Path

from supervisor.host.health import Check, Checks
from tests.reading import alive


def asked(*argv: str, timeout_s: float = 20.0, **environment: str) -> str | None:
    return Checks().trouble(Check(argv, {**os.environ, **environment}, None, None, timeout_s))


def test_status_0_is_well():
    assert asked("/bin/sh", "-c", "echo fine") is None


def test_any_other_is_not_and_its_words_say_why():
    why = asked("/bin/sh", "-c", "echo port $PORT; echo is closed >&2; exit 3", PORT="80")

    assert why == "healthcheck_command ended with status 3: port 80 is closed"


def test_what_does_not_answer_is_killed_with_all_it_started(tmp_path: Path):
    why = asked("/bin/sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid; wait", timeout_s=2.0)

    assert why == "healthcheck_command did not answer within 2 s"
    pid = (tmp_path / "pid").read_text().strip()
    deadline = time.monotonic() + 20
    while alive(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_command_that_is_not_there_is_said():
    assert "can't be run" in (asked("/nonexistent/check") or "")


def test_closed_nothing_is_waited_for():
    checks, said = Checks(), []
    asking = threading.Thread(
        target=lambda: said.append(checks.trouble(Check(("/bin/sleep", "1000"), dict(os.environ), None, None, 900.0)))
    )
    asking.start()
    deadline = time.monotonic() + 20
    while asking.is_alive() and time.monotonic() < deadline:
        checks.close()
        asking.join(0.05)

    assert said == ["healthcheck_command ended with status -9"]
