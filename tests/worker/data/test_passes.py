"""The order of a shuffled dataset comes back in every pass, however the dataset is built."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from tests.worker import training
from tests.worker.histories import Died
from worker.data.batches import BatchReader
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position

pytestmark = pytest.mark.tensorflow

Dataset = tf.data.Dataset


def numbers(count: int = 6) -> Any:
    return Dataset.range(count)


def noise(number: tf.Tensor) -> tf.Tensor:
    return tf.cast(number, tf.float32) + tf.random.uniform([])


def sampled(**settings: Any) -> Any:
    return Dataset.sample_from_datasets(
        [numbers().shuffle(6), numbers().shuffle(6).map(lambda number: number + 10)], [0.5, 0.5], **settings
    )


KINDS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: numbers().shuffle(6).batch(2),
    "seeded shuffle": lambda: numbers().shuffle(6, seed=3).batch(2).prefetch(2),
    "two shuffles": lambda: numbers().shuffle(6).shuffle(6).batch(2),
    "a shuffle of files": lambda: numbers().shuffle(6).interleave(
        lambda first: numbers(2).map(lambda number: number + 10 * first).shuffle(2), num_parallel_calls=2
    ).shuffle(4).batch(2),
    "shuffles zipped": lambda: Dataset.zip((numbers().shuffle(6), numbers().shuffle(6))).map(
        lambda one, two: one * 10 + two
    ).batch(2),
    "samples": lambda: sampled().batch(2),
    "samples drawn anew": lambda: sampled(seed=4, rerandomize_each_iteration=True).batch(2),
    "random numbers": lambda: Dataset.random(seed=3, rerandomize_each_iteration=True).take(6).map(
        lambda number: number % 1000
    ).batch(2),
    "noise": lambda: numbers().shuffle(6).map(noise).batch(2),
    "a cache before the shuffle": lambda: numbers().cache().shuffle(6).batch(2),
    "a cache after the shuffle": lambda: numbers().shuffle(6).cache().batch(2),
    "a cache between shuffles": lambda: numbers().shuffle(6).cache().shuffle(6).batch(2),
    "a repeated shuffle": lambda: numbers(3).shuffle(3).repeat(2).shuffle(2).batch(2),
    "one pass of a repeated shuffle": lambda: numbers(6).shuffle(6).repeat().take(6).batch(2),
    "part of a repeated shuffle": lambda: numbers(4).shuffle(4).repeat().batch(2).take(3),
    "part of a shuffle repeated thrice": lambda: numbers(3).shuffle(3).repeat(3).take(4).batch(2),
    "shuffles one after another": lambda: numbers(4).shuffle(4).concatenate(numbers(4).shuffle(4)).batch(2),
    "the rest of a shuffle": lambda: numbers(8).shuffle(8).skip(2).batch(2),
}  # fmt: skip


def values(batch: Any) -> list[float]:
    return [float(each) for part in getattr(batch, "values", (batch,)) for each in np.ravel(part.numpy())]


def seeded(make: Callable[[], Any]) -> Any:
    """The dataset as each new process makes it."""
    tf.random.set_seed(1)
    return make()


ON_REPLICAS = ("shuffle", "samples drawn anew", "noise")
"""The kinds that two replicas read in every run: one for each way in which a pass gets its order or its numbers. One
device reads all."""


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [
        *((kind, 1) for kind in KINDS),
        *(pytest.param(kind, 2, marks=() if kind in ON_REPLICAS else pytest.mark.nightly) for kind in KINDS),
    ],
)
def test_order_of_every_pass_comes_back_from_any_position(kind: str, replicas: int, two_replicas: Any) -> None:
    make, strategy = KINDS[kind], two_replicas if replicas == 2 else None
    spread = (lambda each: each) if strategy is None else strategy.experimental_distribute_dataset
    own = seeded(make)
    expected = [[values(batch) for batch in spread(own)] for _ in range(3)]

    log = PassLog()
    reader = BatchReader(seeded(make), strategy, Position(), passes=log)
    saved, seen = [], []
    for epoch in range(3):
        for batch in reader.rest_of_epoch():
            seen.append(values(batch))
            saved.append((epoch, len(seen), reader.position, json.dumps(log.to_json())))
    assert seen == [batch for each in expected for batch in each]

    for epoch, done, position, text in saved if strategy is None else saved[3::4]:
        again = BatchReader(seeded(make), strategy, position, passes=PassLog(json.loads(text)))
        rest = [values(batch) for _ in range(epoch, 3) for batch in again.rest_of_epoch()]
        assert rest == seen[done:]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_pass_after_a_restart_at_the_end_of_one_has_its_order(make: Callable[[], Any], ended: bool) -> None:
    """The checkpoint may be that of the last step, or of after the data have ended; nothing is read again."""
    log = PassLog()
    reader = BatchReader(seeded(make), None, Position(), passes=log)
    whole, saved = [], []
    for _ in range(3):
        batches = []
        for batch in reader.rest_of_epoch():
            batches.append(values(batch))
            text = json.dumps(log.to_json())
        whole.append(batches)
        saved.append(json.dumps(log.to_json()) if ended else text)

    for epoch in range(2):
        again = BatchReader(seeded(make), None, Position(epoch, 3), passes=PassLog(json.loads(saved[epoch])))
        again.skip_epoch()
        again.position = Position(epoch + 1)
        rest = [[values(batch) for batch in again.rest_of_epoch()] for _ in range(epoch + 1, 3)]
        assert rest == whole[epoch + 1 :]


def test_iterators_that_the_script_makes_of_the_same_dataset_are_counted() -> None:
    make = KINDS["two shuffles"]

    def passes(reader: BatchReader, dataset: Any, count: int) -> Iterator[list[float]]:
        for _ in range(count):
            list(dataset.take(1))
            for number, batch in enumerate(reader.rest_of_epoch()):
                yield values(batch)
                if number == 1:
                    dataset.reduce(0, lambda count, each: count + 1)

    log, dataset = PassLog(), seeded(make)
    reader = BatchReader(dataset, None, Position(), passes=log)
    whole, saved = [], []
    for batch in passes(reader, dataset, 3):
        whole.append(batch)
        saved.append((reader.position, json.dumps(log.to_json())))

    position, text = saved[3]
    dataset = seeded(make)
    again = BatchReader(dataset, None, position, passes=PassLog(json.loads(text)))
    rest = []
    for _ in range(2):
        list(dataset.take(1))
        for batch in again.rest_of_epoch():
            rest.append(values(batch))
            if len(rest) % 3 == 1:
                dataset.reduce(0, lambda count, each: count + 1)
    assert rest == whole[4:]


def test_shuffle_made_for_each_epoch_takes_the_seed_of_that_epoch() -> None:
    def of_epoch(epoch: int) -> Any:
        return numbers().shuffle(6).batch(2)

    tf.random.set_seed(1)
    log = PassLog()
    reader = BatchReader(of_epoch, None, Position(), passes=log)
    whole, saved = [], []
    for _ in range(3):
        for batch in reader.rest_of_epoch():
            tf.random.uniform([])  # takes a seed of the same sequence
            whole.append(values(batch))
            saved.append((reader.position, json.dumps(log.to_json())))

    position, text = saved[4]
    tf.random.set_seed(1)
    again = BatchReader(of_epoch, None, position, passes=PassLog(json.loads(text)))
    rest = []
    for _ in range(2):
        for batch in again.rest_of_epoch():
            tf.random.uniform([])
            rest.append(values(batch))
    assert rest == whole[5:]
    assert whole[:3] != whole[3:6]


@pytest.mark.parametrize(
    "stop",  # a pass has three batches: in a pass, at its end, and in the last one
    [pytest.param(stop, marks=() if stop in (2, 3, 7) else pytest.mark.nightly) for stop in range(1, 9)],
)
def test_run_resumes_a_shuffled_dataset_after_any_step(stop: int, tmp_path: Path) -> None:
    def run_to(end: int | None) -> list[list[float]]:
        seen = []
        dataset = seeded(KINDS["shuffle"])
        with worker.Run(training.build(tf.distribute.get_strategy()), directory=tmp_path, interval="1000 steps") as run:
            while run.epoch < 3:
                for batch in run.batches(dataset):
                    seen.append(values(batch))
                    run.step_done()
                    if run.step == end:
                        return seen
        return seen

    dataset = seeded(KINDS["shuffle"])
    expected = [values(batch) for _ in range(3) for batch in dataset]
    assert run_to(stop) + run_to(None) == expected


@pytest.mark.parametrize("reads", [False, True], ids=["a range", "a dataset"])
def test_datasets_that_steps_make_and_read_themselves_have_the_same_orders_after_a_restart(
    reads: bool, tmp_path: Path
) -> None:
    def orders_until(dies_at: int, folder: Path) -> list[list[float]]:
        tf.random.set_seed(1)
        first = values(next(iter(numbers().shuffle(6).batch(6))))  # each start reads it before its run
        data, orders = numbers().shuffle(6).batch(2), []
        tracked = training.build(tf.distribute.get_strategy())
        with contextlib.suppress(Died), worker.Run(tracked, directory=folder, interval="1 steps") as run:
            for _ in run.epochs(2):
                for _ in run.batches(data) if reads else run.range(3):
                    if run.step == dies_at:
                        raise Died
                    orders.append([*first, *values(next(iter(numbers().shuffle(6).batch(6))))])
                    run.step_done()
        return orders

    expected = orders_until(6, tmp_path / "undisturbed")
    job = tmp_path / "job"
    assert [*orders_until(2, job), *orders_until(3, job), *orders_until(5, job), *orders_until(6, job)] == expected


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_dataset_that_each_epoch_makes_begins_at_its_first_pass(is_made_anew: bool) -> None:
    def make() -> tf.data.Dataset:
        return tf.data.Dataset.range(40).shuffle(40, seed=3)

    def read(log: PassLog, dataset: tf.data.Dataset, epoch: int) -> list[int]:
        log.begin(dataset, epoch)
        batches = dataset.as_numpy_iterator()
        log.opened()
        numbers = [int(number) for number in batches]
        log.end()
        return numbers

    undisturbed, one_for_all = PassLog(), make()
    first = read(undisturbed, one_for_all, 0)
    saved = undisturbed.to_json()
    restored = PassLog(saved)
    restored.is_made_anew = is_made_anew

    second = read(restored, make(), 1)

    assert second == (first if is_made_anew else read(undisturbed, one_for_all, 1))
    assert (second == first) == is_made_anew


def test_data_of_every_other_epoch_go_on_with_their_own_passes() -> None:
    def make() -> list[Any]:
        tf.random.set_seed(1)
        return [tf.data.Dataset.range(40).shuffle(40) for _ in range(2)]

    def read(log: PassLog, pair: list[Any], epoch: int) -> list[int]:
        data = pair[epoch % 2]
        log.begin(data, epoch)
        batches = data.as_numpy_iterator()
        log.opened()
        numbers = [int(number) for number in batches]
        log.end()
        return numbers

    def restart(log: PassLog) -> PassLog:
        return PassLog(json.loads(json.dumps(log.to_json())))

    undisturbed, pair = PassLog(), make()
    expected = [read(undisturbed, pair, epoch) for epoch in range(7)]

    log, pair = PassLog(), make()
    found = []
    for epoch in range(7):
        found.append(read(log, pair, epoch))
        log, pair = restart(log), make()

    assert found == expected


def test_data_that_each_epoch_makes_are_not_kept() -> None:
    log = PassLog()
    log.is_made_anew = True

    for epoch in range(5):
        log.begin(tf.data.Dataset.range(4).shuffle(4, seed=epoch), epoch)
        log.end()

    assert "others" not in log.to_json()
