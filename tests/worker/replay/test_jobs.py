"""Jobs that train steps a second time: nothing can be told from the result, and every flipped bit is found."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import peer
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.replayed import read_replayed
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Interval, Launch, OnReplayDifference, without_launch_variables
from tests import forked
from tests.places import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
CHILD = ROOT / "tests" / "worker" / "children" / "replaying.py"
AGAIN = pytest.mark.nightly  # one framework has the same in every run
KINDS = ("tensorflow", pytest.param("replicas", marks=AGAIN), "torch")
BOTH = ("tensorflow", pytest.param("torch", marks=AGAIN))
ALWAYS = 50.0  # of training time: every interval of five steps is trained twice
EPOCH = "epoch=17"
Start = Callable[..., subprocess.Popen[str]]
Undisturbed = Callable[..., dict[str, Any]]


def started(
    folder: Path,
    kind: str,
    steps: int,
    *options: str,
    replay: float | None = ALWAYS,
    on_difference: OnReplayDifference = "warn",
) -> subprocess.Popen[str]:
    """A training in a folder."""
    launch = Launch(
        replay=replay,
        on_replay_difference=on_difference,
        deterministic=True,
        checkpoint_dir=folder,
        checkpoint_interval=Interval(steps=5),
    )
    environment = {**without_launch_variables(os.environ), **launch.to_environment(), "PYTHONPATH": str(ROOT)}
    environment |= {"XDG_STATE_HOME": str(folder.parent / "state"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [python_of(kind), str(CHILD), kind, str(folder), str(steps), *options]
    modules, pipe = forked.TORCH if kind == "torch" else forked.TENSORFLOW, subprocess.PIPE
    return forked.ForkedProcess(command, modules, env=environment, cwd=ROOT, stdout=pipe, stderr=pipe)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts trainings, or goes on with one."""
    processes: list[subprocess.Popen[str]] = []

    def start(kind: str, steps: int, *options: str, **keys: Any) -> subprocess.Popen[str]:
        processes.append(started(tmp_path / "a", kind, steps, *options, **keys))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """What a training without replays ends with; each is trained once for all tests."""

    @functools.cache
    def undisturbed(kind: str, steps: int, *options: str) -> dict[str, Any]:
        return ended(started(tmp_path_factory.mktemp("undisturbed") / "b", kind, steps, *options, replay=None))[0]

    return undisturbed


def python_of(kind: str) -> str:
    if kind != "torch":
        return sys.executable
    try:
        return str(peer.binaries(peer.TORCH) / "python")
    except peer.NotInstalled as error:
        pytest.skip(str(error))


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[dict[str, Any], str]:
    """What it found, and what it said on stderr."""
    output, said = process.communicate(timeout=300)
    assert process.returncode == code, said[-3000:]
    return json.loads(output.splitlines()[-1]) if code == 0 else {}, said


def wait_for(process: subprocess.Popen[str], word: str) -> list[str]:
    """The lines up to the first one that begins with a word."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(word):
            return lines
    raise AssertionError(f"no line with {word}: {process.communicate()[1][-3000:]}")


@pytest.mark.parametrize("kind", KINDS)
def test_training_ends_with_the_same_bits_with_and_without_replays(
    start: Start, undisturbed: Undisturbed, tmp_path: Path, kind: str
) -> None:
    replayed, _ = ended(start(kind, 40, EPOCH))

    assert undisturbed(kind, 40, EPOCH)["replayed_steps"] == 0
    assert replayed["replayed_steps"] >= 20
    assert replayed["differences"] == 0
    assert replayed["hash"] == undisturbed(kind, 40, EPOCH)["hash"]
    assert read_replayed(tmp_path / "a")


def test_batches_of_loader_processes_are_kept_for_the_second_time(start: Start, undisturbed: Undisturbed) -> None:
    replayed, _ = ended(start("torch", 40, "workers=1"))

    assert replayed["replayed_steps"] >= 20
    assert (replayed["differences"], replayed["hash"]) == (0, undisturbed("torch", 40, "workers=1")["hash"])


@pytest.mark.parametrize(
    ("kind", "flip"),
    [
        pytest.param("tensorflow", "weight", marks=AGAIN),
        ("replicas", "gradient"),
        ("torch", "weight"),
        pytest.param("torch", "gradient", marks=AGAIN),
    ],
)
def test_every_flipped_bit_is_found(start: Start, kind: str, flip: str) -> None:
    found, said = ended(start(kind, 60, f"flip={flip}"))

    assert found["intervals"] >= 8
    assert found["differences"] == found["intervals"]
    assert ("parts.model.0.weight" if kind == "torch" else "optimizer/") in said


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["tensorflow", "torch"])
def test_killed_in_a_replay_it_ends_with_the_same_bits(
    start: Start, undisturbed: Undisturbed, kind: str, kills: int
) -> None:
    for held in random.sample(range(1, 9), kills):
        process = start(kind, 40, EPOCH, f"hold={held}")
        for _ in range(held):
            wait_for(process, "again")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    resumed, _ = ended(start(kind, 40, EPOCH))

    assert resumed["hash"] == undisturbed(kind, 40, EPOCH)["hash"]


@pytest.mark.parametrize("kind", BOTH)
def test_a_stop_ends_a_replay_at_once_and_loses_no_step(
    start: Start, undisturbed: Undisturbed, tmp_path: Path, kind: str
) -> None:
    process = start(kind, 40, EPOCH, "pause=0.1")
    done = [line for line in wait_for(process, "again") if line.startswith("step")]

    os.kill(process.pid, signal.SIGTERM)
    rest = process.communicate(timeout=60)[0].split("\n")

    assert process.returncode == int(WorkerExit.STOPPED)
    assert len([line for line in rest if line]) <= 1, "one step at most was begun after the request"
    newest = selection.select_checkpoint(tmp_path / "a").path
    assert newest is not None
    assert f"step-{int(done[-1].split()[1]):010d}" in newest.name
    assert ended(start(kind, 40, EPOCH))[0]["hash"] == undisturbed(kind, 40, EPOCH)["hash"]


@pytest.mark.parametrize(
    ("kind", "option", "named"),
    [
        ("tensorflow", "loop=enumerate", "passes its batches on"),
        pytest.param("torch", "loop=enumerate", "passes its batches on", marks=AGAIN),
        ("tensorflow", "carry=1", "best"),
    ],
)
def test_what_cannot_be_led_back_is_named_once_and_trains(start: Start, kind: str, option: str, named: str) -> None:
    found, said = ended(start(kind, 30, option))

    assert found["replayed_steps"] == 0
    assert len(found["problems"]) == 1
    assert named in found["problems"][0]
    assert said.count("replays no steps") == 1


@pytest.mark.parametrize("kind", BOTH)
def test_a_difference_stops_a_job_that_wants_it(start: Start, kind: str) -> None:
    _, said = ended(start(kind, 60, "flip=weight", on_difference="stop"), int(WorkerExit.NOT_REPEATABLE))

    assert "gave other bits" in said
    assert "training is complete" not in said


@pytest.mark.parametrize("kind", BOTH)
def test_a_loop_that_is_left_in_a_replay_keeps_all_its_steps(start: Start, undisturbed: Undisturbed, kind: str) -> None:
    *_, before, left, end, found = wait_for(start(kind, 40, "leave=2"), "{")

    assert [before, left, end] == ["again 6", "again 7", "ended 10"]
    assert json.loads(found)["hash"] == undisturbed(kind, 10)["hash"]
