"""What the long measurements judge by: that it sees what it is there to see."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from bench import goodput, soak_checks
from bench.goodput import Outcome
from bench.soak_site import KINDS, Running, Site
from supervisor.host.processes import marks
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from tests.system import killing
from tests.system.harness import TRAINER
from tests.system.killing import Damage
from tests.waiting import wait_until


def test_schedule_is_a_function_of_its_seed():
    assert killing.schedule(3, 30, 0.5) == killing.schedule(3, 30, 0.5) != killing.schedule(4, 30, 0.5)
    assert {each.moment for each in killing.schedule(3, 30)} == set(killing.Moment)
    assert not any(each.damage for each in killing.schedule(3, 30))


@pytest.mark.parametrize("damage", list(Damage))
def test_every_damage_is_one_that_a_proof_sees(tmp_path: Path, damage: Damage):
    checkpoint = tmp_path / str(layout.CheckpointName(1, 1))
    checkpoint.mkdir()
    (checkpoint / "state").write_bytes(bytes(range(256)) * 4)
    files = manifest.record_files(checkpoint, ("state",))
    whole = manifest.Manifest(job="t", attempt=1, step=1, created_wall_at=time.time(), files=files)
    durable.write_file(checkpoint / layout.MANIFEST, whole.to_bytes())
    manifest.verify_checkpoint(checkpoint)

    killing.spoil(checkpoint, damage)

    with pytest.raises(manifest.ManifestError):
        manifest.verify_checkpoint(checkpoint)


def test_all_systems_meet_the_same_failures():
    met = goodput.trace(30.0, 3000.0, seed=1)

    assert met == goodput.trace(30.0, 3000.0, seed=1) != goodput.trace(30.0, 3000.0, seed=2)
    assert 70 < len(met) < 130
    assert {each.kind for each in met} == {"kill", "hang", "damage"}


@pytest.mark.parametrize(
    ("mean_s", "interval_s", "stall_s", "relaunch_s", "bound"),
    [(60.0, 10.0, 0.2, 7.3, 0.80), (300.0, 10.0, 0.2, 7.3, 0.94), (60.0, 4.9, 0.13, 0.3, 0.93)],
)
def test_bound_is_youngs(mean_s: float, interval_s: float, stall_s: float, relaunch_s: float, bound: float):
    outcome = Outcome("t", mean_s, 1, relaunch_s=[relaunch_s], stall_s=stall_s, interval_s=interval_s)

    assert outcome.bound() == pytest.approx(bound, abs=0.006)


def test_every_second_of_a_peers_run_has_a_category():
    story = [(0.0, "begin", 7.0), (3.0, "step", 1.0), (4.0, "step", 2.0), (4.5, "saved", 0.5), (5.5, "step", 3.0),
             (9.0, "begin", 8.0), (12.0, "step", 3.0), (13.0, "step", 4.0)]  # fmt: skip

    assert goodput.spent_by(story, 20.0) == {
        "starting": 6.0, "training": 3.0, "replaying": 0.0, "saving": 0.5, "down": 10.5,
    }  # fmt: skip
    assert goodput.spent_by([*story[:6], (12.0, "step", 2.0), (14.0, "step", 3.0)], 14.0)["replaying"] == 2.0
    outcome = Outcome("t", 60.0, 1, steps=100, wall_s=10.0, step_s=0.08, spent_s={"training": 8.5, "down": 1.5})
    assert outcome.missing_s() == pytest.approx({"slower": 0.5, "down": 1.5})


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, tuple(kind for kind in KINDS if kind.name == "count"))
    yield site
    site.close()


def test_a_second_worker_is_seen(site: Site):
    site._sections["count-1"] = ""
    mark = marks.mark_of_attempt(site.folder / "state", "count-1", 1)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)", str(TRAINER)]
    twins = [subprocess.Popen(sleeping, env={marks.VARIABLE: mark}) for _ in range(2)]
    try:
        with soak_checks.Watch(site) as watch:
            wait_until(lambda: watch.broken, "it is seen")
        strays = site.strays()
    finally:
        for twin in twins:
            twin.kill()
            twin.wait()

    assert watch.broken and "count-1 has 2 workers" in watch.broken[0]
    assert len(strays) == 2
    assert site.strays() == []


def test_two_workers_one_after_the_other_are_none_too_many():
    me = psutil.Process()
    worker, before = Running("t", 1, me.pid, me.create_time()), Running("t", 1, me.pid, me.create_time() - 5)

    assert soak_checks._lives(worker, {me.pid})
    assert not soak_checks._lives(before, {me.pid})
    assert not soak_checks._lives(worker, {me.pid, me.ppid()}), "what a worker has just forked is no second one"


def test_soak_fails_on_an_invariant_that_a_daemon_found_broken(tmp_path: Path):
    breach = {"event": "invariant.broken", "program": "count", "invariant": "never_two_attempts", "on": "StepsDone(…)"}
    lines = [{"event": "daemon.ready"}, breach, breach]
    (tmp_path / "daemon.log").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    with closing(Site(tmp_path, KINDS)) as site:
        broken = soak_checks.broken_invariants(site)

    assert broken == ["count: the invariant never_two_attempts was broken on StepsDone(…)"]
