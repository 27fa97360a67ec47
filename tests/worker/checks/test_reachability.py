"""Which names a function looks up in its module."""

import argparse
import asyncio.base_events
import dis
import inspect
import tarfile
import types

import pytest

from worker.checks.reachability import global_names, parts_of_script, walk


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


def test_a_module_with_more_names_than_a_byte_counts_has_them_all() -> None:
    code = compile("\n".join(f"name_{number}" for number in range(70_000)), "module.py", "exec")

    assert len(global_names(code)) == 70_000


def test_fixtures_of_pytest_are_not_searched(request: pytest.FixtureRequest) -> None:
    """They lead to all tests of the session."""
    assert list(walk([("request", request)], parts_of_script)) == [("request", request)]
