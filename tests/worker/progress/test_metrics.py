"""What a script gives as a metric becomes numbers, or is left out."""

from types import SimpleNamespace

import pytest

from worker.progress.metrics import metric_values, replica_metrics, replica_values


def test_a_metric_of_replicas_is_their_mean_and_keeps_its_parts() -> None:
    metrics = {"loss": SimpleNamespace(values=(1, 3.0)), "rate": 0.5}

    assert metric_values(metrics) == {"loss": 2.0, "rate": 0.5}
    assert replica_metrics(metrics) == {"loss": (1.0, 3.0)}


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 10**400, -(10**400)], ids=["nan", "inf", "large", "small"]
)
def test_what_no_finite_number_holds_is_left_out(value: float) -> None:
    assert metric_values({"loss": value, "rate": 0.5}) == {"rate": 0.5}


def test_an_integer_beyond_all_floats_is_infinite() -> None:
    assert replica_values(10**400) == [float("inf")]
    assert replica_values(-(10**400)) == [float("-inf")]
