"""State of every kind under every strategy: interrupted in the middle equals undisturbed at the end."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.protocol.wire.launch import Launch, without_launch_variables
from tests import forked
from tests.places import ROOT

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
LAUNCHES = {
    "one-device": Launch(strategy="one-device"),
    "mirrored": Launch(strategy="mirrored", replicas=2),
    "multiworker": Launch(strategy="multiworker", workers=2),
}
REFUSED = {
    "global_seed": "Keras makes a global generator in each replica's thread, inside the step, which TensorFlow refuses",
    "accumulation": "Keras adds up gradients in a branch that it can't run on replicas of a strategy",
}  # where there may be several replicas
Reports = Callable[[str], list[dict[str, Any]]]


def done_under(strategy: str) -> list[str]:
    return [each for each in KINDS if strategy == "one-device" or each not in REFUSED]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each process of a strategy found; all trainings run in one go, when the first is asked for."""
    known: dict[str, list[dict[str, Any]]] = {}

    def of(strategy: str) -> list[dict[str, Any]]:
        if strategy not in known:
            folder = tmp_path_factory.mktemp(strategy)
            environment = {
                **without_launch_variables(os.environ),
                **LAUNCHES[strategy].to_environment(),
                "PYTHONPATH": str(ROOT),
            }
            command = [sys.executable, str(SCRIPT), str(folder), *done_under(strategy)]
            done = forked.run(command, env=environment, timeout=500)
            assert done.returncode == 0, done.stderr[-3000:]
            known[strategy] = [json.loads(path.read_text()) for path in sorted(folder.glob("report-?.json"))]
        return known[strategy]

    return of


@pytest.mark.parametrize("strategy", LAUNCHES)
@pytest.mark.parametrize(("training", "kind"), [(name, kind) for name, kinds in KINDS.items() for kind in kinds])
def test_interrupted_ends_as_undisturbed(strategy: str, training: str, kind: str, reports: Reports) -> None:
    if training not in done_under(strategy):
        pytest.skip(REFUSED[training])
    found = [each[training] for each in reports(strategy)]

    assert len(found) == (2 if strategy == "multiworker" else 1)
    for whole, resumed in ((each["undisturbed"], each["resumed"]) for each in found):
        assert resumed["made"][kind] != whole["saved"][kind] == resumed["begun"][kind], "it was lost, and came back"
        assert whole["saved"][kind] != whole["ended"][kind] == resumed["ended"][kind]
        assert whole["ended"]["weights"] == resumed["ended"]["weights"]
