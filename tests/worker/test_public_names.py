"""The public names of `worker` can be imported as scripts import them, and `import worker` alone stays cheap."""

import importlib.util
import os
import subprocess
import sys

import pytest

from supervisor.protocol.wire.launch import without_launch_variables
from tests.places import ROOT

WITHOUT_TENSORFLOW = """
import sys
import worker

assert sorted(worker.__all__) == [name for name in dir(worker) if not name.startswith("_")], dir(worker)
heavy = {"tensorflow", "keras", "torch", "numpy"} & set(sys.modules)
assert not heavy, f"import worker imported {heavy}"

from worker.files import FilesRun, NotFinite, Unfit, prepare
assert "tensorflow" not in sys.modules and "torch" not in sys.modules
for name in ("Runn", "_DEFINED_INN", "checkpointing"):
    assert not hasattr(worker, name), name
"""

WITH_TENSORFLOW = """
import worker
import worker.keras
import worker.tf1
from worker import Examples, Run, Training, microbatch, replica_streams, strategy
from worker.export import export, verify
from worker.files import Unfit
from worker.keras import fit
from worker.tf1 import Run as SessionRun, prepare

for name in worker.__all__:
    if name != "torch":
        assert getattr(worker, name) is not None
assert worker.microbatch.accumulate is microbatch.accumulate
functions = (replica_streams, strategy, export, verify, fit, prepare)
assert all(map(callable, (Examples, Run, Training, SessionRun, *functions)))
"""

WITH_TORCH = """
import sys
import worker.torch
from worker.torch import Run, prepare

assert callable(Run) and callable(prepare)
assert "tensorflow" not in sys.modules
"""


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.integration
def test_names_that_need_no_library_import_without_one() -> None:
    script = run_script("-c", WITHOUT_TENSORFLOW)

    assert (script.returncode, script.stderr) == (0, "")


@pytest.mark.integration
def test_module_is_a_command_that_explains_its_usage() -> None:
    script = run_script("-m", "worker")

    assert script.returncode == 78
    assert "usage: python -m worker package.module:function" in script.stderr


@pytest.mark.parametrize("package", ["supervisor", "worker"])
def test_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.tensorflow
def test_names_of_tensorflow_import_as_scripts_import_them() -> None:
    script = run_script("-c", WITH_TENSORFLOW)

    assert script.returncode == 0, script.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_names_of_pytorch_import_without_tensorflow() -> None:
    script = run_script("-c", WITH_TORCH)

    assert script.returncode == 0, script.stderr


@pytest.mark.integration
@pytest.mark.tensorflow
@pytest.mark.parametrize("use", ["worker.Run", "worker.export", "import worker.keras"])
def test_keras_2_in_place_of_keras_3_is_refused_with_what_to_write(use: str) -> None:
    done = run_script("-c", f"import os; os.environ['TF_USE_LEGACY_KERAS'] = '1'; import worker; {use}")

    assert done.returncode == 1
    assert "with TF_USE_LEGACY_KERAS=1: it saves the state of Keras 3" in done.stderr
    assert 'write "import tf_keras" in place of tf.keras' in done.stderr


@pytest.mark.integration
@pytest.mark.tensorflow
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_on_another_backend_is_refused_with_what_to_set(backend: str) -> None:
    script = f"import os; os.environ['KERAS_BACKEND'] = '{backend}'; import worker; worker.keras.fit"

    done = run_script("-c", script)

    assert done.returncode == 1
    assert f"cannot use worker.keras with Keras on {backend}: " in done.stderr
    assert "set KERAS_BACKEND=tensorflow" in done.stderr
