"""An object of which a loop puts a part into run.state, or a result, is watched all the same."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from worker.checks.findings import Finding
from worker.checks.watch.code.parts_in_state import parts_put_into_state
from worker.checks.watch.kept.given_states import keep_state_of
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.step_watch import StepWatch
from worker.state.run_state import RunState


class Meter:
    def __init__(self) -> None:
        self.best, self.count, self.inner = 0.0, 0, None

    @property
    def mean(self) -> float:
        return self.best / self.count

    def reset(self) -> float:
        self.count = 0
        return self.best

    def advance(self) -> float:
        return self._advance()

    def _advance(self) -> float:
        self.count += 1
        return self.best

    def values(self) -> list[float]:
        held = []
        held.append(self.best)
        return held

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}


class Trainer:
    def __init__(self) -> None:
        self.meter = Meter()


def normalized(meter: Meter) -> float:
    return meter.best


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("meter.reset()", {"meter": []}),
        ("meter.reset() if done else loss", {"meter": []}),
        ("meter.advance()", {"meter": []}),
        ("[meter.reset(), loss]", {"meter": []}),
        ("normalized(meter)", {"meter": []}),
        ("meter.best", {"meter": ["Meter.best"]}),
        ("(meter.best, meter.count)", {"meter": ["Meter.best", "Meter.count"]}),
        ("float(meter.best)", {"meter": ["Meter.best"]}),
        ("meter.best.item()", {"meter": ["Meter.best"]}),
        ("meter.mean", {"meter": ["Meter.best", "Meter.count"]}),
        ("trainer.meter.best", {"trainer": ["Meter.best"]}),
        ("trainer.meter.state_dict()", {"trainer": ["Trainer.meter"]}),
        ("trainer.meter.reset()", {"trainer": []}),
        ("meter", {}),
        ("meter.values()", {}),
        ("meter.state_dict()", {}),
        ("vars(meter)", {}),
        ("loss", {}),
        ("losses.copy()", {}),
    ],
)
def test_part_of_an_object_that_a_statement_puts_there(value: str, parts: dict[str, list[str]]) -> None:
    names = {
        "meter": Meter(), "trainer": Trainer(), "loss": 1.0, "losses": [1.0], "normalized": normalized, "vars": vars,
    }  # fmt: skip

    put = parts_put_into_state(ast.parse(f'run.state["entry"] = {value}'), names)

    assert {
        name: sorted(f"{type(held).__name__}.{attribute}" for held, attribute in some) for name, some in put.items()
    } == parts


LOOP = """
class Env:
    def __init__(self):
        self.place, self.best = 0, 0

    def reset(self):
        self.place = 0
        return self.place / 4

    def step(self):
        self.place += 1
        self.best = max(self.best, self.place)
        return self.place / 4, self.place > 8

env = Env()
for number in range(6):
    observed, done = env.step()
    {put}
    step_done(number)
"""


@pytest.mark.parametrize(
    ("put", "named"),
    [
        ('run.state["obs"] = env.reset() if done else observed', {"env.place", "env.best"}),
        ('run.state["best"] = env.best', {"env.place"}),
        ('run.state.update(best=env.best, place=env.place)', set()),
        ('run.state["env"] = vars(env)', set()),
    ],
)  # fmt: skip
def test_what_such_an_object_carries_besides_is_named(tmp_path: Path, put: str, named: set[str]) -> None:
    assert names_of(LOOP.format(put=put), tmp_path) == named


def names_of(source: str, tmp_path: Path) -> set[str]:
    """The names in `env` that the watch names in a script."""
    state, found, script = RunState({"obs": 0}), list[Finding](), tmp_path / "script.py"

    def keep(kept: Kept) -> None:
        for value in state.held().values():
            keep_state_of(kept, value)

    watch = StepWatch(keep, (), state)
    script.write_text(source)

    def step_done(number: int) -> None:
        found.extend(watch.look(number, 0, sys._getframe(1)))
        watch.begin_step()

    run = type("Run", (), {"state": state, "step_done": step_done})
    exec(compile(script.read_text(), str(script), "exec"), {"run": run, "step_done": step_done, "__name__": "__main__"})

    return {finding.name.partition(" ")[0] for finding in found if finding.name.startswith("env")}


def test_attributes_of_an_object_whose_dict_is_in_the_state_are_kept(tmp_path: Path) -> None:
    put, initial = "pass", 'run.state["env"] = vars(env)\nfor number'

    assert names_of(LOOP.format(put=put), tmp_path) == {"env.place", "env.best"}
    assert names_of(LOOP.format(put=put).replace("for number", initial), tmp_path) == set()
