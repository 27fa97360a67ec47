"""Every value that a loop reaches, by its path: what a proof compares."""

import sys
from collections import deque
from typing import Any

import numpy as np
import pytest

from worker.checks.value_snapshot import snapshot


class Holder:
    def __init__(self) -> None:
        self.beta = 0.5
        self.memory = deque([1, 2], maxlen=4)
        self.weights = {"kernel": np.zeros(2)}
        self.me = self


RATE = 0.1


def decayed() -> float:
    return RATE * 2


def values_of(**names: object) -> dict[str, str]:
    """The values reached from a frame with these local names."""
    code = compile("found = snapshot(sys._getframe(), None)", "script.py", "exec")
    scope: dict[str, object] = {**names, "snapshot": snapshot, "sys": sys, "__name__": "script"}
    exec(code, scope)
    found = scope["found"]
    assert isinstance(found, dict)
    return found


def test_attributes_entries_and_globals_of_functions_have_paths():
    found = values_of(holder=Holder(), step=3, decayed=decayed)

    assert found["holder.beta"] == "0.5"
    assert found["step"] == "3"
    assert found["RATE"] == "0.1"
    assert found["holder.memory"] == "deque of 2: 1, 2"
    assert found["holder.weights['kernel']"].startswith("float64 [2] ")


def test_a_value_that_changes_by_a_bit_is_another_text():
    weights = np.zeros(3)
    before = values_of(weights=weights)["weights"]
    weights[2] = np.nextafter(0.0, 1.0)

    assert values_of(weights=weights)["weights"] != before


def test_generators_are_compared_by_their_state():
    chance = np.random.default_rng(1)
    before = values_of(chance=chance)["chance"]
    chance.random()

    assert values_of(chance=chance)["chance"] != before


def test_two_snapshots_of_the_same_are_the_same():
    holder = Holder()

    assert values_of(holder=holder) == values_of(holder=holder)


def test_objects_of_libraries_are_left_out():
    assert not [path for path in values_of(module=np, path=sys) if path.startswith(("module", "path"))]


def test_long_texts_and_wide_integers_are_compared_whole():
    text, number = "a" * 100_000, 10**5000
    before = values_of(text=text, raw=text.encode(), number=number)
    after = values_of(text=text[:-1] + "b", raw=text.encode()[:-1] + b"b", number=number + 1)

    assert all(before[name] != after[name] for name in ("text", "raw", "number"))
    assert all(len(shown) < 100 for shown in before.values())


@pytest.mark.parametrize("kind", [list, tuple, deque, set, frozenset])
def test_no_entry_is_asked_for_that_a_container_computes(kind: type):
    class Augmented(kind):  # type: ignore[misc]
        def __iter__(self) -> Any:
            raise AssertionError("it draws random numbers")

    plain, long = values_of(data=Augmented([1, 2])), values_of(data=Augmented(range(20_000)))

    assert "of 2: 1, 2" in plain["data"]
    assert "of 20000" in long["data"]
