"""What checkpoints hold is not named, whatever holds it; what they do not hold has the name that the user knows."""

import array
import csv
import ctypes
import importlib
import io
import itertools
import multiprocessing
import pickle
import queue
import random
import sys
import time
import tracemalloc
import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.checks.watch import digests
from worker.checks.watch.kept.given_states import keep_state_of
from worker.checks.watch.kept.kept_values import Kept, digest_of
from worker.checks.watch.kept.written_values import keep_deeply, keep_written
from worker.checks.watch.reached_values import Search

plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5))
values = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.tuples(inner, inner),
        st.lists(inner, max_size=4).map(deque),
        st.lists(st.integers(0, 9), max_size=4).map(np.array),
    ),
    max_leaves=12,
)


def reached(*roots: tuple[str, Any], kept: Kept | None = None) -> dict[str, int]:
    search = Search(kept or Kept(), time.thread_time() + 10.0).run(roots)
    return {path: each.digest for path, each in search.values.items()}


@given(values)
def test_the_same_value_has_the_same_digest_and_a_changed_one_another(value: Any) -> None:
    copied = [value]

    assert digest_of([value]) == digest_of(copied)
    assert digest_of([value, 0]) != digest_of([value, 1])
    assert digest_of(value) != digest_of([value])


@given(st.integers(1001, 9000), st.integers(0, 10))
def test_a_long_container_is_compared_at_its_ends_and_by_its_length(length: int, number: int) -> None:
    entries = list(range(length))
    longer, other = [*entries, 1], list(entries)
    other[number] += 1

    assert len({digest_of(entries), digest_of(longer), digest_of(other)}) == 3


def filled_queue(length: int) -> Any:
    entries: Any = queue.Queue()
    entries.queue.extend([0] * length)
    return entries


MANY = 300_000
LONG = 50_000_000
LARGE: dict[str, Callable[[], Any]] = {
    "list": lambda: [0] * MANY,
    "tuple": lambda: (0,) * MANY,
    "deque": lambda: deque([0] * MANY),
    "dict": lambda: dict.fromkeys(range(MANY), 0),
    "proxy": lambda: MappingProxyType(dict.fromkeys(range(MANY), 0)),
    "set": lambda: set(range(MANY)),
    "frozenset": lambda: frozenset(range(MANY)),
    "bytearray": lambda: bytearray(LONG),
    "bytes": lambda: bytes(LONG),
    "text": lambda: "é" * LONG,
    "array": lambda: np.zeros(LONG, np.uint8),
    "transposed array": lambda: np.zeros((LONG // 100, 100), np.uint8).T,
    "array of numbers": lambda: array.array("B", bytes(LONG)),
    "file in memory": lambda: io.BytesIO(bytes(LONG)),
    "text file in memory": lambda: io.StringIO("é" * LONG),
    "C array": ctypes.c_double * (LONG // 8),
    "shared array": lambda: multiprocessing.Array("d", LONG // 8),
    "queue": lambda: filled_queue(MANY),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", LARGE)
def test_a_look_takes_little_memory_however_much_a_script_holds(kind: str) -> None:
    large = LARGE[kind]()
    tracemalloc.start()
    try:
        values = reached(("large", large), ("held", [large]))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert {"large", "held"} <= values.keys()
    assert peak_bytes < 2 << 20, f"{peak_bytes:,} bytes"


@pytest.mark.parametrize("kind", [list, tuple, deque])
def test_no_entry_is_asked_for_that_a_container_computes(kind: type) -> None:
    class Augmented(kind):  # type: ignore[misc]
        def __getitem__(self, number: Any) -> Any:
            raise AssertionError("it draws random numbers")

        __iter__ = __getitem__  # type: ignore[assignment]

    entries = Augmented([[1], [2], [3]] * 1000)

    assert digest_of(entries) is not None
    assert "data" in reached(("data", entries))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["bytearray", "bytes", "text"])
def test_a_change_at_an_end_of_a_long_text_is_seen(kind: str) -> None:
    text = LARGE[kind]()
    odd = "o" if kind == "text" else type(text)(b"o")

    assert len({digest_of(version) for version in (text, odd + text[1:], text[:-1] + odd, text[1:])}) == 4


def test_sets_with_many_members_are_equal_in_whatever_order_they_were_filled() -> None:
    members = [f"member {number}" for number in range(2000)]
    backwards: set[str] = set()
    for member in reversed(members):
        backwards.add(member)

    assert digest_of(set(members)) == digest_of(backwards)
    assert digest_of(set(members)) != digest_of((backwards - {members[7]}) | {"another"})


def test_an_integer_of_thousands_of_digits_has_a_digest() -> None:
    assert digest_of(10**5000) != digest_of(10**5000 + 1)


def test_looking_at_iterators_does_not_move_them() -> None:
    def generated() -> Any:
        yield from range(5)

    kinds: list[Any] = [
        iter([1, 2, 3]), iter(range(3)), enumerate([1, 2, 3]), itertools.count(), itertools.cycle([1, 2]),
        zip([1, 2], [3, 4], strict=True), generated(), map(str, [1, 2, 3]), itertools.accumulate([1, 2]),
        itertools.starmap(max, [(1, 2), (3, 4)]), itertools.takewhile(bool, [1, 2]), itertools.dropwhile(bool, [0, 2]),
        itertools.compress([1, 2], [1, 1]), itertools.filterfalse(bool, [0, 0]), itertools.zip_longest([1, 2], [3]),
        itertools.combinations_with_replacement([1, 2], 2), itertools.tee([1, 2])[1], itertools.groupby([1, 2]),
        itertools.pairwise([1, 2, 3]), csv.reader(["1", "2"]), csv.DictReader(["number", "1", "2"]),
    ]  # fmt: skip
    for iterator in kinds:
        first, again = digests.digest_position(iterator), digests.digest_position(iterator)
        next(iterator)

        assert first == again is not None
        assert digests.digest_position(iterator) != first, iterator


def test_position_of_a_generator_has_the_arrays_and_lists_that_it_will_read() -> None:
    def averaged() -> Any:
        mean, last = np.zeros(2), [0.0]
        while True:
            mean *= 0.5
            mean += last.pop()
            last.append(1.0)
            yield mean

    source = averaged()
    next(source)
    before = digests.digest_position(source)
    next(source)

    assert digests.digest_position(source) != before


def test_position_of_a_generator_has_what_an_expression_has_read_before_it_yields() -> None:
    def added_up() -> Any:
        total, weight = 0, 7
        while True:
            total += weight * (yield total)

    def shared(weight: int) -> Any:
        total = 0

        def generate() -> Any:
            nonlocal total
            while True:
                total = total + weight + (yield 3)

        return generate()

    for source in (added_up(), shared(7)):
        next(source)
        before = digests.digest_position(source)
        source.send(1)
        assert digests.digest_position(source) != before


def test_position_of_a_generator_has_nothing_that_it_makes_anew() -> None:
    def noise() -> Any:
        while True:
            scale = random.random()
            drawn = np.random.rand(2) * scale
            yield drawn

    source = noise()
    next(source)
    before = digests.digest_position(source)
    next(source)

    assert digests.digest_position(source) == before


class Model:
    """Writes some of what it has to a file."""

    scale = np.ones(2)

    def __init__(self) -> None:
        self.weights = {"w": np.zeros(3)}
        self.inner = SimpleNamespace(bias=np.zeros(1), calls=0)
        self.step = 0
        self.best = 0.0

    def write(self, folder: Path) -> None:
        np.savez(folder / "w.npz", **self.weights, bias=self.inner.bias, scale=self.scale, step=self._count())

    def _count(self) -> int:
        return self.step


def test_what_a_programs_own_write_can_write_is_kept_and_the_rest_is_not() -> None:
    model, kept = Model(), Kept()

    keep_written(kept, [model.write])

    assert set(reached(("model", model), kept=kept)) == {"model.best", "model.inner.calls"}


def test_what_a_nested_function_writes_is_kept() -> None:
    weights, count, best, kept = np.zeros(3), 3, 1.5, Kept()

    def write(folder: Path) -> None:
        np.savez(folder / "w.npz", weights=weights, count=count)

    keep_written(kept, [write])

    assert kept.names >= {"count"}
    assert set(reached(("weights", weights), ("best", best), kept=kept)) == {"best"}


def test_a_program_that_pickles_an_object_keeps_all_of_it() -> None:
    model, kept = Model(), Kept()

    def write(folder: Path) -> None:
        (folder / "model").write_bytes(pickle.dumps(model))

    keep_written(kept, [write])

    assert not reached(("model", model), kept=kept)


@dataclass(frozen=True)
class TrainState:
    """As programs with JAX have it."""

    weights: Any
    moments: Any
    scale: float = 1.0

    @property
    def parts(self) -> Any:
        return self.weights, self.moments


class Files:
    """Writes a state by pickling all of it, or what it names of it."""

    def __init__(self) -> None:
        self.state = TrainState(np.zeros(2), SimpleNamespace(mean=np.zeros(2)))

    def write(self, folder: Path) -> None:
        (folder / "s").write_bytes(pickle.dumps(self.state))

    def write_some(self, folder: Path) -> None:
        (folder / "s").write_bytes(pickle.dumps({"w": self.state.weights, "m": self.state.moments}))

    def write_property(self, folder: Path) -> None:
        (folder / "s").write_bytes(pickle.dumps(self.state.parts))


@pytest.mark.parametrize(
    ("write", "not_kept"),
    [(Files.write, set()), (Files.write_some, {"files.state.scale"}), (Files.write_property, set())],
)
def test_a_program_that_pickles_attributes_of_an_object_keeps_these(write: Any, not_kept: set[str]) -> None:
    files, kept = Files(), Kept()

    keep_written(kept, [types.MethodType(write, files)])

    assert {path for path in reached(("files", files), kept=kept) if path.startswith("files")} == not_kept


class Listed:
    """Writes attributes whose names it has in a list, or somewhere else."""

    KEYS = ("weights", "mean")

    def __init__(self) -> None:
        self.weights, self.mean, self.count = np.zeros(3), 0.5, 0
        self.names = ["weights", "mean"]

    def write(self, folder: Path) -> None:
        np.savez(folder / "a.npz", **{name: getattr(self, name) for name in self.names})

    def write_keys(self, folder: Path) -> None:
        for key in self.KEYS:
            np.save(folder / key, getattr(self, key))

    def write_constants(self, folder: Path) -> None:
        for key in ("weights", "mean"):
            np.save(folder / key, getattr(self, key))

    def write_inside(self, folder: Path) -> None:
        np.savez(folder / "a.npz", **{key: getattr(part, key) for part in [self] for key in ("weights", "mean")})

    def write_made(self, folder: Path) -> None:
        for number in range(2):
            np.save(folder / "a", getattr(self, f"part_{number}"))

    def write_named(self, folder: Path) -> None:
        np.save(folder / "a", getattr(self, "weights"))  # noqa: B009
        np.save(folder / "b", getattr(self, "mean", None))


@pytest.mark.parametrize(
    ("write", "not_kept"),
    [
        (Listed.write, {"files.count"}),
        (Listed.write_keys, {"files.count"}),
        (Listed.write_constants, {"files.count"}),
        (Listed.write_inside, {"files.count"}),
        (Listed.write_named, {"files.count"}),
        (Listed.write_made, set()),
    ],
)
def test_a_program_that_takes_attributes_by_names_in_a_list_keeps_these(write: Any, not_kept: set[str]) -> None:
    files, kept = Listed(), Kept()

    keep_written(kept, [types.MethodType(write, files)])

    left = {path for path in reached(("files", files), kept=kept) if path.startswith("files")}
    assert left - {"files.names"} - {path for path in left if path.startswith("files.names")} == not_kept


class Stopping:
    """Gives some of what it has as its state."""

    def __init__(self) -> None:
        self.counter, self._best, self.waited = 3, 0.5, 7

    def state_dict(self) -> dict[str, Any]:
        return {"counter": self.counter, "best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def test_what_an_object_gives_as_its_state_is_kept() -> None:
    stopping, kept = Stopping(), Kept()

    keep_state_of(kept, stopping)
    search = Search(kept, time.thread_time() + 10.0).run([("stopping", stopping)])

    assert {path for path, each in search.values.items() if not kept.has(each)} == {"stopping.waited"}


def test_the_same_value_under_the_same_name_in_another_object_is_not_kept() -> None:
    stopping, kept = Stopping(), Kept()
    trainer = SimpleNamespace(best=0.5, counter=3, stopping=stopping)

    keep_state_of(kept, stopping)
    search = Search(kept, time.thread_time() + 10.0).run([("trainer", trainer)])

    lost = {path for path, each in search.values.items() if not kept.has(each)}
    assert lost == {"trainer.best", "trainer.counter", "trainer.stopping.waited"}


count, losses = 3, [1.0]


class OfModule:
    """Gives what the module has as its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": count, "losses": losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        global count
        count = state["count"]
        losses[:] = state["losses"]


def test_what_an_object_gives_of_its_module_is_kept() -> None:
    kept = Kept()

    keep_state_of(kept, OfModule())
    search = Search(kept, time.thread_time() + 10.0).run([("count", count), ("losses", losses)])

    assert [path for path, each in search.values.items() if not kept.has(each)] == []


class Island:
    """Has members, of which a program writes the genes."""

    def __init__(self) -> None:
        self.rate = 0.5
        self.members = [SimpleNamespace(genes=np.zeros(2), age=0)]


class World:
    """Writes something of the objects in a list."""

    def __init__(self) -> None:
        self.islands = [Island()]

    def write(self, folder: Path) -> None:
        np.save(folder / "a", np.array([[member.genes for member in island.members] for island in self.islands]))


def test_of_objects_in_a_list_a_program_keeps_only_what_it_writes() -> None:
    world, kept = World(), Kept()

    keep_written(kept, [world.write])

    left = set(reached(("world", world), kept=kept))
    assert left == {"world.islands[0].rate", "world.islands[0].members[0].age"}


class Cart:
    """An environment that has no state of its own."""

    def __init__(self) -> None:
        self.place, self.elapsed, self.ended = np.zeros(2), 3, False
        self.inner = Stopping()


class CartState:
    """Gives the state of others, under names of its own."""

    def __init__(self, carts: list[Cart]) -> None:
        self.carts = carts
        self.elapsed = 7

    def state_dict(self) -> dict[str, Any]:
        return {"where": [cart.place for cart in self.carts], "ended": [cart.ended for cart in self.carts],
                "waited": [cart.inner.waited for cart in self.carts], "elapsed": self.elapsed}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.elapsed = state["elapsed"]
        for cart, where, waited in zip(self.carts, state["where"], state["waited"], strict=True):
            cart.place, cart.inner.waited = where, waited


def test_what_an_object_gives_of_others_and_sets_in_them_is_kept() -> None:
    carts, kept = [Cart(), Cart()], Kept()

    keep_state_of(kept, CartState(carts))
    search = Search(kept, time.thread_time() + 10.0).run([("carts", carts)])

    lost = {path.partition(".")[2] for path, each in search.values.items() if not kept.has(each)}
    assert lost - {""} == {"elapsed", "ended", "inner.counter", "inner._best"}


def test_what_lies_in_a_kept_container_is_kept() -> None:
    losses, kept = {"all": [1.0], "names": [["a"]]}, Kept()

    keep_deeply(kept, losses)

    assert not reached(("losses", losses), ("names", losses["names"]), kept=kept)


class Lazy:
    """Computes what is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


def test_no_attribute_is_asked_for_that_an_object_computes() -> None:
    assert reached(("lazy", Lazy()), ("inside", [Lazy()])).keys() == {"inside"}


@pytest.mark.parametrize("made", [lambda: [].append, dict, type("Empty", (), {})])
def test_odd_objects_are_no_error(made: Any) -> None:
    holder: list[Any] = [made()]
    holder.append(holder)

    reached(("holder", holder), ("itself", made()))


def test_the_insides_of_installed_packages_are_left_out_but_not_records_and_environments(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "installed_engine.py"
    package.parent.mkdir()
    package.write_text(
        "import dataclasses\n"
        "class Engine:\n    def __init__(self): self.iteration = 0\n"
        "class Env:\n    def __init__(self): self.place = 0\n    def reset(self): pass\n    def step(self): pass\n"
        "@dataclasses.dataclass\nclass State:\n    count: int = 0\n"
    )
    sys.path.insert(0, str(package.parent))
    try:
        installed = importlib.import_module("installed_engine")
    finally:
        sys.path.remove(str(package.parent))

    found = reached(("engine", installed.Engine()), ("env", installed.Env()), ("state", installed.State()))

    assert found.keys() == {"env.place", "state.count"}
