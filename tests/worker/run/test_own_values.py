"""Values that each replica has for itself come back in each of several processes, and in another number of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.worker.gang import Gang

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(600)]

CHILD = ROOT / "tests" / "worker" / "children" / "own_values.py"


def trained(folder: Path, stop: int, workers: int = 1, replicas: int = 1) -> tuple[list[dict[str, Any]], str]:
    """Goes on to a step: the values that each process ends with, and what was said."""
    command = [sys.executable, str(CHILD), str(folder), str(stop)]
    orders = {"strategy": "multiworker"} if workers > 1 else {"strategy": "mirrored", "replicas": replicas}
    gang = Gang(command, workers, folder, **orders)
    assert gang.wait() == [0] * workers, gang.said()
    return [json.loads((folder / f"own-{rank}").read_text()) for rank in range(workers)], gang.said()


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder in which two processes trained two steps, and what each had then."""
    folder = tmp_path_factory.mktemp("two")
    return folder, trained(folder, 2, workers=2)[0]


def copied(folder: Path, to: Path) -> Path:
    subprocess.run(["cp", "-a", str(folder), str(to / "copy")], check=True)
    return to / "copy"


def test_each_process_goes_on_with_its_own_values(by_two: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    undisturbed, _ = trained(tmp_path / "whole", 5, workers=2)

    resumed, said = trained(copied(by_two[0], tmp_path), 5, workers=2)

    assert undisturbed[0]["sum"] != undisturbed[1]["sum"], "the processes differ in what they count"
    assert resumed == undisturbed
    assert "not matched" not in said


SUMS = ("sum", "count", "Mean.0", "Mean.1", "Sum.0", "Accuracy.0", "Accuracy.1")


def added(values: list[list[float]]) -> list[float]:
    return [sum(each) for each in zip(*values, strict=True)] if isinstance(values[0], list) else [sum(values)]


@pytest.mark.parametrize(
    ("workers", "replicas"),
    [pytest.param(1, 1, marks=pytest.mark.nightly), (3, 1), (1, 3)],  # one process again, with fewer replicas
)
def test_with_other_processes_the_sums_are_kept_and_it_is_said(
    by_two: tuple[Path, list[dict[str, Any]]], tmp_path: Path, workers: int, replicas: int
) -> None:
    folder, before = by_two

    after, said = trained(copied(folder, tmp_path), 2, workers, replicas)

    for name in SUMS:
        values = [value for process in after for value in process[name]]
        assert added(values) == pytest.approx(added([value for process in before for value in process[name]])), name
        assert len(values) == workers * replicas
    first, second = (process["mean"][0] for process in before)
    mean = [(one + other) / 2 for one, other in zip(first, second, strict=True)]
    assert all(value == pytest.approx(mean) for process in after for value in process["mean"])
    assert all(value == before[0]["first"][0] for process in after for value in process["first"])
    assert f"written by 2 replicas, now {workers * replicas}: sums are kept" in said


def test_as_many_replicas_in_one_process_have_the_values_of_two_processes(
    by_two: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, before = by_two

    ((after,), said) = trained(copied(folder, tmp_path), 2, replicas=2)

    assert {name: after[name] for name in after if name != "alone"} == {
        name: [*before[0][name], *before[1][name]] for name in before[0] if name != "alone"
    }
    assert after["alone"] == pytest.approx([before[0]["alone"][0] + before[1]["alone"][0]])
    assert "written by" not in said


def test_two_processes_go_on_from_two_replicas_of_one(tmp_path: Path) -> None:
    ((before,), _) = trained(tmp_path, 2, replicas=2)

    after, _ = trained(tmp_path, 2, workers=2)

    names = [name for name in before if name != "alone"]
    assert [{name: each[name][0] for name in names} for each in after] == [
        {name: before[name][rank] for name in names} for rank in (0, 1)
    ]


def test_metrics_of_an_epoch_of_fit_that_died_are_those_of_all_processes(tmp_path: Path) -> None:
    def fitted(folder: Path, die: int) -> list[dict[str, list[float]]]:
        gang = Gang([sys.executable, str(CHILD.with_name("fit_own_values.py")), str(folder), str(die)], 2, folder)
        assert (gang.wait() == [0, 0]) == (die == 0), gang.said()
        return [json.loads(path.read_text()) for path in sorted(folder.glob("logs-?"))]

    undisturbed = fitted(tmp_path / "a", 0)
    assert fitted(tmp_path / "b", 5) == []
    resumed = fitted(tmp_path / "b", 0)

    assert len(undisturbed) == 2
    assert resumed == undisturbed
