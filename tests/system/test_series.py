"""The curves of a job, through deaths of its worker and of the daemon."""

import os
import signal
from pathlib import Path

import pytest

from tests.system.harness import Daemon, job

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_curves_go_on_through_deaths_of_the_worker_and_of_the_daemon(tmp_path: Path):
    with Daemon(tmp_path, job("count", tmp_path, STEPS=1_000_000, EVERY=10, STEP_S=0.01)) as daemon:

        def series() -> dict[str, list[dict[str, float]]]:
            names = [metric["name"] for metric in daemon.call("series", name="count")["metrics"]]
            return {name: buckets_of(name) for name in names}

        def buckets_of(wanted: str) -> list[dict[str, float]]:
            metrics = daemon.call("series", name="count", metric=wanted)["metrics"]
            assert all(metric["name"] == wanted or not metric["buckets"] for metric in metrics)
            return next(metric["buckets"] for metric in metrics if metric["name"] == wanted)

        os.kill(daemon.until_step("count", 55)["pid"], signal.SIGKILL)
        daemon.until(lambda: daemon.status("count")["job"]["attempt"] == 2, "the next attempt begins")
        daemon.until_step("count", 100)
        before = series()["loss"]
        assert {each["attempt"] for each in before} == {1, 2}
        died_at = max(each["step"] for each in before if each["attempt"] == 1)
        began_at = min(each["first_step"] for each in before if each["attempt"] == 2)
        assert began_at <= died_at + 1, "steps that are done again are in it"

        daemon.call("stop", name="count")  # the end of an attempt is written at once
        at_stop = series()["loss"]
        daemon.die()
        daemon.start()
        daemon.call("start", name="count")
        daemon.until(lambda: any(each["attempt"] == 3 for each in series()["loss"]), "the third attempt trains")

        after = series()
        assert after["loss"][: len(at_stop)] == at_stop
        assert list(after)[-1] == "steps_per_second"
