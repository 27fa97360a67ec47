"""What a script does between the `with` of its run and its loop, each start does again: it is named."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supervisor.protocol.wire.launch import Launch
from tests.worker.histories import History
from worker.files import FilesRun


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def steps(run: FilesRun) -> None:
    for _ in run.range(3):
        run.step_done()


class Model:
    """Has a rate, and weights that can be set."""

    learning_rate = 0.1

    def set_weights(self, weights: Any) -> None:
        self.weights = weights


class Average:
    """Gives and takes its own state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


def state_set_again(folder: Path) -> None:
    with FilesRun(History(), directory=folder) as run:
        run.state["best"] = float("inf")
        run.state["losses"] = []
        run.state["order"] = np.zeros(3)
        steps(run)


def weights_and_rate_set_again(folder: Path) -> None:
    model = Model()
    with FilesRun(History(), directory=folder, leave_out=[model]) as run:
        model.set_weights([1.0])
        model.learning_rate = 0.5
        for _ in run.epochs(1):
            steps(run)


def draws_before_the_loop(folder: Path) -> None:
    with FilesRun(History(), directory=folder) as run:
        print("noise", np.random.random())
        steps(run)


def done_at_the_first_start_alone(folder: Path) -> None:
    model = Model()
    with FilesRun(History(), directory=folder, state={"losses": []}, leave_out=[model]) as run:
        run.state.setdefault("best", 0.0)
        run.state["average"] = Average()
        best = run.state["best"]
        if run.step == 0:
            model.set_weights([random.random(), best])
            run.state["noise"] = np.random.random()
        steps(run)


def done_in_the_loop(folder: Path) -> None:
    model = Model()
    with FilesRun(History(), directory=folder, leave_out=[model]) as run:
        for epoch in run.epochs(2):
            model.learning_rate = 0.5**epoch
            run.state["epoch"] = epoch
            steps(run)
            random.random()


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (state_set_again, ["run.state['best']", "run.state['losses']", "run.state['order']"]),
        (weights_and_rate_set_again, ["model.set_weights", "model.learning_rate"]),
        (draws_before_the_loop, ["random numbers that are drawn between the with of the run and its loop"]),
        (done_at_the_first_start_alone, []),
        (done_in_the_loop, []),
    ],
)
def test_what_each_start_does_again_before_the_loop_is_named(
    script: Callable[[Path], None], named: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path)

    said = capfd.readouterr().err
    assert [name for name in named if f"{name} (test_run_heads.py:" not in said] == []
    assert ("cannot resume exactly" in said) == bool(named)


def test_name_in_leave_out_may_be_set_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with FilesRun(History(), directory=tmp_path, leave_out=["run.state['best']"]) as run:
        run.state["best"] = 1.0
        steps(run)

    assert "cannot resume exactly" not in capfd.readouterr().err


def test_a_second_run_of_a_script_that_makes_no_step_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        with FilesRun(History(), directory=tmp_path) as run:
            steps(run)
        said = capfd.readouterr().err

    assert "this run made no step: it went on from step 3" in said
    assert "make one run of both" in said


def test_runs_that_follow_one_another_are_explained_once_and_not_to_a_restart_that_is_behind_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], begin: Callable[[Launch], None]
) -> None:
    def train(*totals: int) -> str:
        begin(Launch())
        for total in totals:
            with FilesRun(History(), directory=tmp_path, total_steps=total) as run:
                while not run.reached:
                    run.step_done()
        return capfd.readouterr().err

    assert train(2, 4, 6).count("this run goes on from step") == 1
    assert "this run" not in train(2, 4, 6, 8)


def test_a_second_run_in_a_folder_of_its_own_trains_and_says_nothing_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        with FilesRun(History(), directory=tmp_path / name) as run:
            steps(run)

    assert run.step == 3
    assert "made no step" not in capfd.readouterr().err


def test_a_second_run_that_trains_on_from_the_first_one_says_so_at_its_beginning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for total in (3, 5):
        with FilesRun(History(), directory=tmp_path, total_steps=total) as run:
            while not run.reached:
                run.step_done()
    said = capfd.readouterr().err

    assert "this run goes on from step 3, where the script's run before it had ended" in said
    assert "a job of its own" in said
    assert "made no step" not in said


def test_a_finished_script_whose_runs_have_folders_of_their_own_says_nothing_of_it_when_started_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], begin: Callable[[Launch], None]
) -> None:
    for _ in range(2):
        begin(Launch())
        for name in ("first", "second"):
            with FilesRun(History(), directory=tmp_path / name, total_steps=3) as run:
                while not run.reached:
                    run.step_done()

    said = capfd.readouterr().err
    assert "made no step" not in said
    assert "goes on from" not in said
