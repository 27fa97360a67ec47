"""Which loops follow the run is asked of the objects and of what pulls, not of names in the source."""

import argparse
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from supervisor.protocol.wire.launch import Launch
from tests.worker.histories import History
from worker.files import FilesRun

NAMED = "begins again at its start after a restart"
ARGS = argparse.Namespace(epochs=2, steps=4, total_steps=4, epoch=0, step=0, batch=1, reached=False)


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def trained(loop: Callable[[FilesRun], None], folder: Path, **settings: Any) -> FilesRun:
    with FilesRun(History(), directory=folder, **settings) as run:
        loop(run)
    return run


def attribute(run: FilesRun) -> None:
    args = ARGS
    for _epoch in range(args.epochs):
        for _ in run.range(2):
            run.step_done()


def attribute_of_another_name(run: FilesRun) -> None:
    args = ARGS
    for _epoch in range(args.steps):
        for _ in run.range(2):
            run.step_done()


def nested_attribute(run: FilesRun) -> None:
    cfg = SimpleNamespace(train=ARGS)
    for _epoch in range(cfg.train.epochs):
        for _ in run.range(2):
            run.step_done()


def assigned(run: FilesRun) -> None:
    args = ARGS
    epochs = args.epochs
    for _epoch in range(epochs):
        for _ in run.range(2):
            run.step_done()


def start_of_the_script(run: FilesRun) -> None:
    args = ARGS
    for _epoch in range(args.epoch, args.epochs):
        for _ in run.range(2):
            run.step_done()


def while_attribute(run: FilesRun) -> None:
    args, n = ARGS, 0
    while n < args.epochs:
        for _ in run.range(2):
            run.step_done()
        n += 1


def while_with_the_steps_of_the_script(run: FilesRun) -> None:
    args, n = ARGS, 0
    while n < 2:
        for _ in run.range(2):
            run.step_done()
        if args.reached:
            break
        n += 1


def while_that_prints_the_epoch(run: FilesRun) -> None:
    n = 0
    while n < 2:
        for _ in run.range(2):
            run.step_done()
        str(run.epoch)
        n += 1


def as_many_as_all_steps(run: FilesRun) -> None:
    for _epoch in range(len("ab") if run.total_steps is None else run.total_steps):
        for _ in run.range(2):
            run.step_done()


@pytest.mark.parametrize(
    "loop",
    [
        attribute, attribute_of_another_name, nested_attribute, assigned, start_of_the_script, while_attribute,
        while_with_the_steps_of_the_script, while_that_prints_the_epoch, as_many_as_all_steps,
    ],
)  # fmt: skip
def test_attribute_of_another_object_is_not_the_runs(loop: Callable[[FilesRun], None], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=NAMED) as raised:
        trained(loop, tmp_path)

    assert "(test_own_loops.py:" in str(raised.value)
    assert "run.epochs(" in str(raised.value)


def test_break_on_a_number_of_the_script_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    args = ARGS

    def loop(run: FilesRun) -> None:
        for _ in run.range(9):
            run.step_done()
            if run.step >= args.total_steps:
                break

    trained(loop, tmp_path)

    assert "cannot resume exactly: break (test_own_loops.py:" in capfd.readouterr().err


@pytest.mark.parametrize("is_behind", [True, False])
def test_change_of_saved_state_behind_the_step_of_a_loop_without_position_is_named(
    is_behind: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def changed_before(run: FilesRun) -> None:
        while run.step < 4:
            run.state["rate"] *= 0.5
            run.step_done()

    def changed_behind(run: FilesRun) -> None:
        for _step in range(run.step, 4):
            run.step_done()
            run.state["rate"] *= 0.5

    trained(changed_behind if is_behind else changed_before, tmp_path, state={"rate": 1.0})

    said = "run.state['rate'] (test_own_loops.py:" in capfd.readouterr().err
    assert said == is_behind


class Trainer:
    """An object of the script's that holds its run."""

    def __init__(self, run: FilesRun) -> None:
        self.run = run
        self.parts = {"run": run}

    @property
    def held(self) -> FilesRun:
        return self.run

    def epochs(self, count: int) -> Iterator[int]:
        yield from self.run.epochs(count)

    def remaining(self, count: int) -> Iterator[int]:
        yield from range(self.run.epoch, count)

    def train(self) -> None:
        for _epoch in range(self.run.epoch, 2):
            for _ in self.run.range(2):
                self.run.step_done()


def of_attribute(run: FilesRun) -> None:
    trainer = Trainer(run)
    for _epoch in range(trainer.run.epoch, 2):
        for _ in run.range(2):
            run.step_done()


def of_property(run: FilesRun) -> None:
    trainer = Trainer(run)
    while trainer.held.epoch < 2:
        for _ in trainer.parts["run"].range(2):
            run.step_done()


def generator_of_the_script(run: FilesRun) -> None:
    trainer = Trainer(run)
    for _epoch in trainer.epochs(2):
        for _ in run.range(2):
            run.step_done()


def generator_that_asks_for_the_epoch(run: FilesRun) -> None:
    trainer = Trainer(run)
    for _epoch in trainer.remaining(2):
        for _ in run.range(2):
            run.step_done()


def method(run: FilesRun) -> None:
    Trainer(run).train()


def assigned_from_the_run(run: FilesRun) -> None:
    start = run.epoch
    for _epoch in range(start, 2):
        for _ in run.range(2):
            run.step_done()


def function_for_each_epoch(run: FilesRun) -> None:
    def train_epoch(run: FilesRun) -> None:
        for _ in run.range(2):
            run.step_done()

    for _ in run.epochs(2):
        train_epoch(run)


def wrapped(run: FilesRun) -> None:
    def progress(given: Iterator[Any]) -> Iterator[Any]:
        for item in given:  # noqa: UP028 - as progress bars do
            yield item

    for _ in progress(run.epochs(2)):
        for _number in map(str, progress(run.range(2))):
            run.step_done()


def accumulating(run: FilesRun) -> None:
    for _ in run.epochs(2):
        for _number in run.range(2):
            for _part in range(3):
                str(_part)
            run.step_done()


def evaluating(run: FilesRun) -> None:
    for _ in run.epochs(2):
        for _number in run.range(2):
            run.step_done()
        with run.evaluating():
            for _number in range(5):
                str(_number)


def until_all_steps(run: FilesRun) -> None:
    while run.step < 4:
        run.step_done()


def endless(run: FilesRun) -> None:
    while True:
        run.step_done()
        if run.step == 4:
            break


def endless_count(run: FilesRun) -> None:
    for _ in itertools.count():
        if run.step == 4:
            break
        run.step_done()


def from_the_step_on(run: FilesRun) -> None:
    for _step in range(run.step, 4):
        run.step_done()


def until_solved(run: FilesRun) -> None:
    solved = False
    while not solved:
        run.step_done()
        solved = run.step == 4


def given_a_start(run: FilesRun) -> None:
    def train(first: int) -> None:
        for _ in range(first, 4):
            run.step_done()

    train(run.step)


def numbered_by_the_run(run: FilesRun) -> None:
    for _ in run.epochs(2):
        for number, _item in enumerate(run.range(2), run.batch):
            run.step_done(even=number % 2)


def number_that_nobody_uses(run: FilesRun) -> None:
    for _ in run.epochs(2):
        for _number, _item in enumerate(run.range(2)):
            run.step_done()


def pairs(run: FilesRun) -> None:
    for _ in run.epochs(2):
        for first, second in run.order([(1, 2.0), (3, 4.0)]):
            run.step_done(sum=first + second)


@pytest.mark.parametrize(
    "loop",
    [
        of_attribute, of_property, generator_of_the_script, generator_that_asks_for_the_epoch, method,
        assigned_from_the_run, function_for_each_epoch, wrapped, accumulating, evaluating, until_all_steps, endless,
        endless_count, from_the_step_on, until_solved, given_a_start, numbered_by_the_run, number_that_nobody_uses,
        pairs,
    ],
)  # fmt: skip
def test_loop_that_follows_the_run_is_not_named(
    loop: Callable[[FilesRun], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert trained(loop, tmp_path, strict=loop is not until_solved).step == 4
    assert NAMED not in capfd.readouterr().err


def own_steps(run: FilesRun) -> None:
    for _step in range(4):
        run.step_done()


def own_count(run: FilesRun) -> None:
    for step in itertools.count():
        run.step_done()
        if step == 3:
            break


def own_order(run: FilesRun) -> None:
    for _number in np.random.permutation(4):
        run.step_done()


def own_mapped(run: FilesRun) -> None:
    for _number, _square in map(lambda factor, number: (number, factor * number), [2, 2, 2, 2], range(1, 5)):
        run.step_done()


def own_list(run: FilesRun) -> None:
    entries = [1, 2, 3, 4]
    for _entry in entries:
        run.step_done()


def episodes(run: FilesRun) -> None:
    for _episode in range(2):
        for _step in range(2):
            run.step_done()


def stages(run: FilesRun) -> None:
    rates = [0.1, 0.2]
    for _rate in rates:
        for _step in range(2):
            run.step_done()


def numbered_stages(run: FilesRun) -> None:
    trainer = SimpleNamespace(layers=[0.1, 0.2])
    for _number, _layer in enumerate(trainer.layers):
        for _step in range(2):
            run.step_done()


def pairs_of_stages(run: FilesRun) -> None:
    for _rate, _size in zip([0.1, 0.2], range(2), strict=True):
        for _step in range(2):
            run.step_done()


def from_zero_in_a_function(run: FilesRun) -> None:
    def train() -> None:
        for _ in range(4):
            run.step_done()

    train()


def in_an_object(run: FilesRun) -> None:
    trainer = Trainer(run)
    for _ in range(4):
        trainer.run.step_done()


def by_next(run: FilesRun) -> None:
    for _ in run.epochs(2):
        batches = run.range(2)
        for _step in range(2):
            next(batches)
            run.step_done()


def by_next_over_all(run: FilesRun) -> None:
    batches = run.range(4)
    for _epoch in range(2):
        for _step in range(2):
            next(batches)
            run.step_done()


def numbered(run: FilesRun) -> None:
    for epoch in run.epochs(2):
        for batch in range(2):
            run.step_done(epoch=epoch, batch=batch + 1)


@pytest.mark.parametrize(
    ("loop", "lines"),
    [
        (numbered, ["for batch in run.range(2):"]),
        (own_steps, ["for _step in run.range(4):"]),
        (own_count, ["while True:  # run.step is the number of the step"]),
        (own_order, ["for _number in run.order(np.random.permutation(4)):"]),
        (
            own_mapped,
            [
                "for _number, _square in map(lambda factor, number: (number, factor * number), [2, 2, 2, 2], "
                "range(1 + run.step, 5)):"
            ],
        ),
        (own_list, ["for _entry in run.order(entries):"]),
        (episodes, ["for _step in run.range(2):", "for _episode in run.epochs(2):"]),
        (stages, ["for number in run.epochs(len(rates)): _rate = rates[number]"]),
        (numbered_stages, ["for _number in run.epochs(len(trainer.layers)): _layer = trainer.layers[_number]"]),
        (
            pairs_of_stages,
            [
                "for number in run.epochs(len(list(zip([0.1, 0.2], range(2), strict=True)))): _rate, _size = "
                "list(zip([0.1, 0.2], range(2), strict=True))[number]"
            ],
        ),
        (from_zero_in_a_function, ["for _ in run.range(4):"]),
        (in_an_object, ["for _ in run.range(4):"]),
        (by_next, ["for _step in range(run.batch, 2):"]),
        (by_next_over_all, ["for _step in range(run.batch, 2):", "for _epoch in run.epochs(2):"]),
    ],
)
def test_own_loop_around_a_step_is_named_at_the_first_one(
    loop: Callable[[FilesRun], None], lines: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert trained(loop, tmp_path / "warned").step == 4

    said = capfd.readouterr().err
    for line in lines:
        assert f'write "{line}"' in said
    assert "(test_own_loops.py:" in said

    with pytest.raises(SystemExit) as leaving:
        trained(loop, tmp_path / "strict", strict=True)
    assert leaving.value.code == 70

    assert trained(loop, tmp_path / "left out", strict=True, leave_out=["loop", "break"]).step == 4


def test_own_loop_behind_the_data_is_named_when_it_begins(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def loop(run: FilesRun) -> None:
        for _ in run.range(2):
            run.step_done()
        assert NAMED not in capfd.readouterr().err
        for _ in range(2):
            run.step_done()

    trained(loop, tmp_path)

    assert 'write "for _ in run.range(2):"' in capfd.readouterr().err


def enumerated(run: FilesRun) -> None:
    for _ in run.epochs(2):
        for i, _batch in enumerate(run.order([[0], [1]])):
            run.step_done(critic=i % 2)


def enumerated_behind_a_wrapper(run: FilesRun) -> None:
    def progress(given: Iterator[Any]) -> Iterator[Any]:
        for item in given:  # noqa: UP028 - as progress bars do
            yield item

    for _ in run.epochs(2):
        for i, (x, _y) in progress(enumerate(run.order([(0.5, 1), (0.25, 2)]))):
            run.step_done(critic=i % 2, x=x)


@pytest.mark.parametrize("loop", [enumerated, enumerated_behind_a_wrapper])
def test_number_of_a_loop_that_begins_at_0_is_named_where_it_is_used(
    loop: Callable[[FilesRun], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(loop, tmp_path / "warned")
    assert 'the number i of "for i, ' in (said := capfd.readouterr().err)
    assert "enumerate(run.batches(data), run.batch)" in said
    with pytest.raises(SystemExit):
        trained(loop, tmp_path / "strict", strict=True)
    trained(loop, tmp_path / "left out", strict=True, leave_out=["i"])


def test_thread_that_reads_ahead_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def put(source: Iterator[int], waiting: queue.Queue[int | None]) -> None:
        for number in source:
            waiting.put(number)
        waiting.put(None)

    def loop(run: FilesRun) -> None:
        for _ in run.epochs(2):
            waiting: queue.Queue[int | None] = queue.Queue(maxsize=1)
            thread = threading.Thread(target=put, args=(run.range(4), waiting))
            thread.start()
            while waiting.get(timeout=10) is not None:
                run.step_done()
            thread.join()

    assert trained(loop, tmp_path).step == 8
    assert "which is read ahead of the steps" in capfd.readouterr().err


def test_loop_over_epochs_from_one_on_is_written_with_their_numbers(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r'write "for epoch in run\.epochs\(2\): epoch \+= 1"'),
        FilesRun(History(), directory=tmp_path) as run,
    ):
        for epoch in range(1, 2 + 1):
            for _ in run.range(2):
                run.step_done(loss=float(epoch))
