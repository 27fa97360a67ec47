"""Finds plain values that a training loop carries from one step to the next and that no checkpoint would hold.

A name is carried by a loop if its body reads the name before it has certainly assigned it, and assigns it: `best`,
`running_reward`, `total += loss`; or if the body changes a container that it has not made itself: `losses.append(x)`.
Each loop around `step_done` is looked at for itself, so a sum that each epoch begins anew is found too: a restart may
come in the middle of the epoch. A loop over `run.batches` yields nothing after a restart behind the last batch, so what
the code after it reads of its body is carried as well. All other loops are taken to run at least once.

The words of the analysis: `self.best` and `stats["loss"]` (with a constant) are names like `best`. Containers that
other functions change are found by comparing them at the first steps (`ContainerWatch`).

What causes no false alarm: values that each pass assigns before it reads them, times of a clock, values that are made
from the run (`epoch = run.epoch`) or kept in `run.state`, and objects that are no plain values, which other checks
know.
"""

import ast
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worker.checks.findings import Finding
from worker.checks.loop_source import Loop, ScriptFrame, assigned_values, statements, takes_batches
from worker.state.plain_values import NotSaveable, SavedValue, is_tensorflow_tensor, is_torch_tensor
from worker.state.run_state import RunState

_CHANGING = frozenset(
    [
        "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "discard",
        "clear", "add", "update", "setdefault", "subtract", "sort", "reverse", "fill", "put",
    ]
)  # fmt: skip
"""Methods that change a container."""
_CLOCKS = frozenset(
    [
        "time", "perf_counter", "monotonic", "process_time", "time_ns", "perf_counter_ns", "monotonic_ns", "now",
        "utcnow",
    ]
)  # fmt: skip
_OF_RUN = frozenset({"epoch", "step", "batch", "state"})
_CONTAINERS = (list, dict, set, deque, bytearray, np.ndarray)
_PLAIN = (int, float, complex, str, bytes, type(None), tuple, frozenset, np.generic, *_CONTAINERS)
_SAMPLE = 4096  # entries of a large array that are compared
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_MAX_ENTRIES = 10_000  # in a container that is compared; longer ones hold data


def carried_values(frames: Sequence[ScriptFrame], state: RunState, exempt: Iterable[Any]) -> list[Finding]:
    """What the loops of these frames carry and no checkpoint would hold. `exempt`: objects, and names as texts."""
    names = {each for each in exempt if isinstance(each, str)}
    ids = {id(each) for each in exempt} | _ids_in(state.values())
    found: dict[str, str] = {}
    of_libraries: dict[str, str] = {}
    for frame in frames:
        kept = _kept_names(frame)
        is_library = not _PACKAGES.isdisjoint(Path(frame.frame.f_code.co_filename).parts)
        for loop in frame.loops:
            for key, line in sorted(_carried(loop, frame.loops).items(), key=lambda entry: entry[1].lineno):
                short = _short(key)
                if {key, short} & (names | kept | set(state)) or key in found or key in of_libraries:
                    continue
                if _is_plain_here(key, frame, ids) and not _is_remade(key, frame):
                    (of_libraries if is_library else found)[key] = f"{key} ({frame.place(line)})"
    return [*_findings(found), *_findings(of_libraries, of_library=True)]


def _findings(names: Mapping[str, str], of_library: bool = False) -> list[Finding]:
    """A finding for each name, all with one remedy. `names`: what to say for each. `of_library`: the loop that carries
    them is in an installed package, where nobody can write `run.state`."""
    if not names:
        return []
    first = _short(next(iter(names)))
    each, loop = ("it", "the loop carries it") if len(names) == 1 else ("each", "the loop carries them")
    if of_library:
        remedy = (
            loop.replace("the loop", "the loop of a library") + f" from step to step, and no checkpoint has {each}: "
        )
        remedy += f'write leave_out=["{first}"] if that may begin anew, or write the loop in the script'
        return [Finding(text, remedy) for text in names.values()]
    remedy = f"{loop} from step to step: keep {each} in run.state[{first!r}]".replace("'", '"')
    remedy += ", or give its name to leave_out= if it may begin anew"
    return [Finding(text, remedy) for text in names.values()]


def _short(key: str) -> str:
    """The name for run.state: `self.best` and `stats["best"]` are kept as `best` and `stats`."""
    return key.partition("[")[0].rpartition(".")[2]


def _carried(loop: Loop, around: Sequence[Loop]) -> dict[str, ast.expr]:
    """The names that a loop carries, each with the place where it is assigned or changed."""
    flow = _Flow(around)
    assigned: set[str] = set()
    if isinstance(loop, ast.While):
        flow.read(loop.test, assigned)
    else:
        flow.store(loop.target, assigned)
        own = set(assigned)
    flow.block(loop.body, assigned)
    carried = {key: flow.stored[key] for key in flow.exposed if key in flow.stored}
    carried |= {key: place for key, place in flow.changed.items() if key not in carried}
    return carried if isinstance(loop, ast.While) else {key: each for key, each in carried.items() if key not in own}


class _Flow:
    """Which names a block reads before it has certainly assigned them (`exposed`), assigns (`stored`), and changes as
    containers that it has not made (`changed`). `assigned`: what is certainly assigned so far; None: never reached."""

    def __init__(self, around: Sequence[Loop]) -> None:
        self.exposed: set[str] = set()
        self.stored: dict[str, ast.expr] = {}
        self.changed: dict[str, ast.expr] = {}
        self._around = around

    def block(self, body: Sequence[ast.stmt], assigned: set[str]) -> set[str] | None:
        """Follows a block. Returns what is assigned behind it; None if it is always left before its end."""
        now: set[str] | None = assigned
        for each in body:
            if now is None:
                return None
            now = self._statement(each, now)
        return now

    def _statement(self, node: ast.stmt, assigned: set[str]) -> set[str] | None:
        match node:
            case ast.Continue() | ast.Break():
                return None
            case ast.Return() | ast.Raise():
                self.read(node, assigned)
                return None
            case ast.Assign():
                self.read(node.value, assigned)
                for target in node.targets:
                    self.store(target, assigned)
            case ast.AugAssign():
                self.read(node.value, assigned)
                self._expose(_key(node.target), assigned)
                self.read(node.target, assigned)
                self.store(node.target, assigned)
            case ast.AnnAssign():
                if node.value is not None:
                    self.read(node.value, assigned)
                    self.store(node.target, assigned)
            case ast.If():
                self.read(node.test, assigned)
                return _both(self.block(node.body, set(assigned)), self.block(node.orelse, set(assigned)))
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(node, assigned)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.read(item.context_expr, assigned)
                    if item.optional_vars is not None:
                        self.store(item.optional_vars, assigned)
                return self.block(node.body, assigned)
            case ast.Try() | ast.TryStar():
                behind = self.block([*node.body, *node.orelse], set(assigned))
                for handler in node.handlers:
                    behind = _both(behind, self.block(handler.body, set(assigned)))
                final = self.block(node.finalbody, set(assigned))
                return None if behind is None or final is None else behind | final
            case ast.Match():
                self.read(node.subject, assigned)
                behind = set(assigned)
                for case in node.cases:
                    self.block(case.body, set(assigned))
                return behind
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                assigned.add(node.name)
            case ast.Import() | ast.ImportFrom():
                assigned |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            case _:
                self.read(node, assigned)
        return assigned

    def _loop(self, node: Loop, assigned: set[str]) -> set[str]:
        inside = set(assigned)
        if isinstance(node, ast.While):
            self.read(node.test, inside)
        else:
            self.read(node.iter, assigned)
            self.store(node.target, inside)
        behind = self.block(node.body, inside)
        if node in self._around or takes_batches(node):
            return assigned  # after a restart it may have nothing left
        return assigned if behind is None else behind

    def read(self, node: ast.AST, assigned: set[str]) -> None:
        """Follows an expression."""
        match node:
            case ast.Lambda():
                own = assigned | {each.arg for each in (*node.args.args, *node.args.kwonlyargs)}
                self.read(node.body, own)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = set(assigned)
                for over in node.generators:
                    self.read(over.iter, inner)
                    inner |= {name.id for name in ast.walk(over.target) if isinstance(name, ast.Name)}
                    for test in over.ifs:
                        self.read(test, inner)
                for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                    self.read(part, inner)
            case ast.NamedExpr():
                self.read(node.value, assigned)
                self.store(node.target, assigned)
            case ast.Call(func=ast.Attribute(value=of, attr=name)) if name in _CHANGING and _key(of) is not None:
                for each in (*node.args, *node.keywords):
                    self.read(each, assigned)
                self._change(_key(of), assigned, node)
            case ast.Name() | ast.Attribute() | ast.Subscript() if isinstance(node.ctx, ast.Load):
                self._expose(_key(node), assigned)
                for child in ast.iter_child_nodes(node):
                    self.read(child, assigned)
            case _:
                for child in ast.iter_child_nodes(node):
                    self.read(child, assigned)

    def store(self, target: ast.expr, assigned: set[str]) -> None:
        """Follows an assignment to a target."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self.store(each, assigned)
        elif isinstance(target, ast.Starred):
            self.store(target.value, assigned)
        elif (key := _key(target)) is not None:
            assigned.add(key)
            self.stored.setdefault(key, target)
        elif isinstance(target, ast.Subscript):
            self.read(target.slice, assigned)
            self._change(_key(target.value), assigned, target)

    def _expose(self, key: str | None, assigned: set[str]) -> None:
        if key is not None and not _is_assigned(key, assigned):
            self.exposed.add(key)

    def _change(self, key: str | None, assigned: set[str], place: ast.expr) -> None:
        if key is not None and not _is_assigned(key, assigned):
            self.changed.setdefault(key, place)


def _is_assigned(key: str, assigned: set[str]) -> bool:
    """Whether a name, or the object that it is part of, is assigned."""
    base = key.partition(".")[0].partition("[")[0]
    return key in assigned or base in assigned or key.partition("[")[0] in assigned


def _key(node: ast.AST) -> str | None:
    """The name of a variable, of an attribute of one, or of its entry under a constant; None for anything else."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute(value=ast.Name(id=base)):
            return f"{base}.{node.attr}"
        case ast.Subscript(value=of, slice=ast.Constant(value=constant)) if (held := _key(of)) and "[" not in held:
            return f"{held}[{constant!r}]"
    return None


def _both(one: set[str] | None, other: set[str] | None) -> set[str] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _kept_names(frame: ScriptFrame) -> set[str]:
    """Names whose values the function puts into `run.state`, or of which it is the state's own object."""
    kept: set[str] = set()
    for each in statements(frame.function.body):
        if isinstance(each, ast.Assign | ast.AugAssign) and any(
            _is_state(part)
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
            for part in ast.walk(target)
        ):
            kept |= {key for part in ast.walk(each.value) if (key := _key(part)) is not None}
        if isinstance(each, ast.Expr) and any(_is_state(part) for part in ast.walk(each)):
            kept |= {key for part in ast.walk(each) if (key := _key(part)) is not None}
    return kept


def _is_state(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.value, ast.Name | ast.Attribute)


def _is_plain_here(key: str, frame: ScriptFrame, kept: set[int]) -> bool:
    """Whether the name has a plain value now, and not one that is kept."""
    try:
        value = _value_of(key, frame)
    except (KeyError, AttributeError, TypeError, LookupError):
        return False
    if id(value) in kept and isinstance(value, _CONTAINERS):
        return False
    base = key.partition("[")[0]
    if base != key and id(_value_of(base, frame)) in kept:
        return False
    is_tensor = is_tensorflow_tensor(value) or is_torch_tensor(value)
    return isinstance(value, _PLAIN) or (is_tensor and not _is_parameter(value))


def _is_parameter(tensor: Any) -> bool:
    """Whether a PyTorch tensor is trained, so that its optimizer's owner saves it."""
    return bool(getattr(tensor, "requires_grad", False)) and bool(getattr(tensor, "is_leaf", False))


def _value_of(key: str, frame: ScriptFrame) -> Any:
    base, _, entry = key.partition("[")
    name, _, attribute = base.partition(".")
    value = frame.value_of(name)
    if attribute:
        value = vars(value)[attribute]
    return value[ast.literal_eval(entry[:-1])] if entry else value


def _is_remade(key: str, frame: ScriptFrame) -> bool:
    """Whether each value that the name gets is the time of a clock, or is made from the run."""
    values = assigned_values(frame.function, key) if key.isidentifier() else []
    return bool(values) and all(_is_clock(each, frame) or _is_of_run(each, key) for each in values)


def _is_clock(value: ast.expr, frame: ScriptFrame, depth: int = 2) -> bool:
    if isinstance(value, ast.Call):
        function = value.func
        return (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in _CLOCKS
    if isinstance(value, ast.Name) and depth > 0:
        values = assigned_values(frame.function, value.id)
        return bool(values) and all(_is_clock(each, frame, depth - 1) for each in values)
    return False


def _is_of_run(value: ast.expr, name: str) -> bool:
    parts = list(ast.walk(value))
    if any(isinstance(each, ast.Name) and each.id == name for each in parts):
        return False
    return any(isinstance(each, ast.Attribute) and each.attr in _OF_RUN for each in parts)


class ContainerWatch:
    """Compares the plain containers that the loop's frames reach between the first steps."""

    def __init__(self, frames: Sequence[ScriptFrame], state: RunState, exempt: Iterable[Any]) -> None:
        kept = _ids_in(state.values()) | {id(each) for each in exempt}
        names = {each for each in exempt if isinstance(each, str)}
        self._watched: dict[str, tuple[Any, bytes | None]] = {}
        for frame in frames:
            for name, value in _containers_of(frame):
                if id(value) not in kept and name not in names and _short(name) not in names:
                    self._watched.setdefault(name, (value, _digest(value)))

    def changed(self) -> list[Finding]:
        """The containers that have changed since the last call; each is named once."""
        found: dict[str, str] = {}
        for name, (value, before) in list(self._watched.items()):
            if before is None or _digest(value) != before:
                del self._watched[name]
                if before is not None:
                    found[name] = f"{name} (changed by a step)"
        return _findings(found)


def _containers_of(frame: ScriptFrame) -> Iterable[tuple[str, Any]]:
    code = frame.frame.f_code
    stored = {key for loop in frame.loops for key in _stored_in(loop)}
    names = {**frame.frame.f_locals}
    names |= {name: frame.frame.f_globals[name] for name in code.co_names if name in frame.frame.f_globals}
    for name, value in names.items():
        if name.startswith("__") or name in stored:
            continue
        if issubclass(type(value), _CONTAINERS):  # a proxy may refuse isinstance
            yield name, value
        elif type(value).__module__ == frame.frame.f_globals.get("__name__") and not hasattr(value, "step_done"):
            attributes: Mapping[str, Any] = getattr(value, "__dict__", {})
            for attribute, held in list(attributes.items()):
                if issubclass(type(held), _CONTAINERS) and f"{name}.{attribute}" not in stored:
                    yield f"{name}.{attribute}", held


def _stored_in(loop: Loop) -> set[str]:
    """Names that a loop assigns, and the containers whose entries it assigns: the source says enough about these."""
    flow = _Flow(())
    flow.block([loop], set())
    return {part for key in (*flow.stored, *flow.changed) for part in (key, key.partition("[")[0])}


def _digest(value: Any) -> bytes | None:
    """A hash of a container; None if it holds other things than plain values, or too many."""
    if isinstance(value, np.ndarray):
        flat = value.reshape(-1) if value.flags.c_contiguous else value.ravel()
        value = flat[:: max(1, flat.size // _SAMPLE)].copy()
    elif len(value) > _MAX_ENTRIES:
        return None
    try:
        return SavedValue(value).digest()
    except (NotSaveable, RecursionError, RuntimeError):
        return None


def _ids_in(values: Iterable[Any]) -> set[int]:
    """The ids of containers, at any depth of containers."""
    found: set[int] = set()
    waiting = list(values)
    while waiting:
        each = waiting.pop()
        if id(each) in found or not isinstance(each, (*_CONTAINERS, tuple)):
            continue
        found.add(id(each))
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list | tuple | set | deque) and len(each) <= _MAX_ENTRIES:
            waiting.extend(each)
    return found
