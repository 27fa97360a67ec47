"""Judges the script's loops: which of them follow the run, and which begin anew after a restart.

A loop follows the run if it pulls from it (`pulls`), or if what it runs over is made from it: `range(run.epoch, n)`,
`while run.step < n`. Whether a name in the source is the run is asked of the object behind it.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from worker.checks.findings import Finding
from worker.checks.loop_lines import ENDLESS, RANGES, loop_to_write, name_of_call, quoted, run_name
from worker.checks.loop_source import Loop, ScriptFrame, assigned_values, module_of, statements
from worker.checks.pulls import Pulls
from worker.state.plain_values import class_module

_NO_POSITION = frozenset({"total_steps", "strategy", "split"})
"""Attributes of a run that do not say how far it is."""
_DATA = ("torch.utils.data", "tensorflow.python.data", "tensorflow.python.distribute")
"""Modules of data whose position other checks name."""


_UNLESS = ', or give "loop" to leave_out= if that does not matter'


class LoopJudge:
    """The loops around a line of the script, innermost first, and what they have to do with the run."""

    def __init__(self, frames: Sequence[ScriptFrame], run: Any, pulls: Pulls) -> None:
        self._frames = frames
        self._run = run
        self._pulls = pulls

    def explain_loop_that_begins_again(self) -> str | None:
        """Why a loop around `batches` would not go on where the job stopped, and what to write; None if it would."""
        for frame, loop in self.loops():
            if not self._follows_run(loop, frame):
                return (
                    f"cannot resume this loop: {quoted(loop, frame)} begins again at its start after a restart; "
                    f'write "{self._line(loop, frame, "epochs")}"'
                )
        return None

    def explain_second_step(self, reading: str | None) -> str:
        """Why the script can't make another step now. `reading`: the method that its loop reads, if there is one."""
        if reading is not None:
            return (
                f"cannot count a second step for what {reading} gave once{self._step()}: a restart from the checkpoint "
                f"of the first one would leave out the second; call run.step_done once for each, behind all that is "
                f"trained on it"
            )
        reason = (
            "cannot count a second step in this epoch: only its last step may have no batch of its own, because a "
            "restart from its checkpoint begins with the next epoch"
        )
        for frame, loop in self.loops():
            if self.pulled(loop, frame, self._pulls.of_epochs):
                break
            if isinstance(loop, ast.For):
                line = self._line(loop, frame, "range")
                return f'{reason}; {quoted(loop, frame)} has to count the epoch\'s steps: write "{line}"'
        return (
            f"{reason}{self._step()}; make the steps in a loop over run.batches(data), run.range(n) or "
            f"run.order(indices)"
        )

    def own_loops(self, reads: bool, numbered: bool = False) -> list[Finding]:
        """The `for` loops around a step that begin anew after a restart. `reads`: whether the step had a batch.
        `numbered`: the script gives the step's numbers, so the run does not count those of an epoch."""
        own: list[tuple[ScriptFrame, ast.For | ast.AsyncFor]] = []
        for frame, loop in self.loops():
            if self.pulled(loop, frame, self._pulls.of_reader):
                return []
            if self.pulled(loop, frame, self._pulls.of_epochs):
                if not (reads or numbered):  # its steps are counted
                    return []
                break
            if isinstance(loop, ast.While):
                continue
            if not self._is_of_data(loop, frame) and not self._follows_run(loop, frame):
                own.append((frame, loop))
        findings = []
        for number, (frame, loop) in enumerate(own):
            inner = "batch" if reads else "steps" if len(own) == 1 and not numbered else "range"
            line = self._line(loop, frame, inner if number == 0 else "epochs")
            findings.append(
                Finding(quoted(loop, frame), f'it begins again at its start after a restart; write "{line}"{_UNLESS}')
            )
        return findings

    def steps_behind_data(self) -> list[Finding]:
        """The loops around a step behind the data of an epoch, or of the training, in which a restart makes it again.
        Called outside of `epochs`, which knows when the body of an epoch ends."""
        around = [
            Finding(
                f"the step behind the data in {quoted(loop, frame)}",
                f"a restart from its checkpoint makes it again; write "
                f'"{self._line(loop, frame, "epochs")}", which saves it at the end of the epoch',
            )
            for frame, loop in self.loops()
            if self._pulls.reads_inside(frame.frame.f_code, loop.body[0].lineno, loop.body[-1].end_lineno or 0)
        ]
        return around or self.own_loops(reads=False)

    def own_numbers(self, exempt: frozenset[str]) -> list[Finding]:
        """The numbers of the loops over what the run gives that begin at 0 in the middle of an epoch, where they are
        used. Called at the first step. `exempt`: names."""
        if self._pulls.asked_batch:
            return []
        name = run_name(self._frames[0], self._run) if self._frames else "run"
        return [
            Finding(
                f"the number {target.id} of {quoted(loop, frame)}",
                f"it begins again at its start after a restart in the middle of an epoch; begin with {name}.batch, as "
                f"in enumerate({name}.batches(data), {name}.batch)",
            )
            for frame, loop in self.loops()
            if isinstance(loop, ast.For) and self.pulled(loop, frame, self._pulls.of_reader)
            for target in _further_targets(loop.target, frame, self._pulls.first_item)
            if target.id not in exempt and _is_used(target.id, loop)
        ]

    def early_ends(self) -> list[Finding]:
        """Each `break` out of a loop over `run.batches` that stands behind the line of `step_done`; and what else ends
        such a loop before its data do: `islice`, `zip`.

        A restart from the checkpoint of that step does not know of it, and trains on.
        """
        reading = [(frame, loop) for frame, loop in self.loops() if self.pulled(loop, frame, self._pulls.of_reader)]
        places = [
            f"break ({frame.place(end.lineno)})"
            for frame, loop in reading
            for end in self._breaks(loop.body, frame, frame.frame.f_lineno)
        ]
        counted = [
            f"{name_of_call(call)} ({frame.place(call.lineno)})"
            for frame, loop in reading
            if isinstance(loop, ast.For | ast.AsyncFor)
            for call in ast.walk(loop.iter)
            if isinstance(call, ast.Call) and name_of_call(call) in ("islice", "zip") and not _reads_batch(call)
        ]
        return [
            *[
                Finding(place, "it counts anew after a restart within the epoch; limit the data: dataset.take(n)")
                for place in counted
            ],
            *[
                Finding(
                    place,
                    "a restart from the checkpoint of the step before it trains one batch more; test for it before the "
                    'training step, or give total_steps=, or give "break" to leave_out= if that does not matter',
                )
                for place in places
            ],
        ]

    def _line(self, loop: Loop, frame: ScriptFrame, method: str) -> str:
        """The line with which a loop would follow the run."""
        value = None if isinstance(loop, ast.While) else self._value(loop.iter, frame)
        return loop_to_write(loop, frame, self._run, method, value)

    def loops(self) -> Iterator[tuple[ScriptFrame, Loop]]:
        """The script's own loops around the line, innermost first."""
        for frame in self._frames:
            if not frame.is_library:
                yield from ((frame, loop) for loop in reversed(frame.loops))

    def _step(self) -> str:
        """Where the script makes its step."""
        return f" ({self._frames[0].place(None)})" if self._frames else ""

    def pulled(self, loop: Loop, frame: ScriptFrame, of: Any) -> bool:
        """Whether a loop pulls from the run. `of`: `Pulls.of_reader` or `of_epochs`."""
        places = [loop] if isinstance(loop, ast.While) else [loop, loop.iter]
        return any(of(frame.frame.f_code, place.lineno, place.col_offset) for place in places)

    def _follows_run(self, loop: Loop, frame: ScriptFrame) -> bool:
        """Whether a loop depends on how far the run is."""
        if self.pulled(loop, frame, self._pulls.of_reader) or self.pulled(loop, frame, self._pulls.of_epochs):
            return True
        if isinstance(loop, ast.While):
            return (
                isinstance(loop.test, ast.Constant) or self._mentions_run(loop.test, frame) or self._ends(loop, frame)
            )
        begin = loop.iter
        for call in ast.walk(loop.iter):
            if isinstance(call, ast.Call) and name_of_call(call) in RANGES and call.args:
                if len(call.args) >= 2 and isinstance(call.args[0], ast.Name) and frame.is_parameter(call.args[0].id):
                    return True  # whoever calls the function says where to begin
                begin = call.args[0] if len(call.args) >= 2 else call
            if isinstance(call, ast.Call) and name_of_call(call) in ENDLESS and self._ends(loop, frame):
                return True
        return self._mentions_run(begin, frame)

    def _ends(self, loop: Loop, frame: ScriptFrame) -> bool:
        """Whether the run decides about an end of the loop."""
        return any(
            isinstance(test, ast.If)
            and any(isinstance(end, ast.Break | ast.Return | ast.Raise) for end in statements(test.body))
            and self._mentions_run(test.test, frame)
            for test in statements(loop.body)
        )

    def _mentions_run(self, node: ast.AST, frame: ScriptFrame, depth: int = 3) -> bool:
        """Whether an expression is made from how far the run is, or from a name that was made from it."""
        if isinstance(node, ast.Attribute) and self._is_run(node.value, frame):
            return node.attr not in _NO_POSITION
        if self._is_run(node, frame):
            return True
        if isinstance(node, ast.Name) and depth > 0:
            values = [*assigned_values(frame.function, node.id)]
            if not frame.is_local(node.id) and (module := module_of(frame.frame)) is not None:
                values += assigned_values(module, node.id)
            return any(self._mentions_run(value, frame, depth - 1) for value in values)
        return any(self._mentions_run(child, frame, depth) for child in ast.iter_child_nodes(node))

    def _is_run(self, node: ast.AST, frame: ScriptFrame) -> bool:
        return self._value(node, frame) is self._run

    def _value(self, node: ast.AST, frame: ScriptFrame) -> Any:
        """The object behind an expression; None if it is unknown."""
        try:
            return self._evaluate(node, frame)
        except Exception:  # noqa: BLE001 - the attributes of the script's objects may be anything
            return None

    def _evaluate(self, node: ast.AST, frame: ScriptFrame) -> Any:
        """The object behind a name, an attribute or an entry under a constant. Raises LookupError for all others."""
        match node:
            case ast.Name():
                return frame.value_of(node.id)
            case ast.Attribute():
                held = self._evaluate(node.value, frame)
                if held is self._run:  # to read `run.epoch` ends an epoch
                    raise LookupError(node.attr)
                return getattr(held, node.attr)
            case ast.Subscript(slice=ast.Constant(value=key)):
                return self._evaluate(node.value, frame)[key]
        raise LookupError(type(node).__name__)

    def _is_of_data(self, loop: ast.For | ast.AsyncFor, frame: ScriptFrame) -> bool:
        """Whether a loop runs over a dataset or a DataLoader, which other checks name."""
        return any(
            class_module(type(self._value(part, frame))).startswith(_DATA)
            for part in ast.walk(loop.iter)
            if isinstance(part, ast.Name | ast.Attribute)
        )

    def _breaks(self, body: Sequence[ast.stmt], frame: ScriptFrame, behind: int) -> Iterator[ast.Break]:
        """The `break` statements of a loop's own behind a line, unless the run's own count of steps leads to them."""
        for statement in body:
            if isinstance(statement, ast.Break) and statement.lineno > behind:
                yield statement
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | Loop):
                continue
            if isinstance(statement, ast.If) and any(
                isinstance(part, ast.Attribute)
                and part.attr in ("reached", "total_steps")
                and self._is_run(part.value, frame)
                for part in ast.walk(statement.test)
            ):
                continue
            for name in ("body", "orelse", "finalbody"):
                yield from self._breaks(getattr(statement, name, []), frame, behind)
            for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                yield from self._breaks(handler.body, frame, behind)


def _further_targets(target: ast.expr, frame: ScriptFrame, item: Any) -> Iterator[ast.Name]:
    """The targets of a loop that get a number of the loop's own, beside `item`, which the run gave it."""
    if not isinstance(target, ast.Tuple | ast.List):
        return
    values = {name: frame.value_of(name.id) for name in target.elts if isinstance(name, ast.Name)}
    is_unpacked = isinstance(item, tuple | list) and not any(value is item for value in values.values())
    numbers = frozenset(_numbers_in(item)) if is_unpacked else frozenset()
    for name, value in values.items():
        if type(value) is int and value not in numbers and (is_unpacked or name is not target.elts[-1]):
            yield name


def _numbers_in(item: Any) -> Iterator[int]:
    if type(item) is int:
        yield item
    elif isinstance(item, tuple | list):
        for part in item[:100]:
            yield from _numbers_in(part)


def _is_used(name: str, loop: ast.For) -> bool:
    """Whether the body of a loop reads a name."""
    return any(
        isinstance(part, ast.Name) and part.id == name and isinstance(part.ctx, ast.Load)
        for statement in loop.body
        for part in ast.walk(statement)
    )


def _reads_batch(node: ast.AST) -> bool:
    """Whether an expression begins at `run.batch`."""
    return any(isinstance(part, ast.Attribute) and part.attr == "batch" for part in ast.walk(node))
