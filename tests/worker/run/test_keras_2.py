"""A model of tf_keras (Keras 2) in a tf.train.Checkpoint is trained by worker.Run: killed, it ends with equal bits."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.protocol.wire.launch import without_launch_variables
from tests.worker.run.test_multiworker import CHILDREN, ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="tf_keras is not installed"),
]
KILLED_AT = (2, 6, 13)


def trained(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHILDREN / "keras_2.py"), str(folder), *map(str, arguments)]
    environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("replicas", [1, 2])
def test_killed_training_of_a_keras_2_model_ends_with_equal_bits(replicas: int, tmp_path: Path) -> None:
    undisturbed = trained(tmp_path / "a", replicas)

    killed = [trained(tmp_path / "b", replicas, step) for step in KILLED_AT]
    disturbed = trained(tmp_path / "b", replicas)

    assert undisturbed.returncode == 0, undisturbed.stderr
    assert [each.returncode for each in killed] == [-signal.SIGKILL] * len(KILLED_AT), killed[0].stderr
    assert "restored" in disturbed.stderr
    assert disturbed.stdout == undisturbed.stdout
    for process in (undisturbed, disturbed):
        assert "do not include" not in process.stderr and "not matched" not in process.stderr
