"""Do the loops train with how far the run was at its start, as with `begun` in `rate(run.step - begun)`?

`begun = run.step` before the loops serves a line of progress in most scripts, and in some a rate that begins anew with
each start. The source tells: the value is followed through assignments and the script's functions, until it gets into
what checkpoints hold or a framework trains with. What is computed with a clock is a speed or a time. Where nobody can
tell it is taken as shown only. Imports no framework.
"""

import ast
import sys
import types
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from worker.checks import loop_source
from worker.checks.loop_lines import calls, name_of_call
from worker.checks.reachability import is_installed_file
from worker.checks.watch.code.instructions import MEASURES
from worker.checks.watch.code.loop_frames import LoopFrame
from worker.checks.watch.code.loop_heads import value_named
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.script_objects import FRAMEWORKS, SKIPPED, package_of, package_of_name

_TRAINS = frozenset(
    {"assign", "assign_add", "assign_sub", "set_weights", "copy_", "fill_", "add_", "mul_", "apply_gradients",
     "minimize", "backward", "train_on_batch", "seed", "set_seed", "manual_seed", "set_random_seed", "default_rng"}
)  # fmt: skip
"""Names of what changes weights or random numbers."""
_SETTINGS = frozenset({"lr", "momentum", "weight_decay"})  # of an optimizer's groups


class CountUses:
    """What the loops train with; each name is looked for once."""

    def __init__(self) -> None:
        self._known: dict[tuple[types.CodeType, str, bool], bool] = {}

    def trains(self, name: str, frame: LoopFrame, kept: Kept, *, is_attribute: bool = False) -> bool:
        """Whether the loops in a frame train with a name of its function, or with an attribute of any object."""
        key = frame.frame.f_code, name, is_attribute
        if key not in self._known:
            self._known[key] = _trains(name, frame, kept, is_attribute=is_attribute)
        return self._known[key]


def _trains(name: str, frame: LoopFrame, kept: Kept, *, is_attribute: bool) -> bool:
    function, line = loop_source.function_of(frame.frame.f_code), frame.frame.f_lineno
    if function is None:
        return False
    loops = [loop for loop in loop_source.loops_around(function, line) if loop.lineno > (frame.begins_at or 0)]
    body: Sequence[ast.stmt] = loops[0].body if loops else function.body
    known = ChainMap(dict(frame.frame.f_locals), frame.frame.f_globals)
    names, attributes = (set[str](), {name}) if is_attribute else ({name}, set[str]())
    return _Uses(names, attributes, known, kept).trains(body, function.body)


class _Uses:
    """What depends on a value in a function. `names`, `attributes`: of any object, grow."""

    def __init__(
        self, names: set[str], attributes: set[str], known: Mapping[str, Any], kept: Kept, outer: "_Uses | None" = None
    ) -> None:
        """`known`: what names stand for. `outer`: of the function that calls this one."""
        self.names, self.attributes = names, attributes
        self._known, self._kept = known, kept
        self._followed: set[tuple[types.CodeType, frozenset[str], int]] = set() if outer is None else outer._followed
        self._measured: set[str] = set()
        self._returns = False

    def trains(self, body: Sequence[ast.stmt], before: Sequence[ast.stmt] = ()) -> bool:
        """Whether statements train with it. `before`: those of the whole function, which may measure times."""
        size = -1
        while size != (size := len(self.names) + len(self.attributes) + len(self._measured)):
            for statement in loop_source.statements([*before, *body]):
                if isinstance(statement, ast.Assign) and self._is_measured(statement.value):
                    targets = [part for target in statement.targets for part in _parts_of(target)]
                    self._measured |= {part.id for part in targets if isinstance(part, ast.Name)}
            if any(map(self._is_trained_with, loop_source.statements(body))):
                return True
        return False

    def _is_trained_with(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign(targets=targets, value=value):
                return self._is_given(value) or (self._decides(targets, value) and self._gets_into(targets))
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
                return self._is_given(value) or (self._decides([target], value) and self._gets_into([target]))
            case ast.If(test=test) if self._depends(test):
                chosen = [*loop_source.statements([*statement.body, *statement.orelse])]
                return any(map(self._is_chosen_to_train, chosen))
            case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                is_given = self._is_given(value)
                self._returns = self._returns or (isinstance(statement, ast.Return) and self._depends(value))
                return is_given
        return False

    def _decides(self, targets: Iterable[ast.expr], value: ast.expr) -> bool:
        """Whether it decides what is assigned, or which entry gets it."""
        places = [target.slice for target in targets if isinstance(target, ast.Subscript)]
        return any(map(self._depends, [value, *places]))

    def _is_chosen_to_train(self, statement: ast.stmt) -> bool:
        """Whether a statement trains itself, which a test of it decides about."""
        match statement:
            case ast.Assign(targets=targets):
                return self._gets_into(targets)
            case ast.AugAssign(target=target):
                return self._gets_into([target])
            case ast.Expr(value=ast.Call() as call):
                return name_of_call(call) in _TRAINS
        return False

    def _depends(self, node: ast.expr) -> bool:
        if self._is_measured(node):
            return False
        return any(
            (isinstance(part, ast.Name) and part.id in self.names)
            or (isinstance(part, ast.Attribute) and part.attr in self.attributes and not self._is_of_run(part))
            for part in ast.walk(node)
        )

    def _is_of_run(self, part: ast.Attribute) -> bool:
        return hasattr(type(value_named(part.value, self._known)), "step_done")

    def _is_measured(self, node: ast.expr) -> bool:
        """Whether it is computed with a clock, or with what tells something of the process."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return not self._measured.isdisjoint(names) or any(name_of_call(call) in MEASURES for call in calls(node))

    def _gets_into(self, targets: Iterable[ast.expr]) -> bool:
        """Whether one of these targets is trained with. The others depend on it from now on."""
        for target in targets:
            for part in _parts_of(target):
                match part:
                    case ast.Name(id=name):
                        if self._is_kept(self._known.get(name)):
                            return True
                        self.names.add(name)
                    case ast.Attribute(value=holder, attr=name):
                        if self._is_state(value_named(holder, self._known), name):
                            return True
                        self.attributes.add(name)
                    case ast.Subscript(value=ast.Attribute(attr="state")):
                        return True
                    case ast.Subscript(value=holder, slice=key):
                        if self._is_kept(value_named(holder, self._known)) or (
                            isinstance(key, ast.Constant) and key.value in _SETTINGS
                        ):
                            return True
        return False

    def _is_kept(self, value: Any) -> bool:
        return value is not None and id(value) in self._kept.identities

    def _is_state(self, holder: Any, name: str) -> bool:
        """Whether an object's attribute is in checkpoints, or one that a framework trains with."""
        key = id(holder), name
        if key in self._kept.attributes or key in self._kept.references:
            return True
        return holder is not None and not FRAMEWORKS.isdisjoint(map(package_of, type(holder).__mro__))

    def _is_given(self, expression: ast.expr) -> bool:
        """Whether a function that is called in an expression trains with it."""
        return any(map(self._is_called_with, calls(expression)))

    def _is_called_with(self, call: ast.Call) -> bool:
        holder = value_named(call.func.value, self._known) if isinstance(call.func, ast.Attribute) else None
        if name_of_call(call) in _TRAINS or self._is_kept(holder):
            return self._depends(call)
        function = _scripts_function(value_named(call.func, self._known))
        node = None if function is None else loop_source.function_of(function.__code__)
        if function is None or not isinstance(node, ast.FunctionDef):
            return False
        parameters = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
        if isinstance(call.func, ast.Attribute) and parameters[:1] in (["self"], ["cls"]):
            parameters = parameters[1:]
        given = [*zip(parameters, call.args, strict=False), *((word.arg, word.value) for word in call.keywords)]
        names = {name for name, value in given if name is not None and self._depends(value)}
        names |= self.names & set(function.__code__.co_freevars)
        names |= self.names & function.__globals__.keys() & set(function.__code__.co_names)
        place = function.__code__, frozenset(names), len(self.attributes)
        if place in self._followed or not (names or self.attributes):
            return False
        self._followed.add(place)
        held = {name: value_named(value, self._known) for name, value in given if name is not None}
        known = ChainMap({**held, "self": holder}, function.__globals__)
        inner = _Uses(names, self.attributes, known, self._kept, self)
        if inner.trains(node.body):
            return True
        if inner._returns:  # so does what calls it
            (self.attributes if isinstance(call.func, ast.Attribute) else self.names).add(function.__name__)
        return False


def _parts_of(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _scripts_function(called: Any) -> types.FunctionType | None:
    called = getattr(called, "python_function", called)
    called = getattr(called, "__func__", called)
    if not isinstance(called, types.FunctionType) or is_installed_file(called.__code__.co_filename):
        return None
    return (
        None if package_of_name(called.__module__ or "") in FRAMEWORKS | SKIPPED | sys.stdlib_module_names else called
    )
