"""Does a loop take its batches from the run alone, so that it can't tell when they come a second time?

`for batch in run.batches(data):` does. Around anything else (`enumerate`, `islice`, `zip`, `next(batches)`, a generator
of the script's) something counts on while the run goes back: such a loop could end early, or train otherwise.
"""

import dis
import gc
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKAGE = str(Path(__file__).parents[1])
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_COROUTINE
WRITE = "loop over run.batches itself, and read run.step or run.batch instead of counting"


def loop_of(inside: types.FrameType) -> types.FrameType | None:
    """The frame of the loop that asks for its next batch. `inside`: a frame of this package's generator."""
    loop: types.FrameType | None = inside
    while loop is not None and loop.f_code.co_flags & _GENERATOR and loop.f_code.co_filename.startswith(_PACKAGE):
        loop = loop.f_back
    return loop


def why_not_direct(loop: types.FrameType | None, batches: Iterator[Any] | None) -> str | None:
    """Why a loop over `batches`, a generator of this package, can't be led back; None if it can.

    `loop`: its frame, while it asks for the next batch.
    """
    if loop is None or batches is None:
        return f"nothing is known of the loop; {WRITE}"
    if loop.f_code.co_flags & _GENERATOR:
        return f"the generator {loop.f_code.co_name} passes its batches on, and nothing is known of its loop; {WRITE}"
    if dis.opname[loop.f_code.co_code[loop.f_lasti]] != "FOR_ITER":
        return f"the loop asks for its batches one by one; {WRITE}"
    holder = _holder_of(batches, loop)
    return None if holder is None else f"the loop takes its batches through {holder}, which counts on; {WRITE}"


def _holder_of(batches: Iterator[Any], loop: types.FrameType) -> str | None:
    """The object that reads from a generator in the loop's place. A loop itself holds it on the interpreter's stack."""
    for referrer in gc.get_referrers(batches):
        if not isinstance(referrer, types.FrameType | types.CellType) and not _are_variables(referrer, loop):
            return f"an object of the type {type(referrer).__name__}"
    return None


def _are_variables(variables: Any, frame: types.FrameType | None) -> bool:
    """Whether an object is the dict of the global or local variables of a frame or of its callers."""
    while frame is not None and isinstance(variables, dict):
        if variables is frame.f_globals or variables is frame.f_locals:
            return True
        frame = frame.f_back
    return False
