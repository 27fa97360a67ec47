"""The functions in which a training loop runs, from `step_done` out to the `with` of its run, and what their code says.

Imports no framework.
"""

import ast
import contextlib
import itertools
import operator
import sys
import types
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.checks import loop_source
from worker.checks.loop_lines import calls, name_of_call
from worker.checks.loop_source import Entered, RunFrame, frames_of_run
from worker.checks.reachability import first_entries, global_names
from worker.checks.watch.code.bytecode import flow_of
from worker.checks.watch.code.instructions import stored_names
from worker.checks.watch.code.loop_heads import attributes_set_in_heads, value_named
from worker.checks.watch.script_objects import FRAMEWORKS, SKIPPED, package_of


@dataclass(frozen=True, slots=True)
class LoopFrame(RunFrame):
    """One of the functions between the call of `step_done` and the `with` of the run, and what its code says of its
    names there. `carried`: with the line that assigns each."""

    carried: dict[str, int | None]
    read: frozenset[str]
    made_in_loops: frozenset[str]
    made_in_run: frozenset[str]
    """Those of `made_in_loops` that a loop inside of the run assigns."""
    attribute_targets: frozenset[str]
    attributes_set_in_heads: tuple[frozenset[str], ...]
    """By loop around the step, the innermost first: those that each pass assigns, in the body of the loop itself,
    before the step."""
    made_by_call: frozenset[str]
    """Its parameters and other variables of its own that no loop around the step assigns: each call makes them anew."""
    begins_at: int | None
    """Behind which line the code is that a start runs once; None: each pass of a loop calls it."""

    def value_at(self, path: str) -> Any:
        """What a name of the frame, or an attribute behind names, is; None if that is not known."""
        if not path.replace(".", "").isidentifier():
            return None
        return value_named(ast.parse(path, mode="eval").body, self.values)

    @property
    def values(self) -> Mapping[str, Any]:
        """What its names are now, those of its module among them."""
        return ChainMap(dict(self.frame.f_locals), self.frame.f_globals)

    @property
    def made_before_loops(self) -> frozenset[str]:
        """The names that what stands between the `with` of the run and its loops assigns."""
        if self.begins_at is None:
            return frozenset()
        return flow_of(self.frame.f_code).stored_behind(self.begins_at) - self.made_in_loops

    @property
    def made_in_each_pass(self) -> frozenset[str]:
        """The names that the innermost loop around the step assigns before it reads them."""
        flow = flow_of(self.frame.f_code)
        return flow.made_in_each_pass(flow.control.index_at(self.frame.f_lasti))

    @property
    def attributes_set_before_loops(self) -> frozenset[str]:
        """As `made_before_loops`, the attributes, of any object."""
        if self.begins_at is None:
            return frozenset()
        flow = flow_of(self.frame.f_code)
        return flow.attributes_set_before_loops(flow.control.index_at(self.frame.f_lasti), self.begins_at)


def loop_frames(frame: types.FrameType | None, entered: Entered | None) -> list[LoopFrame]:
    """The frames of a run, innermost first; see `frames_of_run`."""
    frames, begins_at = list[LoopFrame](), None
    for current in reversed(frames_of_run(frame, entered)):
        if entered is not None and current.f_code is entered.code:
            begins_at = entered.line
        frames.append(_loop_frame(current, begins_at))
        begins_at = None if begins_at is None or frames[-1].made_in_run else 0
    return frames[::-1]


def _loop_frame(frame: types.FrameType, begins_at: int | None) -> LoopFrame:
    flow = flow_of(frame.f_code)
    index = flow.control.index_at(frame.f_lasti)
    by_calls: frozenset[str] = frozenset()
    if frame.f_locals is frame.f_globals:
        functions = [f_global for f_global in frame.f_globals.values() if isinstance(f_global, types.FunctionType)]
        anew = [nested.code for nested in flow.nested_in_loops(index)]
        codes = [function.__code__ for function in functions if function.__code__ not in anew]
        by_calls = frozenset().union(*map(global_names, codes))
    carried = flow.carried(index, by_calls)
    read = flow.names_read(index, by_calls)
    targets, heads = flow.attribute_targets(index), attributes_set_in_heads(frame)
    made = flow.made_in_loops(index)
    by_call = frozenset(frame.f_code.co_varnames).difference(frame.f_code.co_cellvars, made)
    in_run = flow.made_in_loops(index, begins_at or 0)
    return LoopFrame(frame, carried, read, made, in_run, targets, heads, by_call, begins_at)


def name_made_in_loop(frames: Sequence[LoopFrame], value: Any, call: str) -> str | None:
    """How the script calls a value that the loops around `frames` make anew in each pass; None if they don't.

    `call`: the name of the function that the innermost frame gives it to, for a value that has no name.
    """
    if not frames or is_held_outside(frames, value):
        return None
    is_named = False
    for number, frame in enumerate(frames):
        names = {name for name, local in frame.frame.f_locals.items() if local is value}
        is_named = is_named or bool(names)
        is_last = number == len(frames) - 1
        if made := sorted(names & frame.made_in_loops if is_last else names - _parameters(frame)):
            return f"{made[0]} ({frame.place(stored_names(frame.frame.f_code).get(made[0]))})"
    function = loop_source.function_of(frames[0].frame.f_code)
    line = frames[0].frame.f_lineno
    is_made = not is_named and any(
        name_of_call(node) == call
        and node.lineno <= line <= (node.end_lineno or line)
        and node.args
        and isinstance(node.args[0], ast.Call)
        for node in (calls(function) if function is not None else ())
    )
    return f"of run.{call} ({frames[0].place(line)})" if is_made else None


def is_held_outside(frames: Sequence[LoopFrame], value: Any) -> bool:
    """Whether a value belongs to a name that the loops around `frames` don't assign, or to what that names: it is an
    attribute or an entry of it. What the inner frames assign, a loop around their call makes anew."""
    for number, frame in enumerate(frames):
        is_last = number == len(frames) - 1
        names = {**frame.frame.f_globals, **(frame.frame.f_locals if is_last else {})}
        for name, holder in names.items():
            if name not in frame.made_in_loops and (holder is value or _holds(holder, value)):
                return True
        for name in () if is_last else _parameters(frame) & frame.frame.f_locals.keys():
            if _holds(frame.frame.f_locals[name], value):
                return True
    return False


def _parameters(frame: LoopFrame) -> frozenset[str]:
    code = frame.frame.f_code
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _holds(holder: Any, value: Any) -> bool:
    """Whether a value is an attribute or an entry of another one."""
    held: Any = holder if type(holder) in (list, tuple, dict) else getattr(holder, "__dict__", None)
    if type(held) is dict:
        held = held.values()
    elif type(held) not in (list, tuple):
        return False
    # a module has many: no line of Python for each
    return any(map(operator.is_, first_entries(held), itertools.repeat(value)))


def is_replaced(name: str, value: Any, frame: LoopFrame) -> bool:
    """Whether the loops around a step assign another object to a name that is not plain, such as a function, a loss or
    an optimizer: `loss_fn = mae`, `optimizer = SGD(0.01)`. What another call returns may be the same object again."""
    function = loop_source.function_of(frame.frame.f_code)
    if function is None or hasattr(type(value), "__next__") or package_of(type(value)) in _TOOLS:
        return False
    line = frame.frame.f_lineno
    return any(
        _is_other_object(assigned, name, frame)
        for loop in loop_source.statements(function.body)
        if isinstance(loop, loop_source.Loop) and loop.lineno <= line <= (loop.end_lineno or loop.lineno)
        for assigned in loop_source.assigned_values(loop, name)
    )


_TOOLS = SKIPPED | sys.stdlib_module_names - {"builtins", "__main__"}


def _is_other_object(node: ast.expr, name: str, frame: LoopFrame) -> bool:
    match node:
        case ast.IfExp():
            return _is_other_object(node.body, name, frame) or _is_other_object(node.orelse, name, frame)
        case ast.Name():
            return node.id != name
        case ast.Call():
            made = _named_in_modules(node.func, frame)
            return isinstance(made, type) and package_of(made) in FRAMEWORKS
    return isinstance(node, ast.Lambda | ast.Subscript)


def _named_in_modules(node: ast.expr, frame: LoopFrame) -> Any:
    """What a name, or an attribute of modules (`tf.keras.optimizers.SGD`), stands for; None if it is unknown."""
    if isinstance(node, ast.Name):
        with contextlib.suppress(LookupError):
            return frame.value_of(node.id)
    if isinstance(node, ast.Attribute):
        module = _named_in_modules(node.value, frame)
        return getattr(module, node.attr, None) if isinstance(module, types.ModuleType) else None
    return None


def is_made_from_run(name: str, frame: LoopFrame) -> bool:
    """Whether each value that a name gets is made from the run's own count: `step = run.step`, also if each step then
    adds one."""
    function = loop_source.function_of(frame.frame.f_code)
    values = loop_source.assigned_values(function, name) if function is not None else []
    if (counted := counted_steps(name, frame)) is not None:
        values = [value for value in values if value is not counted.value]
    return bool(values) and all(_reads_run(value, name, frame) for value in values)


def counted_steps(name: str, frame: LoopFrame) -> ast.AugAssign | None:
    """The statement by which each pass of the innermost loop around the step adds one to a name; None if there is none,
    or other statements of the loops there assign it, too."""
    function, line = loop_source.function_of(frame.frame.f_code), frame.frame.f_lineno
    loops = list(loop_source.loops_around(function, line)) if function is not None else []
    loops = [loop for loop in loops if loop.lineno > (frame.begins_at or 0)]
    if not loops or len(loop_source.assigned_values(loops[0], name)) != 1:
        return None
    for statement in loops[-1].body:
        match statement:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=ast.Constant(value=1)) if target == name:
                return statement
            case _ if any(isinstance(part, ast.Continue) for part in ast.walk(statement)):
                return None
    return None


def is_count_before_loops(name: str, frame: LoopFrame) -> bool:
    """Whether a name is made before the loops, from the run's own count or from what is made of that: `begun =
    run.step`, `left = total - begun`."""
    function = loop_source.function_of(frame.frame.f_code)
    values = loop_source.assigned_values(function, name) if function is not None else []
    if not values or name not in frame.made_before_loops:
        return False
    names = [{part.id for part in ast.walk(value) if isinstance(part, ast.Name)} - {name} for value in values]
    return all(
        _reads_run(value, name, frame) or any(is_made_from_run(other, frame) for other in others)
        for value, others in zip(values, names, strict=True)
    )


def is_attribute_count_before_loops(name: str, frame: LoopFrame) -> bool:
    """As `is_count_before_loops`, of an attribute: `self.begun = run.step`."""
    function = loop_source.function_of(frame.frame.f_code)
    assigned = [
        statement.value
        for statement in (loop_source.statements(function.body) if function is not None else ())
        if isinstance(statement, ast.Assign) and statement.lineno > (frame.begins_at or 0)
        if any(isinstance(target, ast.Attribute) and target.attr == name for target in statement.targets)
    ]
    return bool(assigned) and all(_reads_run(value, "", frame) for value in assigned)


def runs_over_count(frame: LoopFrame) -> bool:
    """Whether a `for` loop around the step runs over what is made from the run's own count, as in `range(total -
    run.step)`: then the script may add where it began to numbers that begin anew, and train with the sum."""
    function = loop_source.function_of(frame.frame.f_code)
    loops = loop_source.loops_around(function, frame.frame.f_lineno) if function is not None else ()
    parts = [
        part
        for loop in loops
        if isinstance(loop, ast.For | ast.AsyncFor) and loop.lineno > (frame.begins_at or 0)
        for part in ast.walk(loop.iter)
    ]
    return any(
        (isinstance(part, ast.Name) and is_count_before_loops(part.id, frame))
        or (isinstance(part, ast.Attribute) and is_attribute_count_before_loops(part.attr, frame))
        or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and _reads_run(part.right, "", frame))
        for part in parts
    )


def counts_given_to(frame: LoopFrame, outer: LoopFrame) -> frozenset[str]:
    """The parameters of a function that the function around it calls with the run's own count: `train(run.step)`."""
    function, code, line = loop_source.function_of(outer.frame.f_code), frame.frame.f_code, outer.frame.f_lineno
    parameters = code.co_varnames[: code.co_argcount]
    given: set[str | None] = set()
    for call in calls(function) if function is not None else ():
        if name_of_call(call) == code.co_name and call.lineno <= line <= (call.end_lineno or line):
            is_bound = isinstance(call.func, ast.Attribute) and parameters[:1] in (("self",), ("cls",))
            placed = zip(parameters[is_bound:], call.args, strict=False)
            values = [*placed, *((word.arg, word.value) for word in call.keywords)]
            given |= {name for name, value in values if _reads_run(value, "", outer)}
    return frozenset(name for name in given if name is not None)


def _reads_run(value: ast.expr, name: str, frame: LoopFrame) -> bool:
    parts = list(ast.walk(value))
    if any(isinstance(part, ast.Name) and part.id == name for part in parts):
        return False
    return any(
        isinstance(part, ast.Attribute)
        and part.attr in ("epoch", "step", "batch", "state")
        and _is_run(part.value, frame)
        for part in parts
    )


def _is_run(node: ast.expr, frame: LoopFrame) -> bool:
    try:
        value = frame.value_of(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            value = getattr(frame.value_of(node.value.id), node.attr, None)
    except LookupError:
        return False
    return hasattr(value, "step_done")
