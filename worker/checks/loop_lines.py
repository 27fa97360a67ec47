"""How a loop of the script is quoted in a message, and the line that would follow the run instead of it."""

import ast
import itertools
from collections.abc import Iterator
from typing import Any

from worker.checks.loop_source import Loop, ScriptFrame

RANGES = ("range", "trange")
ENDLESS = ("count", "cycle", "repeat")
_ORDERS = ("permutation", "randperm", "shuffle", "choice", "sample", "randint", "integers", "arange", "argsort")


def quoted(loop: Loop, frame: ScriptFrame) -> str:
    """The first line of a loop, and where it is."""
    line = ast.unparse(loop).partition("\n")[0]
    return f'"{line}" ({frame.place(loop.lineno)})'


def run_name(frame: ScriptFrame, run: Any) -> str:
    """How the script calls its run."""
    values = [*frame.frame.f_locals.items(), *frame.frame.f_globals.items()]
    names = [name for name, value in values if value is run]
    for name, value in itertools.islice(values, 200):
        held = getattr(value, "__dict__", None)
        if type(held) is dict:
            names += [f"{name}.{attribute}" for attribute, part in held.items() if part is run]
    return names[0] if names else "run"


def loop_to_write(loop: Loop, frame: ScriptFrame, run: Any, method: str, value: Any = None) -> str:
    """The line with which a loop would follow the run. `method`: of the run; "batch": a range from there on; "steps":
    its `range`, outside of epochs. `value`: what the loop runs over, if it is known.
    """
    name = run_name(frame, run)
    if isinstance(loop, ast.While):
        return f"for epoch in {name}.epochs(n):"
    target = ast.unparse(loop.target)
    if isinstance(loop.target, ast.Tuple):
        target = target[1:-1]
    ranges = [call for call in calls(loop.iter) if name_of_call(call) in RANGES and call.args]
    is_number = isinstance(loop.target, ast.Name) and (ranges or name_of_iterated(loop) in ENDLESS)
    if method == "epochs" and not is_number:
        return _numbered_line(loop, f"{name}.epochs", value)
    if method == "epochs":
        line = f"for {target} in {name}.epochs({_count_of_range(ranges[0]) if ranges else 'n'}):"
        return f"{line} {target} += 1" if ranges and _begins_at_one(ranges[0]) else line
    if method == "batch":
        stop = ast.unparse(ranges[0].args[-1 if len(ranges[0].args) == 1 else 1]) if ranges else "n"
        return f"for {target} in range({name}.batch, {stop}):"
    if ranges and method == "steps" and (mapped := _mapped_from(loop.iter, ranges[0], f"{name}.step")) is not None:
        return f"for {target} in {mapped}:"
    if ranges:
        return f"for {target} in {name}.range({', '.join(map(ast.unparse, ranges[0].args))}):"
    if any(name_of_call(call) in ENDLESS for call in calls(loop.iter)):
        return f"while True:  # {name}.step is the number of the step"
    is_order = any(name_of_call(call) in _ORDERS for call in calls(loop.iter))
    if is_order or (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return f"for {target} in {name}.order({ast.unparse(loop.iter)}):"
    return f"for {target} in {name}.batches(data):" if hasattr(run, "batches") else f"for i in {name}.range(n):"


def _numbered_line(loop: ast.For | ast.AsyncFor, numbers: str, value: Any) -> str:
    """A loop over the numbers of what a loop of the script runs over, which takes from it by number. `numbers`: what
    yields them; `value`: what the loop runs over, if it is known."""
    target, iterated, number = loop.target, loop.iter, "number"
    if isinstance(target, ast.Tuple) and name_of_iterated(loop) == "enumerate" and len(target.elts) == 2:
        (first, target), iterated = target.elts, iterated.args[0]  # type: ignore[attr-defined]
        number, value = ast.unparse(first), None
    items = ast.unparse(iterated)
    can_be_taken_from = isinstance(iterated, ast.Name | ast.Attribute | ast.Subscript | ast.List | ast.Tuple)
    if not can_be_taken_from or not (value is None or hasattr(value, "__getitem__")):
        items = f"list({items})"
    taken = ast.unparse(target)
    taken = taken[1:-1] if isinstance(target, ast.Tuple) else taken
    return f"for {number} in {numbers}(len({items})): {taken} = {items}[{number}]"


def name_of_iterated(loop: ast.For | ast.AsyncFor) -> str:
    """The name of the function whose result a loop runs over, such as `zip`; empty if it is none."""
    return name_of_call(loop.iter) if isinstance(loop.iter, ast.Call) and loop.iter.args else ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Call))


def name_of_call(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _mapped_from(iterated: ast.expr, numbers: ast.Call, start: str) -> str | None:
    """What a function makes of a range that is not its first argument, as in `pool.imap(load, range(9))`, from a number
    on; None for anything else."""
    if not isinstance(iterated, ast.Call) or numbers not in iterated.args[1:] or len(numbers.args) > 2:
        return None
    *first, end = map(ast.unparse, numbers.args)
    begin = start if first in ([], ["0"]) else f"{first[0]} + {start}"
    later = f"range({begin}, {end})"
    arguments = [later if part is numbers else ast.unparse(part) for part in iterated.args]
    arguments += [ast.unparse(part) for part in iterated.keywords]
    return f"{ast.unparse(iterated.func)}({', '.join(arguments)})"


def _count_of_range(call: ast.Call) -> str:
    if len(call.args) == 1:
        return ast.unparse(call.args[0])
    stop = call.args[1]
    if not _begins_at_one(call):
        return ast.unparse(stop)
    if isinstance(stop, ast.BinOp) and isinstance(stop.op, ast.Add) and ast.unparse(stop.right) == "1":
        return ast.unparse(stop.left)
    return f"{ast.unparse(stop)} - 1"


def _begins_at_one(call: ast.Call) -> bool:
    return len(call.args) > 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 1
