"""`run.state`: Python values of the training loop that are committed with each checkpoint.

A value is plain (numbers, texts, None, bytes), a container of such, a NumPy array or generator, a tensor, or an object
with `state_dict` and `load_state_dict`. Imports no framework.
"""

import copy
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from worker.state.plain_values import NotSaveable, Places, SavedValue, require_initial
from worker.state.random_generators import GENERATORS
from worker.state.value_restorer import NotRestorable, RestoredPlaces, ValueRestorer

FILE = "loop_state.npz"
"""The file of a checkpoint that holds it; absent if there are no values."""
_BODY = "body"  # the name of the JSON among the arrays
_ORDER = "order"  # and of that of the order
_NAMES = "names"  # and of the names, where they are others than the initial ones and new ones behind these


class HasState(Protocol):
    """An object that gives and takes its own state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class RunState(MutableMapping[str, Any]):
    """Values by name. What a checkpoint holds replaces the initial values.

    Containers, arrays and PyTorch tensors that were given as initial values are filled in place. An object with
    `load_state_dict` that is assigned after the restore gets the state that was saved under its name.
    """

    def __init__(
        self,
        initial: Mapping[str, Any] | None = None,
        adapt: Callable[[Any], HasState | None] = lambda value: None,
        memory_of_others: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        """`adapt`: what gives and takes the state of a framework's object; None for any other value.
        `memory_of_others`: where the memory of PyTorch tensors begins that the run restores itself:
        `state={"best": net.state_dict()}` gives the parameters of the model, which a restore of the best ones must not
        fill.

        Raises TypeError for names and values that can't be saved.
        """
        self._adapt = adapt
        if initial is not None and not isinstance(initial, Mapping):
            raise TypeError(f'cannot use a {type(initial).__name__} as state=; give a dict such as {{"best": 0.0}}')
        self._values: dict[str, Any] = {}
        self._saved_objects: dict[str, Any] = {}
        """Restored states of objects that the script has not assigned yet."""
        self.order: Any = None
        """The order in which `run.order` goes through the present epoch; none of the script's values."""
        self.read: set[str] = set()
        """The names whose values the script has read; since the restore, if there was one."""
        self._memory_of_others = memory_of_others
        self._has_begun = False
        for name, value in (initial or {}).items():
            self[name] = value
        self.check()
        plain = {name: form["of"] for name, form in self._forms().items() if not form["object"]}
        self._initial = {name: SavedValue(value).json for name, value in plain.items()}
        self._given = dict(self._values)
        self._has_begun = True

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"cannot keep a value in run.state under {name!r}; use a text as its name")
        if name in self._saved_objects and (keeper := self._keeper_of(value)) is not None:
            keeper.load_state_dict(self._saved_objects.pop(name))
        if self._has_begun and name not in self._values and self._keeper_of(value) is None:
            _check_can_come_back(name, value)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"RunState({self._values!r})"

    def _keeper_of(self, value: Any) -> HasState | None:
        """What gives and takes the state of an object; None for a plain value."""
        if not isinstance(value, type) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return cast("HasState", value)
        return self._adapt(value)

    def held(self) -> dict[str, Any]:
        """A copy with the same values, for whoever is not the script."""
        return dict(self._values)

    def keepers(self) -> dict[str, HasState]:
        """By name, what gives and takes the state of each value that is an object."""
        keepers = {name: self._keeper_of(value) for name, value in list(self._values.items())}
        return {name: keeper for name, keeper in sorted(keepers.items()) if keeper is not None}

    def generators(self) -> list[Any]:
        """The random generators that are committed: values, also in containers, and in what objects give as theirs."""
        return [*_generators_in([*self._values.values(), *(keeper.state_dict() for keeper in self.keepers().values())])]

    def check(self) -> None:
        """Raises TypeError, naming the value, if a value can't be saved."""
        try:
            self.to_bytes()
        except NotSaveable as error:
            raise TypeError(str(error)) from error

    def to_bytes(self) -> bytes | None:
        """The file's content; None if there are no values. Raises NotSaveable, naming the value."""
        names = self._names() if self._has_begun else None
        if not self._values and not self._saved_objects and self.order is None and names is None:
            return None
        body: dict[str, Any] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        places = Places()
        for name, value in sorted(self._forms().items()):  # equal values make equal files
            try:
                saved = SavedValue(value["of"], None if value["object"] else places)
                if self._has_begun:  # what an object gives as its state is made again without an example
                    require_initial(saved.json, None if value["object"] else self._initial.get(name))
            except NotSaveable as error:
                raise NotSaveable(_not_kept_text(name, error)) from error
            body[name] = {"object": value["object"], "value": saved.json}
            arrays |= {f"{len(body)}/{key}": array for key, array in saved.arrays.items()}
        if self.order is not None:
            order = SavedValue(self.order)
            arrays[_ORDER] = np.frombuffer(json.dumps(order.json).encode(), np.uint8)
            arrays |= {f"{_ORDER}/{key}": array for key, array in order.arrays.items()}
        if names is not None:
            arrays[_NAMES] = np.frombuffer(json.dumps(names).encode(), np.uint8)
        text = np.frombuffer(json.dumps(body).encode(), np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **{_BODY: text}, **arrays)
        return buffer.getvalue()

    def _names(self) -> dict[str, list[str]] | None:
        """The names in their order, and the initial ones that the script has deleted; None if a restart would have
        the same ones without it."""
        deleted = [name for name in self._given if name not in self._values and name not in self._saved_objects]
        restored = [name for name in self._given if name in self._values]
        restored += sorted(self._values.keys() - self._given.keys())
        names = list(self._values)
        return {"names": names, "deleted": deleted} if deleted or names != restored else None

    def _forms(self) -> dict[str, dict[str, Any]]:
        """What is saved of each value, and whether it is the state of an object."""
        forms = {name: {"of": state, "object": True} for name, state in self._saved_objects.items()}
        for name, value in list(self._values.items()):
            keeper = self._keeper_of(value)
            forms[name] = {"of": value if keeper is None else keeper.state_dict(), "object": keeper is not None}
        return forms

    def restore(self, content: bytes | None, complete: Callable[[str, Any], Any] = lambda name, state: state) -> None:
        """Replaces the values by those of a checkpoint's file. None: the checkpoint has none, and they stay.

        `complete`: makes of an object's name and saved state the state that it is given.
        Raises NotRestorable, naming the value that does not fit.
        """
        if content is None:
            return
        self.read.clear()
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        body = json.loads(arrays.pop(_BODY).tobytes())
        if _ORDER in arrays:
            order = json.loads(arrays.pop(_ORDER).tobytes())
            self.order = ValueRestorer(_arrays_of(_ORDER, arrays)).restore_value(order, None)
        restored = RestoredPlaces(others=self._memory_of_others())
        for number, (name, saved) in enumerate(body.items(), 1):
            present = self._values.get(name)
            together = None if saved["object"] else restored
            try:
                value = ValueRestorer(_arrays_of(str(number), arrays), together).restore_under_name(
                    saved["value"], None if saved["object"] else present
                )
            except NotRestorable as error:
                raise NotRestorable(f"run.state[{name!r}]: {error}") from error
            if not saved["object"]:
                self._values[name] = value
                continue
            value = complete(name, value)
            if (keeper := self._keeper_of(present)) is not None:
                try:
                    keeper.load_state_dict(value)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise NotRestorable(f"run.state[{name!r}]: {type(error).__name__}: {error}") from error
            else:
                self._values.pop(name, None)
                self._saved_objects[name] = value
        if _NAMES in arrays:
            names = json.loads(arrays[_NAMES].tobytes())
            others = {name: value for name, value in self._values.items() if name not in names["deleted"]}
            self._values = {name: others.pop(name) for name in names["names"] if name in others} | others

    def copied(self) -> Mapping[str, Any]:
        """A copy that later changes leave as it is, for `put_back`."""
        return copy.deepcopy({name: form["of"] for name, form in self._forms().items()})

    def put_back(self, before: Mapping[str, Any]) -> None:
        """Makes the values again what they were when `copied` gave `before`. New names stay."""
        places, restored = Places(), RestoredPlaces(others=self._memory_of_others())
        for name, value in before.items():
            present = self._values.get(name)
            if (keeper := self._keeper_of(present)) is not None:
                keeper.load_state_dict(value)
            elif name not in self._saved_objects:
                saved = SavedValue(value, places)
                self._values[name] = ValueRestorer(saved.arrays, restored).restore_under_name(saved.json, present)


def _generators_in(value: Any) -> Iterator[Any]:
    if isinstance(value, GENERATORS):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _generators_in(entry)


def _check_can_come_back(name: str, value: Any) -> None:
    """Raises TypeError if a value that had no initial one could not be saved, or not be made again by a restart."""
    try:
        saved = SavedValue(value)
        ValueRestorer(saved.arrays).restore_value(saved.json, None)
    except NotSaveable as error:
        raise TypeError(_not_kept_text(name, error)) from error
    except NotRestorable as error:
        raise TypeError(
            f"cannot keep run.state[{name!r}] without an initial value, as only the script can make such an object "
            f"(after a restart, {error}): give the run an empty or first one, as in "
            f"state={{{name!r}: {type(value).__name__}(...)}}, or keep plain values"
        ) from error


def _not_kept_text(name: str, error: NotSaveable) -> str:
    return (
        f"cannot keep run.state[{name!r}]{error}; a value can be a number, a text, None, a container of these, a NumPy "
        f"array, or an object with state_dict and load_state_dict; of another object, keep what it holds, as in "
        f"list(q.queue) or frame.to_dict()"
    )


def _arrays_of(value: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of one saved value, by the names that its JSON gives them."""
    return {key.partition("/")[2]: array for key, array in arrays.items() if key.startswith(f"{value}/")}


def restore_from(
    folder: Path, state: RunState, complete: Callable[[str, Any], Any] = lambda name, state: state
) -> None:
    """Restores what the verified checkpoint in `folder` holds, if it holds any. Raises NotRestorable, OSError."""
    file = folder / FILE
    state.restore(file.read_bytes() if file.exists() else None, complete)
