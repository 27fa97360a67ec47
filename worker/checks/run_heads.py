"""What a script does between the `with` of its run and its loop: each start does it again, over what was restored.

Statements inside of an `if`, a loop or a function of the script's are not judged: `if run.step == 0:` is the way to do
something at the first start alone. Imports no framework.
"""

import ast
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker.checks.findings import Finding
from worker.checks.loop_source import Entered, function_of, statements
from worker.checks.watch.digests import is_plain

_CHANGES = frozenset(
    {"assign", "assign_add", "assign_sub", "set_weights", "load_weights", "load_state_dict", "copy_", "fill_", "zero_"}
)
"""Methods that change weights, in every framework."""
_RATES = frozenset({"learning_rate", "lr"})


@dataclass(frozen=True, slots=True)
class RunHead:
    """The statements of a `with` block before its loop. `run`: how the block calls its run."""

    code: types.CodeType
    run: str
    statements: Sequence[ast.stmt]

    @property
    def asks_where(self) -> bool:
        """Whether the script does some of it depending on how far the run is."""
        tests = [part.test for statement in self.statements for part in ast.walk(statement) if isinstance(part, ast.If)]
        return any(isinstance(part, ast.Name) and part.id == self.run for test in tests for part in ast.walk(test))

    def changes(self, state: Mapping[str, object]) -> Iterator[Finding]:
        """What of the state that checkpoints hold each start would change again. `state`: the values of `run.state`; an
        object there takes its restored state when it is assigned."""
        for statement in self.statements:
            for changed in saved_state_changed_by(statement, self.run):
                remedy = f'do it before the with block, or at the first start alone: "if {self.run}.step == 0:"'
                match statement, changed:
                    case ast.Assign(value=value), ast.Subscript(slice=ast.Constant(value=str(name))):
                        if not is_plain(state.get(name)):
                            continue
                        remedy = f"give the initial value to the run, as in state={{{name!r}: {ast.unparse(value)}}}"
                yield self._finding(ast.unparse(changed), changed, remedy)

    def drawing(self) -> Finding:
        """That it draws random numbers."""
        return Finding(
            "random numbers that are drawn between the with of the run and its loop"
            + (f" ({self._place(self.statements[0])})" if self.statements else ""),
            "each start would draw them again, and others, as it goes on with the restored generators: draw them "
            f"before the with block, or at the first start alone, into {self.run}.state: "
            f'"if {self.run}.step == 0:"',
        )

    def _finding(self, what: str, node: ast.stmt | ast.expr, remedy: str) -> Finding:
        return Finding(
            f"{what} ({self._place(node)})",
            f"it stands between the with of the run and its loop, so each start does it again, over what was restored: "
            f"{remedy}",
        )

    def _place(self, node: ast.stmt | ast.expr) -> str:
        return f"{Path(self.code.co_filename).name}:{node.lineno}"


def saved_state_changed_by(statement: ast.stmt, run: str) -> Iterator[ast.expr]:
    """What a statement itself surely changes of the state that checkpoints hold. `run`: the name of the run."""
    match statement:
        case ast.Assign(targets=targets):
            yield from (target for target in targets if _is_saved(target, run))
        case ast.AugAssign(target=target) if _is_saved(target, run):
            yield target
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=method) as function)) if method in _CHANGES:
            yield function


def _is_saved(target: ast.expr, run: str) -> bool:
    match target:
        case ast.Subscript(value=held):
            return ast.unparse(held) == f"{run}.state"
        case ast.Attribute(attr=name):
            return name in _RATES
    return False


def run_head_of(entered: Entered | None) -> RunHead | None:
    """The head of the block with which a script entered its run; None if its source is not there."""
    function = None if entered is None else function_of(entered.code)
    if entered is None or function is None:
        return None
    for block in statements(function.body):
        if isinstance(block, ast.With) and block.lineno <= entered.line < block.body[0].lineno:
            run = next((name for item in block.items if (name := _name_of(item))), "run")
            before: list[ast.stmt] = []
            for statement in block.body:
                if _uses(statement, run):
                    break
                before.append(statement)
            return RunHead(entered.code, run, before)
    return None


def _name_of(item: ast.withitem) -> str | None:
    named = item.optional_vars or item.context_expr
    return ast.unparse(named) if isinstance(named, ast.Name | ast.Attribute) else None


def _uses(statement: ast.stmt, run: str) -> bool:
    """Whether a statement begins the loop, or gives the run away: it mentions the run for more than where it is."""
    held = {
        id(part.value)
        for part in ast.walk(statement)
        if isinstance(part, ast.Attribute) and part.attr in ("state", "step", "epoch")
    }
    return any(
        ast.unparse(part) == run and id(part) not in held
        for part in ast.walk(statement)
        if isinstance(part, ast.Name | ast.Attribute)
    )
