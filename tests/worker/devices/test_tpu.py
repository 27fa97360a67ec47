"""A TPU, as far as that goes without one: the calls in their order, and whose disk and memory checkpoints use."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from supervisor.protocol.wire.launch import without_launch_variables
from tests import forked
from tests.places import ROOT
from worker.devices import tpu

pytestmark = pytest.mark.tensorflow
SCRIPT = ROOT / "tests" / "worker" / "children" / "elsewhere.py"


class Google:
    """TensorFlow's four calls; each notes what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.missing = ""
        monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", self.resolver)
        monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", self.noting("connect"))
        monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", self.noting("initialise"))
        monkeypatch.setattr(tf.distribute, "TPUStrategy", self.noting("strategy"))
        monkeypatch.setattr(tpu, "_connected", False)

    def resolver(self, tpu: str) -> str:
        self.calls.append(("resolver", tpu))
        if self.missing:
            raise ValueError(self.missing)
        return f"resolved {tpu}"

    def noting(self, name: str) -> Any:
        def call(given: Any) -> str:
            self.calls.append((name, given))
            return name

        return call


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    return Google(monkeypatch)


@pytest.mark.parametrize("name", [None, "", "local"])
def test_tpu_of_this_host_is_initialised_and_nothing_is_connected(
    name: str | None, google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPU_NAME", raising=False)
    if name is not None:
        monkeypatch.setenv("TPU_NAME", name)

    assert tpu.tpu_strategy() == "strategy"
    resolved = "resolved local"
    assert google.calls == [("resolver", "local"), ("initialise", resolved), ("strategy", resolved)]
    assert (tpu.host_io_options(), tpu.host_memory_device()) == (None, "/cpu:0")


def test_tpu_of_another_host_is_connected_before_it_is_initialised(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_NAME", "pod-7")

    assert tpu.tpu_strategy() == "strategy"
    assert [name for name, _ in google.calls] == ["resolver", "connect", "initialise", "strategy"]
    assert {given for _, given in google.calls[1:]} == {"resolved pod-7"}
    options = tpu.host_io_options()
    assert options is not None and options.experimental_io_device == "/job:localhost"
    assert tpu.host_memory_device() == "/job:localhost/device:CPU:0"


def test_tpu_that_is_not_there_says_which_and_what_to_do(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "pod-7")
    google.missing = "no such\nTPU"

    with pytest.raises(RuntimeError, match=r"cannot train on TPU 'pod-7': no such TPU; set TPU_NAME in environment="):
        tpu.tpu_strategy()

    assert [name for name, _ in google.calls] == ["resolver"]
    assert tpu.host_io_options() is None


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_checkpoints_are_of_this_process_where_variables_are_anothers(tmp_path: Path) -> None:
    """With a second process that holds the variables, as a TPU's host does, though it has no TPU."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    done = forked.run(command, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "here" / "found.json").read_text())

    assert found["owner"].startswith("/job:worker/")
    assert [1.0] * 3 in found["copies"]
    assert found["begun"] == {"copied": [[1.0] * 3, [2.0] * 3], "written": [[1.0] * 3, [2.0] * 3]}
    assert found["foreign"] == [5.0] * 3
    assert list((tmp_path / "there").iterdir()) == []
