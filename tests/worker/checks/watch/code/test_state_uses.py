"""What a source puts into run.state, and takes from there; a name that is put there and never taken is named."""

import ast
import sys
from pathlib import Path

import pytest

from worker.checks.findings import Finding
from worker.checks.watch.code.state_uses import entries_taken, names_put_into_state
from worker.checks.watch.script_objects import is_scripts
from worker.checks.watch.step_watch import StepWatch
from worker.state.run_state import RunState


@pytest.mark.parametrize(
    ("line", "put"),
    [
        ('run.state["best"] = best', {"best": {"best"}}),
        ('self.run.state["n"] = n + 1', {"n": {"n"}}),
        ('run.state["a"], rest = (x, y), 1', {"x": {"a"}, "y": {"a"}}),
        ("run.state[key] = best", {"best": {None}}),
        ("run.state.update(best=best, n=count)", {"best": {"best"}, "count": {"n"}}),
        ("run.state.update(values)", {"values": {None}}),
        ("keep(run.state, best)", {"keep": {None}, "run": {None}, "best": {None}}),
        ('run.state["best"] = max(run.state["best"], loss)', {}),
        ('run.state["sum"] += loss', {}),
        ('run.state["losses"].append(loss)', {}),
        ('run.state.setdefault("losses", []).append(loss)', {}),
        ('state["best"] = best', {}),
        ('print(run.state["best"], rate)', {}),
        ("print(run.state, rate)", {}),
        ('logger.info("%s %s", run.state["best"], rate)', {}),
        ('heapq.heappush(run.state["heap"], rate)', {}),
    ],
)
def test_what_a_statement_puts_there(line: str, put: dict[str, set[str | None]]) -> None:
    assert names_put_into_state(ast.parse(line), {}) == put


class _Trainer:
    def __init__(self) -> None:
        self.state = {"step": 0}


class _Run:
    def __init__(self) -> None:
        self.state = RunState({})

    def step_done(self) -> None:
        """As that of a run."""


@pytest.mark.parametrize("line", ["on_step(trainer.state, rate)", 'trainer.state["rate"] = rate'])
def test_the_state_of_another_object_is_not_that_of_the_run(line: str) -> None:
    tree = ast.parse(line)

    assert "rate" not in names_put_into_state(tree, {"trainer": _Trainer()})
    assert "rate" in names_put_into_state(tree, {"trainer": _Run()})
    assert "rate" in names_put_into_state(tree, {})


@pytest.mark.parametrize(
    ("line", "is_taken"),
    [
        ('run.state["best"] = best', False),
        ("run.state.update(best=best)", False),
        ('other = run.state["other"]', False),
        ('other = run.state.get("other", 0)', False),
        ('is_there = "other" in run.state', False),
        ('best = run.state["best"]', True),
        ('run.state["best"] += 1', True),
        ('run.state["best"].append(1)', True),
        ('best = self.run.state.get("best", 0)', True),
        ('best = run.state.setdefault("best", 0)', True),
        ('if "best" in run.state: pass', True),
        ("best = run.state[name]", True),
        ("take(run.state)", True),
        ("values = dict(**run.state)", True),
        ("state = run.state", True),
        ("for name in run.state: pass", True),
        ("for name, value in run.state.items(): pass", True),
    ],
)
def test_what_takes_an_entry(line: str, is_taken: bool) -> None:
    assert (not entries_taken(ast.parse(line)).isdisjoint(("best", None))) is is_taken


BEGIN = """
best = 5.0
{taken}
for loss in (4.0, 3.0):
    best = min(best, loss)
    run.state["best"] = best
    step_done()
"""


@pytest.mark.parametrize(
    ("taken", "named"),
    [
        ("", ["best"]),
        ('best = run.state["best"]', []),
        ('if False: best = run.state["best"]', []),
        ("best = getattr(run, 'sta' + 'te')['best']", []),
    ],
)
def test_a_name_that_is_put_there_and_never_taken_is_named(
    tmp_path: Path, taken: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names_of(taken, tmp_path, monkeypatch) == named


def names_of(taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the watch names of BEGIN."""
    for name, module in list(sys.modules.items()):
        if is_scripts(name, getattr(module, "__file__", None)):
            monkeypatch.delitem(sys.modules, name)  # this script has not imported it

    class Run:
        state = RunState({"best": 5.0})

    found: list[Finding] = []
    watch = StepWatch(lambda kept: None, (Run, found), Run.state)
    script = tmp_path / "script.py"
    script.write_text(BEGIN.format(taken=taken))

    def step_done() -> None:
        found.extend(watch.look(1, 0, sys._getframe(1)))

    exec(compile(script.read_text(), str(script), "exec"), {"run": Run, "step_done": step_done, "found": found})

    assert all("nothing takes it from there" in finding.remedy for finding in found)
    return sorted({finding.name.partition(" ")[0] for finding in found})


def test_what_another_module_of_the_script_takes_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "resuming_helper.py").write_text('def best_of(run):\n    return run.state["best"]\n')
    taken = "import resuming_helper\nif len(found) > 9: best = resuming_helper.best_of(run)"

    assert names_of(taken, tmp_path, monkeypatch) == []
