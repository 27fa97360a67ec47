"""Loops of a script's own: those with a position go on exactly after a death at any moment, the others are refused."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from supervisor.protocol.wire.launch import Launch
from tests.fuzzing import QUICK
from tests.worker.histories import Died, Script, Trainer, train, train_with_deaths
from worker.files import FilesRun


@pytest.fixture(autouse=True)
def _attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def ranges_in_epochs(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(3):
        trainer.passes()
        for number in trainer.run.range(2, 10, 3):
            trainer.steps([epoch, number])
        trainer.does([epoch, "tail", random.random()])
        trainer.passes()


def permutations_in_epochs(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(3):
        for number in trainer.run.order(np.random.permutation(5)):
            trainer.steps([epoch, int(number), np.random.random()])
        trainer.does(np.random.random())
        trainer.passes()


def slices_of_a_list(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(2):
        entries = list(range(7))
        random.shuffle(entries)
        for several in trainer.run.order(entries, batch_size=3):
            trainer.steps([epoch, list(several)])


def whole_epochs(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(4):
        trainer.passes()
        trainer.steps([epoch, random.random()])
        trainer.does("tail")
        trainer.passes()


def batches_and_one_step_behind(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(3):
        for number in trainer.run.range(2):
            trainer.steps([epoch, number])
        trainer.steps([epoch, "tail"])


def accumulated(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(2):
        for number in trainer.run.range(6):
            trainer.does(number)
            if number % 3 == 2:
                trainer.run.step_done()
            trainer.passes()


def one_range(trainer: Trainer) -> None:
    for number in trainer.run.range(6):
        trainer.steps([number, random.random()])


def one_order(trainer: Trainer) -> None:
    for number in trainer.run.order(np.random.permutation(6)):
        trainer.steps([int(number), np.random.random()])


def while_epochs(trainer: Trainer) -> None:
    while trainer.run.epoch < 3:
        for number in trainer.run.range(2):
            trainer.steps([trainer.run.epoch, number])
        trainer.does("tail")


def range_of_epochs(trainer: Trainer) -> None:
    for epoch in range(trainer.run.epoch, 3):
        for number in trainer.run.order(3):
            trainer.steps([epoch, number])
        trainer.does("tail")
        trainer.passes()


def numbered_batches(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(2):
        for number, entry in enumerate(trainer.run.order([5, 6, 7]), trainer.run.batch):
            trainer.steps([number, entry])


def stopped_early(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(5):
        for number in trainer.run.range(2):
            trainer.steps([epoch, number])
        if epoch == 2:
            break


def episodes_until_solved(trainer: Trainer) -> None:
    for episode in trainer.run.epochs(9):
        trainer.steps(episode)
        if episode == 3:
            break


def head_of_the_step(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(3):
        rate = trainer.run.step
        trainer.passes()
        for number in trainer.run.range(3):
            trainer.steps([rate, trainer.run.step, number])
        trainer.does([rate, "tail", trainer.run.step])
        trainer.passes()


def first_of_each_epoch(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(3):
        trainer.steps(next(trainer.run.range(7, 9)))


def code_behind_the_step(trainer: Trainer) -> None:
    for number in trainer.run.range(6):
        trainer.does(number)
        trainer.run.step_done()
        trainer.passes()
        if number % 2:
            trainer.does(["behind", random.random()])
            trainer.run.state["behind"] = number
        trainer.passes()


def code_behind_the_step_and_a_break(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(3):
        for number in trainer.run.order(np.random.permutation(5)):
            trainer.does([int(number), trainer.run.state.setdefault("number", 0)])
            trainer.run.step_done()
            trainer.passes()
            trainer.run.state["number"] = int(number)
            trainer.passes()
            if number == epoch:
                break
        trainer.does(["tail", random.random()])
        trainer.passes()


EXACT: list[Script] = [
    ranges_in_epochs, permutations_in_epochs, slices_of_a_list, whole_epochs, batches_and_one_step_behind, accumulated,
    one_range, one_order, while_epochs, range_of_epochs, numbered_batches, stopped_early, episodes_until_solved,
    first_of_each_epoch, code_behind_the_step, head_of_the_step,
]  # fmt: skip


FOR_EVERY_EDIT = (permutations_in_epochs, batches_and_one_step_behind, stopped_early, code_behind_the_step)
ALTERNATELY, EACH = ("1 steps", "2 steps"), (("1 steps",), ("2 steps",))


def of_each_kind(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test with each of the loops that are exact, and with intervals of saves."""
    scripts = [pytest.param(script, marks=() if script in FOR_EVERY_EDIT else pytest.mark.thorough) for script in EXACT]
    intervals = [ALTERNATELY, *(pytest.param(interval, marks=pytest.mark.nightly) for interval in EACH)]
    with_intervals = pytest.mark.parametrize("intervals", intervals, ids=["alternately", "1", "2"])
    return with_intervals(pytest.mark.parametrize("script", scripts)(test))


@of_each_kind
def test_death_at_any_moment_changes_nothing(
    script: Script, intervals: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With two intervals they take turns, and every second moment has one; each night each moment has each."""
    *expected, moments = train(script, tmp_path / "undisturbed", interval=intervals[-1])

    for number, moment in enumerate(range(1, moments + 1, 10 if QUICK else len(intervals))):
        interval = intervals[number % len(intervals)]
        assert train_with_deaths(script, tmp_path / str(moment), [moment], interval=interval) == tuple(expected), (
            f"died at moment {moment}"
        )
    assert "cannot resume exactly" not in capfd.readouterr().err


@of_each_kind
def test_many_deaths_and_a_start_behind_the_end_change_nothing(
    script: Script, intervals: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    *expected, _ = train(script, tmp_path / "undisturbed", interval=intervals[-1])

    often = train_with_deaths(script, tmp_path / "often", [3] * (5 if QUICK else 40), interval=intervals[0])
    again = train_with_deaths(script, tmp_path / "undisturbed", [], interval=intervals[-1])
    assert (often, again) == (tuple(expected), tuple(expected)), "a complete training does not go on"
    assert "cannot resume exactly" not in capfd.readouterr().err


@pytest.mark.thorough
def test_code_behind_a_step_and_a_break_belong_to_it(tmp_path: Path) -> None:
    *expected, moments = train(code_behind_the_step_and_a_break, tmp_path / "undisturbed")

    for moment in range(1, moments + 1, 5 if QUICK else 1):
        killed = train_with_deaths(code_behind_the_step_and_a_break, tmp_path / str(moment), [moment])
        assert killed == tuple(expected), f"died at moment {moment}"


def test_range_ends_with_all_steps_of_the_run(tmp_path: Path) -> None:
    assert train(one_range, tmp_path, total_steps=4)[1] == 4
    assert train(one_range, tmp_path, total_steps=9)[1] == 6, "it does not begin a second time"


def test_order_goes_on_at_the_next_entry_with_another_batch_size(tmp_path: Path) -> None:
    def in_slices_of(size: int, until: int) -> Script:
        def script(trainer: Trainer) -> None:
            for several in trainer.run.order(np.random.permutation(12), batch_size=size):
                trainer.does(several.tolist())
                trainer.run.step_done()
                if trainer.run.step == until:
                    raise Died

        return script

    np.random.seed(3)
    whole = np.random.permutation(12).tolist()
    with pytest.raises(Died):
        train(in_slices_of(2, 2), tmp_path)
    done = train(in_slices_of(4, 99), tmp_path)[0]

    assert done == [whole[:2], whole[2:4], whole[4:8], whole[8:]]


def test_order_of_another_length_is_said_and_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def of(length: int, until: int) -> Script:
        def script(trainer: Trainer) -> None:
            for number in trainer.run.order(list(range(length))):
                trainer.does(number)
                trainer.run.step_done()
                if trainer.run.step == until:
                    raise Died

        return script

    with pytest.raises(Died):
        train(of(3, 2), tmp_path)
    done = train(of(5, 99), tmp_path)[0]

    assert done == [0, 1, 2, 3, 4]
    assert "the order of run.order has 5 entries, had 3" in capfd.readouterr().err


def test_order_is_none_of_the_scripts_values(tmp_path: Path) -> None:
    def script(trainer: Trainer) -> None:
        for _ in trainer.run.order([1, 2]):
            trainer.run.step_done()
            assert dict(trainer.run.state) == {}

    train(script, tmp_path)


def test_order_that_has_a_name_is_not_named(tmp_path: Path) -> None:
    def script(trainer: Trainer) -> None:
        run = trainer.run
        for _ in run.epochs(2):
            order = np.random.permutation(2000)
            for number, several in enumerate(run.order(order, batch_size=1000), run.batch):
                run.step_done(first=order[number] + several[0])

    assert train(script, tmp_path, strict=True)[1] == 4


@pytest.mark.parametrize("entries", [{1: 2}, "text", iter([1]), {1, 2}, 1.5])
def test_what_has_no_order_is_refused(entries: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"run\.order\(np\.random\.permutation\(n\)\)"):
        train(lambda trainer: trainer.run.order(entries), tmp_path)


def own_range_in_epochs(trainer: Trainer) -> None:
    for epoch in trainer.run.epochs(3):
        for number in range(10):
            trainer.does([epoch, number])
            trainer.run.step_done()


def own_permutation_in_epochs(trainer: Trainer) -> None:
    run = trainer.run
    for _ in run.epochs(3):
        for _number in np.random.permutation(10):
            run.step_done()


def helper_in_epochs(trainer: Trainer) -> None:
    def train_epoch(run: FilesRun, count: int) -> None:
        for _ in range(count):
            run.step_done()

    for _ in trainer.run.epochs(3):
        train_epoch(trainer.run, 10)


def while_in_epochs(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(3):
        done = 0
        while done < 10:
            trainer.run.step_done()
            done += 1


def two_steps_behind_the_batches(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(3):
        for _number in trainer.run.range(2):
            trainer.run.step_done()
        trainer.run.step_done()
        trainer.run.step_done()


def several_for_one_batch(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(3):
        for _number in trainer.run.range(2):
            for _part in range(4):
                trainer.run.step_done()


def several_for_one_number(trainer: Trainer) -> None:
    for _ in trainer.run.range(9):
        trainer.run.step_done()
        trainer.run.step_done()


def step_before_the_batches(trainer: Trainer) -> None:
    for _ in trainer.run.epochs(3):
        trainer.run.step_done()
        for _number in trainer.run.range(2):
            trainer.run.step_done()


@pytest.mark.parametrize(
    ("script", "says", "steps"),
    [
        (own_range_in_epochs, 'write "for number in trainer.run.range(10):"', 1),
        (own_permutation_in_epochs, 'write "for _number in run.order(np.random.permutation(10)):"', 1),
        (helper_in_epochs, 'write "for _ in run.range(count):"', 1),
        (while_in_epochs, r"make the steps in a loop over run.batches(data), run.range(n) or run.order(indices)", 1),
        (two_steps_behind_the_batches, "only its last step may have no batch of its own", 3),
        (several_for_one_batch, "call run.step_done once for each", 1),
        (several_for_one_number, "call run.step_done once for each", 1),
        (step_before_the_batches, "make the step behind the loop over run.range", 1),
    ],
)
def test_step_that_no_position_tells_from_the_one_before_is_refused(
    script: Script, says: str, steps: int, tmp_path: Path
) -> None:
    done: list[FilesRun] = []

    def remembered(trainer: Trainer) -> None:
        done.append(trainer.run)
        script(trainer)

    with pytest.raises(RuntimeError) as raised:
        train(remembered, tmp_path)

    assert says in str(raised.value)
    assert done[0].step == steps
    if script is not step_before_the_batches:
        assert "(test_loops.py:" in str(raised.value)


def test_epochs_inside_of_a_range_are_refused(tmp_path: Path) -> None:
    def script(trainer: Trainer) -> None:
        for _ in trainer.run.range(3):
            for _epoch in trainer.run.epochs(2):
                trainer.run.step_done()

    with pytest.raises(RuntimeError, match=r"cannot begin run\.epochs inside of a loop over run\.range"):
        train(script, tmp_path)


def test_second_range_in_an_epoch_is_refused(tmp_path: Path) -> None:
    def script(trainer: Trainer) -> None:
        for _ in trainer.run.epochs(3):
            for _number in trainer.run.range(2):
                trainer.run.step_done()
            for _number in trainer.run.order(2):
                trainer.run.step_done()

    with pytest.raises(RuntimeError, match="cannot read a second time in epoch 0"):
        train(script, tmp_path)


def test_empty_range_is_an_epoch_without_steps(tmp_path: Path) -> None:
    def script(trainer: Trainer) -> None:
        for _ in trainer.run.epochs(2):
            for _number in trainer.run.range(0):
                trainer.run.step_done()

    assert train(script, tmp_path)[1] == 0


def test_program_that_says_its_position_may_make_any_steps(tmp_path: Path) -> None:
    def script(trainer: Trainer) -> None:
        for epoch in trainer.run.epochs(2):
            for batch in range(trainer.run.batch, 3):
                trainer.passes()
                trainer.does([epoch, batch])
                trainer.run.step_done(epoch=epoch, batch=batch + 1)

    *expected, moments = train(script, tmp_path / "undisturbed")
    for moment in range(1, moments + 1, 10 if QUICK else 1):
        assert train_with_deaths(script, tmp_path / str(moment), [moment]) == tuple(expected)


def tail_of_a_while(trainer: Trainer) -> None:
    while trainer.run.epoch < 3:
        for _ in trainer.run.range(2):
            trainer.run.step_done()
        trainer.run.step_done()


def tail_of_a_range(trainer: Trainer) -> None:
    for _epoch in range(trainer.run.epoch, 3):
        for _ in trainer.run.range(2):
            trainer.run.step_done()
        trainer.run.step_done()


@pytest.mark.parametrize("script", [tail_of_a_while, tail_of_a_range])
def test_step_behind_the_data_is_named_where_nobody_knows_when_the_epoch_ends(
    script: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(script, tmp_path)[1] == 9

    assert "cannot resume exactly: the step behind the data in" in (said := capfd.readouterr().err)
    assert "in trainer.run.epochs(" in said


def test_second_phase_that_follows_the_run_is_not_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def script(trainer: Trainer) -> None:
        for epoch in range(trainer.run.epoch, 2):
            for number in trainer.run.range(2):
                trainer.steps([epoch, number])
        while trainer.run.step < 7:
            trainer.steps("more")

    *expected, moments = train(script, tmp_path / "undisturbed")
    for moment in range(1, moments + 1, 10 if QUICK else 1):
        assert train_with_deaths(script, tmp_path / str(moment), [moment]) == tuple(expected)
    assert "cannot resume exactly" not in capfd.readouterr().err


def prefetched(batches: Iterator[Any], ahead: int) -> Iterator[Any]:
    waiting = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) > ahead:
            yield waiting.pop(0)
    yield from waiting


def test_batches_that_are_read_ahead_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def ahead_by(count: int) -> Script:
        def script(trainer: Trainer) -> None:
            for _ in trainer.run.epochs(2):
                for number in prefetched(trainer.run.range(6), count):
                    trainer.does(number)
                    trainer.run.step_done()

        return script

    assert train(ahead_by(0), tmp_path / "0")[1] == 12
    assert "cannot resume exactly" not in capfd.readouterr().err
    assert train(ahead_by(2), tmp_path / "2")[1] == 12
    assert "which is read ahead of the steps" in capfd.readouterr().err
