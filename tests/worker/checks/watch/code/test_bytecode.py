"""What a loop carries, by its bytecode, holds for programs that are run: random ones, and those that people write."""

import itertools
import random
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzzing import cases
from worker.checks.watch.code.bytecode import flow_of

NAMES = "abc"


class Value:
    """One value that a program assigns to a name."""

    def __init__(self, name: str, pass_number: int) -> None:
        self.name = name
        self.pass_number = pass_number


class Machine:
    """Runs a program, and sees which names are read in a later pass of the loop than that which assigned them."""

    def __init__(self, seed: int) -> None:
        self.carried: set[str] = set()
        self.said: set[str] = set()
        self.is_boundary_reached = False  # never, if each pass continues before it
        self._choices = random.Random(seed)
        self._pass = 0

    def new(self, name: str) -> Value:
        return Value(name, self._pass)

    def use(self, value: Value | None) -> None:
        if value is not None and 0 < value.pass_number < self._pass:
            self.carried.add(value.name)

    def choose(self) -> bool:
        return self._choices.random() < 0.5

    def some(self) -> range:
        """Of a loop that runs at least once."""
        return range(self._choices.randint(1, 2))

    def passes(self) -> Iterator[int]:
        for self._pass in range(1, 8):
            yield self._pass

    def boundary(self) -> None:
        self.is_boundary_reached = True
        frame = sys._getframe(1)
        flow = flow_of(frame.f_code)
        self.said |= flow.carried(flow.control.index_at(frame.f_lasti)).keys()


def blocks(depth: int) -> st.SearchStrategy[list[str]]:
    """Statements, each as lines of source."""
    names = st.sampled_from(NAMES)
    simple = st.one_of(
        names.map(lambda name: [f"{name} = machine.new({name!r})"]),
        names.map(lambda name: [f"machine.use({name})"]),
        names.map(lambda name: [f"list(map(machine.use, [{name} for _ in range(2)]))"]),
        names.map(lambda name: [f"(lambda: machine.use({name}))()"]),
    )
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=3).map(_joined)
    inner = blocks(depth - 1)
    compound = st.one_of(
        inner.map(lambda body: ["if machine.choose():", *_indented(body)]),
        st.tuples(inner, inner).map(
            lambda both: ["if machine.choose():", *_indented(both[0]), "else:", *_indented(both[1])]
        ),
        inner.map(lambda body: ["for _ in machine.some():", *_indented(body)]),
        inner.map(lambda body: ["if machine.choose():", *_indented([*body, "continue"])]),
        inner.map(lambda body: ["try:", *_indented(body), "finally:", "    pass"]),
    )
    return st.lists(st.one_of(simple, compound), min_size=1, max_size=4).map(_joined)


def _joined(parts: list[list[str]]) -> list[str]:
    return list(itertools.chain(*parts))


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


MODULE, FUNCTION = [], ["def program():"]


@cases(150)
@given(
    st.sampled_from([MODULE, FUNCTION, [*FUNCTION, "    global a, b, c"]]), blocks(2), blocks(2), st.integers(0, 10**6)
)
def test_a_name_that_a_later_pass_reads_is_carried(
    head: list[str], before: list[str], behind: list[str], seed: int
) -> None:
    body = ["a = b = c = None", "for _ in machine.passes():", *_indented([*before, "machine.boundary()", *behind])]
    lines = [*head, *_indented(body), "program()"] if head else body
    machine = Machine(seed)

    exec("\n".join(lines), {"machine": machine})

    assert machine.carried <= machine.said or not machine.is_boundary_reached


class Boundary:
    """Takes what the loop around it carries."""

    def __init__(self) -> None:
        self.carried: set[str] = set()

    def done(self) -> None:
        frame = sys._getframe(1)
        flow = flow_of(frame.f_code)
        self.carried = set(flow.carried(flow.control.index_at(frame.f_lasti)))


def made_before_it_is_read(run: Boundary) -> None:
    for batch in range(2):
        loss = batch
        logs = {}
        logs["loss"] = loss
        run.done()


def entry_under_a_constant(run: Boundary) -> None:
    stats = {"best": 0, "last": 0}
    for batch in range(2):
        stats["last"] = batch
        stats["best"] = max(stats["best"], batch)
        run.done()


def condition_of_a_while_loop(run: Boundary) -> None:
    done = False
    while not done:
        run.done()
        done = True


def made_by_the_head_of_an_outer_loop(run: Boundary) -> None:
    for _ in range(2):
        losses: list[int] = []
        for batch in range(2):
            losses.append(batch)
            run.done()


def read_behind_the_inner_loop(run: Boundary) -> None:
    for _ in range(2):
        for batch in range(2):
            loss = batch
            run.done()
        print(loss)


def assigned_in_one_branch(run: Boundary) -> None:
    rate = 1.0
    for batch in range(3):
        if batch == 2:
            rate = 0.5
        run.done()
        print(rate)


def behind_a_long_body(run: Boundary) -> None:
    total = 0
    for batch in range(2):
        x = [batch + 1, batch + 2, batch + 3, batch + 4, batch + 5, batch + 6, batch + 7, batch + 8, batch + 9]
        y = [batch * 1, batch * 2, batch * 3, batch * 4, batch * 5, batch * 6, batch * 7, batch * 8, batch * 9]
        z = [x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3], x[4] + y[4], x[5] + y[5], x[6] + y[6], x[7] + y[7]]
        total += sum(z)
        run.done()


@pytest.mark.parametrize(
    ("loop", "carried"),
    [
        (made_before_it_is_read, set()),
        (entry_under_a_constant, {"stats['best']"}),
        (condition_of_a_while_loop, {"done"}),
        (made_by_the_head_of_an_outer_loop, set()),
        (read_behind_the_inner_loop, {"loss"}),
        (assigned_in_one_branch, {"rate"}),
        (behind_a_long_body, {"total"}),
    ],
)
def test_what_a_loop_carries(loop: Callable[[Boundary], None], carried: set[str]) -> None:
    run = Boundary()

    loop(run)

    assert run.carried == carried


def test_a_function_of_each_pass_reads_what_another_one_that_it_calls_reads() -> None:
    source = """
best = inputs = 1.0
for batch in range(3):
    inputs = batch
    def score(): return best + inputs
    def closure(): return score()
    best = closure()
    run.done()
"""
    run = Boundary()

    exec(source, {"run": run})

    assert run.carried == {"best"}
