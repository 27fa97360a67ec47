"""What the first pass of a loop sets, and a restart sets otherwise, is named; what comes out the same is not."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from supervisor.protocol import layout
from supervisor.protocol.wire.launch import Launch
from tests.worker.histories import Died, History
from worker.checks.watch.kept.kept_values import Reached
from worker.checks.watch.set_once import SetOnce, read_set_once, write_set_once
from worker.files import FilesRun


class Normalizer:
    """Learns from the first batch that it sees."""

    seen = 0

    def __init__(self) -> None:
        self.mean: float | None = None
        self.weights: np.ndarray | None = None
        self.last = 0.0

    def normalize(self, value: float) -> float:
        if self.mean is None:
            self.mean, self.weights = value, np.ones(2)
        self.last = value
        return value - self.mean


class Epochs:
    """Does something in the first epoch alone."""

    def __init__(self) -> None:
        self.warm = False
        self.begun = False

    def begin(self, epoch: int) -> None:
        self.begun = True
        if epoch == 0:
            self.warm = True


def train(directory: Path, dies_at: int, normalizer: Normalizer, epochs: Epochs) -> None:
    with FilesRun(History(), directory=directory, interval="1 steps") as run:
        for epoch in run.epochs(3):
            epochs.begin(epoch)
            for number in run.range(4):
                loss = normalizer.normalize(10.0 * epoch + number)
                if run.step == dies_at:
                    raise Died
                run.step_done(loss=loss + epochs.warm)


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def killed(directory: Path, dies_at: int) -> None:
    with pytest.raises(Died):
        train(directory, dies_at, Normalizer(), Epochs())
    wait_for_the_record()


def wait_for_the_record() -> None:
    for thread in threading.enumerate():
        if thread.name == "stepkeeper-set-once":
            thread.join(60)


def test_what_the_first_batch_set_and_another_one_sets_otherwise_is_named_after_the_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    killed(tmp_path / "job", 6)
    assert "cannot resume exactly" not in capfd.readouterr().err
    assert read_set_once(tmp_path / "job").keys() == {
        "normalizer.mean", "normalizer.weights", "epochs.warm",
    }  # fmt: skip

    train(tmp_path / "job", -1, Normalizer(), Epochs())

    (said,) = [line for line in capfd.readouterr().err.splitlines() if "cannot resume exactly" in line]
    assert "normalizer.mean (test_set_once.py:" in said
    assert "sets them, now to something else than before the restart" in said
    assert "epochs.warm (test_set_once.py:" in said
    assert "weights" not in said
    assert "begun" not in said


def test_what_is_set_to_the_same_again_is_not_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path / "job", 3)
    again = Normalizer()
    again.normalize(0.0)
    train(tmp_path / "job", -1, again, Epochs())

    assert "cannot resume exactly" not in capfd.readouterr().err


def test_what_an_earlier_training_has_recorded_is_not_compared_with_a_new_one(tmp_path: Path) -> None:
    write_set_once(tmp_path, {"normalizer.mean": 1})
    normalizer = Normalizer()
    normalizer.normalize(0.0)

    train(tmp_path, 20, normalizer, Epochs())

    assert read_set_once(tmp_path).keys() == {"epochs.warm"}


def reached(path: str, digest: int, kind: str = "value", owner: int | None = 1, value: object = 0.5) -> Reached:
    return Reached(path, kind, digest, 0, owner, path.rpartition(".")[2], value)


def seen(*values: Reached) -> dict[str, Reached]:
    return {value.path: value for value in values}


def test_only_what_the_first_pass_sets_and_no_later_one_changes_is_kept() -> None:
    once = SetOnce({})
    once.begin(seen(reached("a.same", 1), reached("a.set", 1), reached("a.then_changed", 1), reached("a.anew", 1)))
    now = seen(
        reached("a.same", 1), reached("self.same", 1), reached("a.set", 2), reached("a.anew", 2),
        reached("a.then_changed", 2),
        reached("a.new", 3), reached("b.of_a_new_object", 3, owner=2), reached("new_name", 3, owner=None),
        reached("a.text", 3, value="run of today"),
    )  # fmt: skip
    once.first(now, lambda value, before: True)
    assert once.digests == {"a.set": 2, "a.then_changed": 2, "a.anew": 2, "a.new": 3}

    once.later(now | seen(reached("a.then_changed", 9)), lambda value, before: value.path != "a.anew")

    assert once.digests == {"a.set": 2, "a.new": 3}


def test_what_an_object_gets_only_in_the_first_pass_is_kept_and_numbers_in_containers() -> None:
    once = SetOnce({})
    once.begin(seen(reached("a.stats", 1, kind="default", value=None), reached("a.base", 1, kind="container")), {1, 7})
    full = replace(reached("a.base", 2, kind="container"), numbers=(1.0,))
    texts = reached("a.texts", 2, kind="container")
    late, of_late, other = reached("b.mean", 3, owner=7), reached("a.stats.mean", 3, owner=8), reached("c", 3, owner=9)

    once.first(seen(full, texts, late, of_late, other), lambda value, before: True)

    assert once.digests == {"a.base": 2, "b.mean": 3, "a.stats.mean": 3}


def test_caches_that_the_first_pass_has_filled_are_told() -> None:
    once = SetOnce({})
    once.begin(seen(reached("draw", 0, kind="cache"), reached("again", 1, kind="cache")))

    assert [cache.path for cache in once.drawn(seen(reached("draw", 1, "cache"), reached("again", 1, "cache")))] == [
        "draw"
    ]


class Modes:
    """Has a mode, a limit and a function, which the first step may replace, and two names of the process."""

    def __init__(self) -> None:
        self.mode, self.limit, self.rate = "cold", 0.5, float
        self.host, self.folder = "", None

    def step(self, number: int) -> str:
        if not self.host:
            self.host, self.folder = f"host of {os.urandom(4).hex()}", f"of {os.urandom(4).hex()}"
        if number == 0:
            self.mode, self.limit, self.rate = "warm", None, abs
        return f"{self.mode} {self.limit} {self.rate(1.0)} {self.host} {self.folder}"


def test_texts_none_and_functions_that_only_the_first_process_has_set_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for dies_at in (4, -1):
        modes = Modes()
        with contextlib.suppress(Died), FilesRun(History(), directory=tmp_path, interval="1 steps") as run:
            for number in run.range(8):
                shown = modes.step(number)
                if run.step == dies_at:
                    raise Died
                run.step_done(loss=len(shown))
        wait_for_the_record()

    said = " ".join(line for line in capfd.readouterr().err.splitlines() if "cannot resume exactly" in line)
    assert [name for name in vars(modes) if f"modes.{name} " in said] == ["mode", "limit", "rate"]


class Timer:
    """Says how long the first step took, and who did it."""

    def __init__(self) -> None:
        self.first_s, self.pid, self.log = 0.0, 0, dict[str, float]()

    def first(self, began_at: float) -> None:
        if not self.pid:
            self.first_s, self.pid = time.perf_counter() - began_at, os.getpid() + random.randint(1, 9)
            self.log["first"] = time.perf_counter() - began_at


def test_what_tells_of_the_process_alone_is_not_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for dies_at in (4, -1):
        timer = Timer()
        with contextlib.suppress(Died), FilesRun(History(), directory=tmp_path, interval="1 steps") as run:
            for number in run.range(8):
                timer.first(time.perf_counter() - number)
                if run.step == dies_at:
                    raise Died
                run.step_done(loss=timer.pid + timer.first_s + len(timer.log))
        wait_for_the_record()

    assert read_set_once(tmp_path).keys() == {"timer.first_s", "timer.pid", "timer.log"}
    assert "timer" not in capfd.readouterr().err


def test_a_value_that_differs_is_told_at_each_restart_and_the_first_one_stays_recorded() -> None:
    once = SetOnce({"a.mean": 1, "a.gone": 1, "a.same": 5})
    once.begin(seen(reached("a.mean", 0)))
    now = seen(reached("a.mean", 2), reached("a.same", 5))
    once.first(now, lambda value, before: True)

    assert [value.path for value in once.differing(now, lambda value, before: True)] == ["a.mean"]
    assert once.differing(now, lambda value, before: False) == []
    assert once.digests == {"a.mean": 1, "a.gone": 1, "a.same": 5}


def test_record_comes_back_and_whatever_else_is_there_is_none(tmp_path: Path) -> None:
    write_set_once(tmp_path, {"a.mean": (1 << 64) - 1, "b": 0})
    assert read_set_once(tmp_path) == {"a.mean": (1 << 64) - 1, "b": 0}

    (tmp_path / layout.SET_ONCE).write_text('{"format": 2, "digests": {"b": "0"}}')
    assert read_set_once(tmp_path) == {}
    (tmp_path / layout.SET_ONCE).unlink()
    assert read_set_once(tmp_path) == {}


def test_what_a_process_has_set_that_died_in_its_second_step_is_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its only checkpoint is that of the first step. What a later step changes is not named, though it was recorded."""
    killed(tmp_path / "job", 1)
    of_head = {"epochs.warm"}
    assert read_set_once(tmp_path / "job").keys() == {"normalizer.mean", "normalizer.weights", *of_head}
    recorded = read_set_once(tmp_path / "job") | {"normalizer.last": 1}
    write_set_once(tmp_path / "job", recorded)

    train(tmp_path / "job", -1, Normalizer(), Epochs())

    (said,) = [line for line in capfd.readouterr().err.splitlines() if "cannot resume exactly" in line]
    assert "normalizer.mean" in said
    assert "normalizer.last" not in said


def fill_and_train(directory: Path, dies_at: int) -> None:
    dones = np.zeros(4)
    with FilesRun(History(), directory=directory, interval="1 steps") as run:
        for number in run.range(12):
            for place in range(4):
                dones[place] = 1 + number // 3
            if number == dies_at:
                raise Died
            run.step_done(loss=float(dones.sum()))


def test_buffer_that_each_step_fills_before_it_reads_it_is_not_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As that of PPO for the ends of episodes, which some steps fill with the same."""
    with pytest.raises(Died):
        fill_and_train(tmp_path / "job", 3)
    wait_for_the_record()

    fill_and_train(tmp_path / "job", -1)

    assert "cannot resume exactly" not in capfd.readouterr().err
