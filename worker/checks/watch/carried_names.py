"""The names of the loop's own functions that it carries from step to step: plain values, data, functions and objects.

What they carry is in their code (`code/bytecode.py`), so most of them are named at the first step, before they change.
"""

import contextlib
import functools
import types
from collections.abc import Sequence
from typing import Any

from worker.checks import loop_source
from worker.checks.findings import Finding
from worker.checks.reachability import is_data
from worker.checks.watch import digests
from worker.checks.watch.carried_values import CarriedValue, findings_of
from worker.checks.watch.clocks import PROCESS_BEGAN_AT, a_clock_showed
from worker.checks.watch.code.loop_frames import (
    LoopFrame,
    counted_steps,
    is_held_outside,
    is_made_from_run,
    is_replaced,
)
from worker.checks.watch.code.state_uses import Keys, entries_taken, names_put_into_state
from worker.checks.watch.kept.kept_values import Kept, digest_of, short_name
from worker.checks.watch.named_paths import NamedPaths
from worker.checks.watch.script_objects import FRAMEWORKS, is_traced, package_of, scripts_files
from worker.state.run_state import RunState


class CarriedNames:
    """Those of one run. `named`: gets what is named; `state`: `run.state`."""

    def __init__(self, state: RunState, named: NamedPaths) -> None:
        self._state = state
        self._named = named
        self._functions: dict[tuple[types.CodeType, str], Any] = {}  # by the code of the loop and their name there
        self._maybe_times: set[str] = set()

    def close(self) -> None:
        """Lets go of the script's functions."""
        self._functions = {}

    def carried(self, frames: Sequence[LoopFrame], kept: Kept, *, is_first: bool) -> list[Finding]:
        """The plain values that the loop's code carries, whether they have changed yet or not: all at the first look
        (`is_first`), behind the first step of the process, and later those that could still be a time."""
        values: list[CarriedValue] = []
        for frame in frames:
            into_state = names_put_into_state(loop_source.function_of(frame.frame.f_code), frame.values)
            for name, line in sorted(frame.carried.items(), key=lambda entry: (entry[1] or 0, entry[0])):
                if name in self._named or self._named.is_exempt(name):
                    continue
                if not is_first and name not in self._maybe_times:
                    continue
                is_lost = name in into_state and self._is_never_taken(into_state[name], frames)
                if name in into_state and not is_lost:
                    continue
                try:
                    value = frame.value_of(name)
                    holder = frame.value_of(name.partition("[")[0])
                except (LookupError, TypeError):
                    continue
                if holder is self._state:
                    continue  # an entry of it, by another name: state = run.state
                if "[" in name and id(holder) in kept.identities:
                    continue  # an entry of a container that checkpoints hold
                if _is_future(value) and "result" in frame.frame.f_code.co_names:
                    kind, is_kept = "future", self._named.is_exempt_object(value)
                elif is_data(value):
                    kind, is_kept = "data", self._named.is_exempt_object(value)
                elif digests.is_plain(value):  # run.state can hold it
                    kind, is_time = "untaken" if is_lost else "value", a_clock_showed(value, PROCESS_BEGAN_AT)
                    self._maybe_times |= {name} if is_time else set()
                    is_kept = is_time or (not is_lost and self._keeps(kept, name, value))
                elif is_lost:
                    continue  # an object gets its state back when it is put there
                elif is_replaced(name, value, frame):
                    is_own = package_of(type(value)) not in FRAMEWORKS  # what files hold is assigned at their restore
                    is_kept = self._named.is_exempt_object(value) or (is_own and self._keeps(kept, name, value))
                    kind = "object"
                else:
                    continue
                if not is_kept and not is_made_from_run(name, frame):
                    self._named.add(name)
                    counting = _line_of_count(name, value, frame) if is_first and kind == "value" else ""
                    kind = "count" if counting else kind
                    values.append(CarriedValue(name, f"{name} ({frame.place(line)})", frame.is_library, kind, counting))
        return findings_of(values)

    def drawn(self, frames: Sequence[LoopFrame], kept: Kept) -> list[Finding]:
        """Arrays and lists that the body of an epoch makes before its batches, by random numbers: a restart in the
        middle of the epoch would draw others."""
        values = []
        for frame in frames:
            for name in sorted(frame.read & frame.made_in_loops - frame.carried.keys()):
                with contextlib.suppress(LookupError, TypeError):
                    value = frame.value_of(name)
                    is_listed = isinstance(value, list | tuple) or digests.is_array(value)
                    if (
                        is_listed
                        and name not in self._named
                        and not self._named.is_exempt(name)
                        and not self._keeps(kept, name, value)
                        and _is_long(value)
                        and not is_held_outside(frames, value)
                    ):
                        self._named.add(name)
                        values.append(CarriedValue(name, f"{name} ({frame.place(None)})", frame.is_library, "drawn"))
        return findings_of(values)

    def rebound(self, frames: Sequence[LoopFrame]) -> list[Finding]:
        """The functions that the loop carries and has replaced since the last look: another step, another loss."""
        values: list[CarriedValue] = []
        for frame in frames:
            for name, line in frame.carried.items():
                try:
                    function = frame.value_of(name)
                except (LookupError, TypeError):
                    continue
                place = frame.frame.f_code, name
                if not _is_function(function):
                    continue
                if self._functions.setdefault(place, function) == function or self._named.has_around(name):
                    continue
                self._functions[place] = function
                if not self._named.is_exempt(name) and not self._named.is_exempt_object(function):
                    self._named.add(name)
                    values.append(CarriedValue(name, f"{name} ({frame.place(line)})", frame.is_library, "object"))
        return findings_of(values)

    def _is_never_taken(self, keys: Keys, frames: Sequence[LoopFrame]) -> bool:
        """Whether nobody has read these entries of `run.state`, and no code of the script would."""
        if None in keys or not self._state.read.isdisjoint(keys):
            return False
        files = dict.fromkeys([frame.frame.f_code.co_filename for frame in frames] + scripts_files())
        trees = (tree for file in files if (tree := loop_source.module_at(file)) is not None)
        return all(entries_taken(tree).isdisjoint({None, *keys}) for tree in trees)

    def _keeps(self, kept: Kept, name: str, value: Any) -> bool:
        """Whether checkpoints hold the value of a local name."""
        if id(value) in kept.identities and not isinstance(value, digests.PLAIN):
            return True
        in_state = self._state.held().get(short_name(name), _NOTHING)
        return name in kept.names or (in_state is not _NOTHING and digest_of(in_state) == digest_of(value))


_NOTHING = object()


def _line_of_count(name: str, value: Any, frame: LoopFrame) -> str:
    """The line by which a name goes on counting where the run does, if each step adds one to it. Behind one step."""
    counted = counted_steps(name, frame) if type(value) is int else None
    if counted is None:
        return ""
    run = next((key for key, held in frame.values.items() if hasattr(type(held), "step_done")), "run")
    ahead = value + (counted.lineno > frame.frame.f_lineno) - 1
    return f"{name} = {run}.step" + (f" {'+' if ahead > 0 else '-'} {abs(ahead)}" if ahead else "")


def _is_function(value: Any) -> bool:
    kinds = (types.FunctionType, types.MethodType, functools.partial)
    return isinstance(value, kinds) or is_traced(value)


def _is_future(value: Any) -> bool:
    """Whether it is the result of a function that another thread, process or task still executes, or has executed."""
    return callable(getattr(type(value), "add_done_callback", None)) and callable(getattr(type(value), "result", None))


def _is_long(value: Any) -> bool:
    """Whether a list or an array has several entries, as an order has."""
    try:
        return len(value) > 1
    except TypeError:
        return False
