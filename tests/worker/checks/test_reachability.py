"""Which names a function looks up in its module."""

import argparse
import asyncio.base_events
import dis
import inspect
import tarfile
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from worker.checks.reachability import find_unsaved_generators, global_names, parts_of_script, walk


def names_by_dis(code: types.CodeType) -> frozenset[str]:
    names = {
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return frozenset(names).union(*[names_by_dis(part) for part in code.co_consts if isinstance(part, types.CodeType)])


@pytest.mark.parametrize(
    "module", [argparse, asyncio.base_events, inspect, tarfile], ids=lambda module: module.__name__
)
def test_names_of_the_module_are_those_that_dis_shows(module: types.ModuleType) -> None:
    code = compile(inspect.getsource(module), "module.py", "exec")

    assert global_names(code) == names_by_dis(code)


@pytest.mark.thorough
def test_a_module_with_more_names_than_a_byte_counts_has_them_all() -> None:
    code = compile("\n".join(f"name_{number}" for number in range(70_000)), "module.py", "exec")

    assert len(global_names(code)) == 70_000


def test_fixtures_of_pytest_are_not_searched(request: pytest.FixtureRequest) -> None:
    """They lead to all tests of the session."""
    assert list(walk([("request", request)], parts_of_script)) == [("request", request)]


class Slotted:
    """Keeps its generator in no dictionary."""

    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)


class Shared:
    """All of its objects draw from one generator."""

    rng = np.random.default_rng(1)


def noise() -> Iterator[float]:
    rng = np.random.default_rng(1)
    while True:
        yield rng.random()


def started() -> Iterator[float]:
    source = noise()
    next(source)
    return source


def through_a_module() -> Callable[[], Any]:
    tools = types.ModuleType("tools")
    code = "import numpy\nrng = numpy.random.default_rng(1)\nunused = numpy.random.default_rng(1)\n"
    exec(f"{code}def draw(): return rng.random()", vars(tools))
    variables: dict[str, Any] = {"tools": tools}
    exec("def draw(): return tools.draw()", variables)
    draw: Callable[[], Any] = variables["draw"]
    return draw


@pytest.mark.parametrize("made", [Slotted, Shared, lambda: Shared, started, through_a_module])
def test_generator_that_the_loop_can_reach_is_found_once(made: Callable[[], Any]) -> None:
    value = made()

    assert find_unsaved_generators([("it", value)], (), ()) == ("Generator (reached as it)",)
