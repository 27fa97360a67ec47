"""Which strategy a job gets where its configuration names none."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from supervisor.protocol.wire.launch import Launch
from worker.devices import conditions
from worker.devices.strategies import build_strategy
from worker.devices.tensorflow_conditions import topology
from worker.internals.tensorflow_internals import is_default_strategy

pytestmark = pytest.mark.tensorflow


def test_one_device_is_trained_under_the_default_strategy() -> None:
    built = build_strategy(Launch())

    assert is_default_strategy(built)
    assert topology(built) == topology(None), "a loop without a strategy computes the same"


def test_several_devices_are_mirrored(two_replicas: Any) -> None:
    assert type(two_replicas) is tf.distribute.MirroredStrategy
    assert type(build_strategy(Launch(replicas=2))) is tf.distribute.MirroredStrategy


@pytest.mark.parametrize(
    ("before", "replicas", "expected"),
    [
        ("MirroredStrategy", 1, tf.distribute.MirroredStrategy),
        ("OneDeviceStrategy", 1, tf.distribute.OneDeviceStrategy),
        ("none", 1, None),
        ("MirroredStrategy", 2, None),
        ("TPUStrategy", 8, None),
    ],
)
def test_job_continues_under_the_strategy_of_one_device_that_it_began_under(
    before: str, replicas: int, expected: type | None, tmp_path: Path
) -> None:
    conditions.record_conditions({"strategy": before, "replicas": replicas}, tmp_path)

    built = build_strategy(Launch(checkpoint_dir=tmp_path))

    assert is_default_strategy(built) if expected is None else type(built) is expected


def test_named_strategy_is_used_whatever_the_job_began_under(tmp_path: Path) -> None:
    conditions.record_conditions({"strategy": "OneDeviceStrategy", "replicas": 1}, tmp_path)

    built = build_strategy(Launch(strategy="mirrored", checkpoint_dir=tmp_path))

    assert type(built) is tf.distribute.MirroredStrategy


def test_fewer_gpus_than_the_job_can_do_with_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"] if kind == "GPU" else ["a CPU"])

    with pytest.raises(RuntimeError, match="cannot train on 1 GPU: replicas_min is 2"):
        build_strategy(Launch(replicas=4, replicas_min=2))


def test_directory_that_can_not_be_read_is_not_an_error_here(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert is_default_strategy(build_strategy(Launch(checkpoint_dir=tmp_path / "file")))
