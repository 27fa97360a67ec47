"""Training loops of libraries that can't go on where they stopped, and what to write in their place.

Such a loop begins anew in each process, with a position in the data that no run can see. It is found in the `with`
block that would call it, or from inside of it, at the first call of a run. Imports none of the libraries.
"""

import ast
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.checks.loop_lines import calls
from worker.checks.loop_source import module_of
from worker.checks.reachability import is_installed_file


@dataclass(frozen=True, slots=True)
class LibraryLoop:
    """`name`: of the object that trains; `method`: that runs the loop. `remedy`: what to write."""

    name: str
    method: str
    remedy: str

    def refusal(self, place: str) -> str:
        """Why it can't be resumed, in a sentence. `place`: where the script calls it."""
        return (
            f"cannot resume {self.name}.{self.method} ({place}): its loop begins anew after a restart, and its "
            f"position in the data and its callbacks' values are in no checkpoint; there is no adapter for it, so "
            f"{self.remedy}"
        )


_TRANSFORMERS = LibraryLoop(
    "transformers.Trainer",
    "train",
    'write the loop in the script: "loader = trainer.get_train_dataloader()" before the run and "for batch in '
    'run.batches(loader):" in it, with the model, an optimizer and a scheduler as parts of worker.torch.Run',
)
_LIGHTNING = LibraryLoop(
    "lightning.Trainer",
    "fit",
    'write the loop in the script: "for number, batch in enumerate(run.batches(loader), run.batch):", which calls '
    "model.training_step(batch, number), with the model and what its configure_optimizers returns as parts of "
    "worker.torch.Run",
)
_LOOPS = {
    "transformers.trainer.Trainer": _TRANSFORMERS,
    "lightning.pytorch.trainer.trainer.Trainer": _LIGHTNING,
    "pytorch_lightning.trainer.trainer.Trainer": _LIGHTNING,
}
_PACKAGES = frozenset(name.partition(".")[0] for name in _LOOPS)


def loop_of(item: Any) -> LibraryLoop | None:
    """The loop that an object of a library would run; None for any other object."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(item).__mro__)
    return next((_LOOPS[name] for name in names if name in _LOOPS), None)


def refuse_call_in_block(frame: types.FrameType | None) -> None:
    """Raises RuntimeError if the `with` block at the frame's line calls such a loop by the name of its object."""
    if frame is None:
        return
    names = {**frame.f_globals, **frame.f_locals}
    loops = {name: loop for name, value in names.items() if (loop := loop_of(value)) is not None}
    for call in _calls_in_block(frame) if loops else ():
        function = call.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            loop = loops.get(function.value.id)
            if loop is not None and function.attr == loop.method:
                raise RuntimeError(loop.refusal(_place(frame, call.lineno)))


def _calls_in_block(frame: types.FrameType) -> Iterator[ast.Call]:
    tree = module_of(frame)
    for block in () if tree is None else ast.walk(tree):
        if isinstance(block, ast.With) and block.lineno <= frame.f_lineno < block.body[0].lineno:
            yield from (call for statement in block.body for call in calls(statement))


def refuse_loop_around(frame: types.FrameType | None) -> None:
    """Raises RuntimeError if a frame, or one that called it, is inside of such a loop."""
    loop = None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _PACKAGES:
            loop = loop_of(frame.f_locals.get("self")) or loop
        elif loop is not None and not is_installed_file(frame.f_code.co_filename):
            raise RuntimeError(loop.refusal(_place(frame, frame.f_lineno)))
        frame = frame.f_back


def _place(frame: types.FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line}"
