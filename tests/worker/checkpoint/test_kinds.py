"""State of every kind under every strategy: interrupted in the middle equals undisturbed at the end."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.places import ROOT
from tests.worker.gang import Gang

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = ROOT / "tests" / "worker" / "children" / "kinds.py"
KINDS = {
    "draws": (
        "dropout", "a custom layer's generator", "replica_streams", "tf.random.Generator", "Python", "NumPy",
        "an own Keras SeedGenerator", "an own NumPy Generator", "an own NumPy RandomState", "an own Python Random",
    ),
    "global_seed": ("Keras' global generator",),
    "moving_average": ("EMA weights",),
    "loss_scaling": ("loss scaling",),
    "accumulation": ("accumulated gradients",),
}  # fmt: skip
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "one-device": (1, {"strategy": "one-device"}),
    "mirrored": (1, {"strategy": "mirrored", "replicas": 2}),
    "multiworker": (2, {}),
}
"""How many processes, and what they are told."""
REFUSED = {
    "global_seed": "Keras makes a global generator in each replica's thread, inside the step, which TensorFlow refuses",
    "accumulation": "Keras adds up gradients in a branch that it can't run on replicas of a strategy",
}  # where there may be several replicas
Reports = Callable[[str], list[dict[str, Any]]]


def done_under(strategy: str) -> list[str]:
    return [kind for kind in KINDS if strategy == "one-device" or kind not in REFUSED]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each process of a strategy found; all trainings of it that the chosen tests ask for run in one go."""
    known: dict[str, list[dict[str, Any]]] = {}
    cases = [item.callspec.params for item in request.session.items if item.path == request.path]
    asked = {(case["strategy"], case["training"]) for case in cases}

    def of(strategy: str) -> list[dict[str, Any]]:
        if strategy not in known:
            folder = tmp_path_factory.mktemp(strategy)
            processes, orders = STRATEGIES[strategy]
            trainings = [name for name in done_under(strategy) if (strategy, name) in asked]
            gang = Gang([sys.executable, str(SCRIPT), str(folder), *trainings], processes, folder, **orders)
            assert gang.wait() == [0] * processes, gang.said()
            known[strategy] = [json.loads(path.read_text()) for path in sorted(folder.glob("report-?.json"))]
        return known[strategy]

    return of


def is_in_every_run(strategy: str, training: str) -> bool:
    """Not averages and loss scales on several replicas: they are variables like any other. Processes have the draws of
    test_own_values.py."""
    return strategy == "one-device" or training in REFUSED or (strategy, training) == ("mirrored", "draws")


@pytest.mark.parametrize(
    ("strategy", "training", "kind"),
    [
        pytest.param(strategy, name, kind, marks=() if is_in_every_run(strategy, name) else pytest.mark.nightly)
        for strategy in STRATEGIES
        for name, kinds in KINDS.items()
        for kind in kinds
    ],
)
def test_interrupted_ends_as_undisturbed(strategy: str, training: str, kind: str, reports: Reports) -> None:
    if training not in done_under(strategy):
        pytest.skip(REFUSED[training])
    found = [report[training] for report in reports(strategy)]

    assert len(found) == (2 if strategy == "multiworker" else 1)
    for whole, resumed in ((each["undisturbed"], each["resumed"]) for each in found):
        assert resumed["made"][kind] != whole["saved"][kind] == resumed["begun"][kind], "it was lost, and came back"
        assert whole["saved"][kind] != whole["ended"][kind] == resumed["ended"][kind]
        assert whole["ended"]["weights"] == resumed["ended"]["weights"]
