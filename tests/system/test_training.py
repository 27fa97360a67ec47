"""The demonstration of `make demo`: real daemon, real TensorFlow, real data, and everything done to stop it."""

import re
import signal
import subprocess
import sys

import psutil
import pytest

from supervisor.host.processes import marks
from tests.places import ROOT
from tests.waiting import wait_until

DEMO = (sys.executable, "-m", "examples.demo")

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(400)]


def belongings() -> list[psutil.Process]:
    """The demonstration's daemon, and what daemons of its state folder started."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        is_daemon = str(ROOT / "examples" / "demo.conf") in (process.info["cmdline"] or ())
        mark = (process.info["environ"] or {}).get(marks.VARIABLE, "")
        if is_daemon or "/demo-run/state:" in mark:
            found.append(process)
    return found


@pytest.mark.nightly  # what it shows is held by tests/prove and tests/system one by one; a release runs it
def test_demonstration_ends_bit_for_bit_as_the_undisturbed_run():
    shown = subprocess.run(DEMO, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "bit for bit the same" in shown.stdout
    assert shown.stdout.count("kill -9") == 2
    assert "refused and quarantined" in shown.stdout
    assert all(float(match_) >= 0.97 for match_ in re.findall(r"test accuracy (\d\.\d+)", shown.stdout))
    assert belongings() == []


def test_ctrl_c_in_the_demonstration_leaves_nothing_running():
    shown = subprocess.Popen(DEMO, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(
        lambda: any("digits.py" in " ".join(belonging.info["cmdline"] or ()) for belonging in belongings()),
        "the job has started",
    )

    shown.send_signal(signal.SIGINT)
    output, _ = shown.communicate(timeout=60)

    assert shown.returncode == 130, output
    assert belongings() == []
