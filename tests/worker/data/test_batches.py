"""Data sources yield the same batches in the same order from any position."""

import gc
import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.checkpoints import selection
from tests.worker import training
from worker.data.batches import BatchReader
from worker.data.resume_dataset import count_rows, rows_tensor, skip_consumed
from worker.state.state_file import Position

pytestmark = pytest.mark.tensorflow


def numbers(count: int = 20, batch: int = 4, **settings: Any) -> worker.Examples:
    return worker.Examples(np.arange(count), batch_size=batch, **settings)


def lists(batches: Iterator[Any], limit: int = 10_000) -> list[list[int]]:
    return [batch.numpy().tolist() for batch in itertools.islice(batches, limit)]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def epochs(given: Any, count: int, start: Position | None = None) -> list[list[int]]:
    feed = BatchReader(given, None, start or Position())
    return [batch for _ in range(count) for batch in lists(feed.rest_of_epoch())]


def test_each_epoch_holds_every_example_once_in_another_order() -> None:
    first, second = epochs(numbers(), 1), epochs(numbers(), 1, Position(epoch=1))

    assert sorted(flat(first)) == sorted(flat(second)) == list(range(20))
    assert first != second


def test_another_seed_is_another_order() -> None:
    assert epochs(numbers(seed=1), 1) != epochs(numbers(seed=2), 1)


def test_unshuffled_examples_keep_their_order() -> None:
    assert flat(epochs(numbers(shuffle=False), 1)) == list(range(20))


@pytest.mark.parametrize("batch", range(5))
def test_examples_begun_in_the_middle_are_the_tail_of_those_begun_at_the_start(batch: int) -> None:
    assert epochs(numbers(), 2, Position(1, batch, None)) == epochs(numbers(), 3)[5 + batch :]


def test_last_incomplete_batch_is_left_out() -> None:
    assert [len(batch) for batch in epochs(numbers(count=22), 1)] == [4] * 5


def test_dataset_is_resumed_by_skipping() -> None:
    dataset = tf.data.Dataset.range(10).batch(3)

    assert epochs(dataset, 2, Position(4, 2, None)) == [[6, 7, 8], [9], [0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_dataset_at_its_end_continues_with_the_next_epoch() -> None:
    feed = BatchReader(tf.data.Dataset.range(4).batch(2), None, Position(0, 2, None))

    assert lists(feed.rest_of_epoch()) == []
    assert feed.position == Position(1, 0)
    assert lists(feed.rest_of_epoch()) == [[0, 1], [2, 3]]


def test_function_of_the_epoch_gives_each_epoch_its_own_dataset() -> None:
    def of_epoch(epoch: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(8).shuffle(8, seed=epoch).batch(2)

    whole = epochs(of_epoch, 3)

    assert epochs(of_epoch, 2, Position(1, 3, None)) == whole[7:]
    assert whole[:4] != whole[4:8]


def test_distributed_dataset_is_resumed_by_dropping_batches(two_replicas: Any) -> None:
    dataset = two_replicas.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(4))
    feed = BatchReader(dataset, two_replicas, Position(0, 2, None))

    (batch,) = list(feed.rest_of_epoch())

    assert [part.numpy().tolist() for part in batch.values] == [[8, 9], [10, 11]]


def test_batches_are_spread_over_the_replicas(two_replicas: Any) -> None:
    feed = BatchReader(numbers(shuffle=False), two_replicas, Position())

    first = next(feed.rest_of_epoch())

    assert [part.numpy().tolist() for part in first.values] == [[0, 1], [2, 3]]


def test_dataset_without_batches_is_an_error() -> None:
    with pytest.raises(ValueError, match="epoch 0 has no batches"):
        epochs(tf.data.Dataset.range(0), 1)


def test_data_that_can_not_be_resumed_are_an_error() -> None:
    with pytest.raises(TypeError, match=r"middle of a list.*worker\.Examples"):
        BatchReader([1, 2, 3], None, Position())


def test_examples_keep_the_structure_of_dicts_and_tuples() -> None:
    rows = np.arange(6)
    given = ({"image": rows, "boxes": (rows * 10, [0, 1, 2, 3, 4, 5])}, rows * 2)
    inputs, labels = next(BatchReader(worker.Examples(*given, batch_size=4), None, Position()).rest_of_epoch())

    found = inputs["image"].numpy()
    assert [part.numpy().tolist() for part in inputs["boxes"]] == [(found * 10).tolist(), found.tolist()]
    assert labels.numpy().tolist() == (found * 2).tolist()


def test_single_structure_is_the_batch_itself() -> None:
    examples = worker.Examples({"a": np.arange(4), "b": np.arange(4)}, batch_size=2, shuffle=False)

    batch = next(BatchReader(examples, None, Position()).rest_of_epoch())

    assert {name: part.numpy().tolist() for name, part in batch.items()} == {"a": [0, 1], "b": [0, 1]}


def test_arrays_of_different_lengths_inside_a_structure_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        worker.Examples({"a": np.arange(3), "b": (np.arange(4),)}, batch_size=1)


def test_arrays_of_different_lengths_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\]"):
        worker.Examples(np.arange(3), np.arange(4), batch_size=1)


# --- through Run ---------------------------------------------------------------------------------------------------


def run_of(directory: Path, steps: int | None = None) -> worker.Run:
    return worker.Run(training.build(tf.distribute.get_strategy()), total_steps=steps, directory=directory)


def test_script_that_changes_its_directory_saves_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with run_of(Path("run"), steps=1) as run:
        os.chdir("elsewhere")
        run.step_done()

    assert [name.step for name in selection.committed_checkpoints(tmp_path / "run")] == [1]


def test_batches_continue_over_epochs_until_all_steps_are_done(tmp_path: Path) -> None:
    seen = []
    with run_of(tmp_path, steps=7) as run:
        for _ in run.batches(numbers()):
            seen.append(run.epoch)
            run.step_done()

    assert seen == [0] * 5 + [1] * 2


def test_without_total_steps_one_call_is_the_rest_of_an_epoch(tmp_path: Path) -> None:
    source, counts = numbers(), []
    with run_of(tmp_path) as run:
        while run.epoch < 3:
            counts.append(sum(1 for _ in run.batches(source) if not run.step_done()))

    assert counts == [5, 5, 5]


def test_batch_without_a_step_is_repeated(tmp_path: Path) -> None:
    with run_of(tmp_path) as run:
        iterator = run.batches(numbers())
        next(iterator)
        run.step_done()
        lost = next(iterator).numpy().tolist()
    with run_of(tmp_path) as run:
        again = next(run.batches(numbers())).numpy().tolist()

    assert again == lost


def test_steps_of_two_batches_resume_at_whole_steps(tmp_path: Path) -> None:
    whole = epochs(numbers(), 1)
    with run_of(tmp_path) as run:
        iterator = run.batches(numbers())
        next(iterator), next(iterator)
        run.step_done()
    with run_of(tmp_path) as run:
        assert next(run.batches(numbers())).numpy().tolist() == whole[2]


def test_leaving_the_loop_early_ends_training(tmp_path: Path) -> None:
    with run_of(tmp_path, steps=100) as run:
        for _ in run.batches(numbers()):
            run.step_done()
            if run.step == 3:
                break

    assert (tmp_path / "step-0000000003.a1").is_dir()


def test_abandoned_iterator_is_never_destroyed() -> None:
    feed = BatchReader(numbers(), None, Position())
    next(iter(feed.rest_of_epoch()))
    iterator = weakref.ref(feed._iterator)

    feed.abandon()
    gc.collect()

    assert iterator() is not None


# --- batches of another size than before ---------------------------------------------------------------------------


def dataset_of(batch: int, drop: bool = False) -> tf.data.Dataset:
    return tf.data.Dataset.range(24).shuffle(24, seed=3, reshuffle_each_iteration=False).batch(batch, drop)


SOURCES: dict[str, Any] = {
    "examples": lambda batch: numbers(24, batch),
    "dataset": dataset_of,
    "dataset of fixed batches": lambda batch: dataset_of(batch, drop=True),
    "function of the epoch": lambda batch: lambda epoch: dataset_of(batch),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
@pytest.mark.parametrize(("first", "then"), [(4, 6), (8, 4), (4, 3), (6, 2), (4, 12)])
def test_no_example_is_lost_or_repeated_when_the_batch_size_changes(make: Any, first: int, then: int) -> None:
    undisturbed = flat(epochs(make(first), 2))
    feed = BatchReader(make(first), None, Position())
    seen = flat(lists(feed.rest_of_epoch(), 12 // first or 1))
    seen += flat(epochs(make(then), 2, feed.position))

    assert seen == undisturbed


def test_batch_around_the_position_is_cut(two_replicas: Any) -> None:
    feed = BatchReader(dataset_of(8), None, Position(0, 3, 12))
    whole = flat(epochs(dataset_of(8), 1))

    assert lists(feed.rest_of_epoch()) == [whole[12:16], whole[16:]]


def test_examples_resume_exactly_if_the_rest_does_not_fill_batches() -> None:
    feed = BatchReader(numbers(24, 6, shuffle=False), None, Position(0, 2, 8))

    assert lists(feed.rest_of_epoch()) == [[8, 9, 10, 11, 12, 13], [14, 15, 16, 17, 18, 19]]
    assert lists(feed.rest_of_epoch())[0] == [0, 1, 2, 3, 4, 5]


def test_images_and_labels_are_cut_at_the_same_row() -> None:
    pairs = tf.data.Dataset.range(10).map(lambda number: (number, {"label": number * 2})).batch(4)
    feed = BatchReader(pairs, None, Position(0, 2, 6))

    found = [(batch.numpy().tolist(), labels["label"].numpy().tolist()) for batch, labels in feed.rest_of_epoch()]

    assert found == [([6, 7], [12, 14]), ([8, 9], [16, 18])]


def test_too_few_examples_for_a_larger_batch_end_the_epoch() -> None:
    feed = BatchReader(numbers(24, 8), None, Position(0, 5, 20))

    assert lists(feed.rest_of_epoch()) == []
    assert feed.position == Position(1)
    assert lists(feed.rest_of_epoch()) == epochs(numbers(24, 8), 1, Position(1))


def test_distributed_batches_of_another_size_are_refused_in_the_middle_of_one(two_replicas: Any) -> None:
    def distributed() -> Any:
        return two_replicas.experimental_distribute_dataset(tf.data.Dataset.range(12).batch(4))

    (last,) = list(BatchReader(distributed(), two_replicas, Position(0, 4, 8)).rest_of_epoch())

    assert [part.numpy().tolist() for part in last.values] == [[8, 9], [10, 11]]
    with pytest.raises(ValueError, match=r"middle of a batch .* give run\.batches the tf\.data\.Dataset"):
        next(BatchReader(distributed(), two_replicas, Position(0, 2, 6)).rest_of_epoch())


@pytest.mark.parametrize("kind", ["examples", "dataset"])
def test_two_replicas_then_one_then_two_see_each_example_once(kind: str, two_replicas: Any, tmp_path: Path) -> None:
    """Batches of 4 for each replica; the last start begins the second epoch."""
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    seen: list[int] = []
    for strategy, steps in ((two_replicas, 1), (one, 2), (two_replicas, 1), (two_replicas, 1)):
        tracked = training.build(strategy)
        batch = 4 * strategy.num_replicas_in_sync
        with worker.Run(tracked, strategy=strategy, directory=tmp_path) as run:
            start = run.step
            while run.step < start + steps:
                for given in run.batches(SOURCES[kind](batch)):
                    parts = getattr(given, "values", (given,))
                    seen += [int(number) for part in parts for number in part.numpy()]
                    run.step_done()
                    if run.step == start + steps:
                        break
        found = json.loads((tmp_path / f"step-{run.step:010d}.a{run._attempt.number}" / "state.json").read_text())
        consumed = found["position"]["epoch"] * 24 + found["position"]["examples"]
        assert consumed == len(seen)

    undisturbed = flat(epochs(SOURCES[kind](4), 2))
    assert seen == undisturbed[: len(seen)]
    assert len(seen) == 32


# --- what batches can be made of ------------------------------------------------------------------------------------


def rows(batch: Any) -> Any:
    return tf.sparse.to_dense(batch).numpy().tolist() if isinstance(batch, tf.SparseTensor) else batch.to_list()


def repeated(number: tf.Tensor) -> tf.Tensor:
    return tf.repeat(number, number % 3)


def in_one_of_two(number: tf.Tensor) -> tf.SparseTensor:
    return tf.sparse.SparseTensor([[number % 2]], [number], [2])


@pytest.mark.parametrize(("make", "how"), [(repeated, "ragged_batch"), (in_one_of_two, "batch")])
def test_ragged_and_sparse_batches_are_cut(make: Any, how: str) -> None:
    single = tf.data.Dataset.range(1, 11).map(make)
    whole = [row for batch in getattr(single, how)(3) for row in rows(batch)]

    found = [rows(batch) for batch in BatchReader(getattr(single, how)(4), None, Position(0, 2, 6)).rest_of_epoch()]

    assert [len(batch) for batch in found] == [2, 2]
    assert [row for batch in found for row in batch] == whole[6:]


def test_single_examples_continue_where_batches_ended() -> None:
    rest = BatchReader(tf.data.Dataset.range(10), None, Position(0, 2, 6)).rest_of_epoch()

    assert [int(each) for each in rest] == [6, 7, 8, 9]


def test_batches_of_the_same_size_are_skipped_whole_and_stay_countable() -> None:
    assert int(skip_consumed(dataset_of(4), Position(0, 2, 8)).cardinality()) == 4
    assert int(skip_consumed(dataset_of(4), Position(0, 2, 9)).cardinality()) == tf.data.UNKNOWN_CARDINALITY


def test_batch_that_can_not_be_cut_is_refused() -> None:
    def weighed(batch: int) -> tf.data.Dataset:
        return tf.data.Dataset.range(12).batch(batch).map(lambda numbers: (numbers, tf.constant(1.0)))

    (last,) = list(BatchReader(weighed(4), None, Position(0, 4, 8)).rest_of_epoch())

    assert last[0].numpy().tolist() == [8, 9, 10, 11]
    with pytest.raises(ValueError, match=r"middle of a batch: 6 examples .* use a batch size with which"):
        list(BatchReader(weighed(4), None, Position(0, 3, 6)).rest_of_epoch())


# --- examples that a function loads --------------------------------------------------------------------------------


def loaded(load: Any, count: int = 24, batch: int = 4, **settings: Any) -> worker.Examples:
    return worker.Examples(count=count, load=load, batch_size=batch, **settings)


@pytest.mark.parametrize("readers", [1, 2, 8])
def test_loaded_examples_have_the_order_of_arrays_for_any_number_of_readers(readers: int) -> None:
    calls = itertools.count()

    def slow(index: Any) -> Any:
        if next(calls) % 2 == 0:
            time.sleep(0.03)  # so that the next reader overtakes this one
        return index * 10

    def load(index: tf.Tensor) -> tf.Tensor:
        found = tf.numpy_function(slow, [index], tf.int64, stateful=False)
        return tf.ensure_shape(found, [])

    start = Position(1, 2, 8)

    found = epochs(loaded(load, seed=5, readers=readers), 2, start)
    assert found == [[each * 10 for each in batch] for batch in epochs(numbers(24, seed=5), 2, start)]


def test_more_readers_than_cores_load_in_parallel() -> None:
    readers = 2 * (os.cpu_count() or 1)
    all_at_once = threading.Barrier(readers, timeout=60)

    def meet(index: Any) -> Any:
        all_at_once.wait()
        return index

    def load(index: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(meet, [index], tf.int64, stateful=False), [])

    feed = BatchReader(loaded(load, count=readers, batch=readers, shuffle=False, readers=readers), None, Position())
    try:
        assert next(feed.rest_of_epoch()).numpy().tolist() == list(range(readers))
    finally:
        all_at_once.abort()


def test_examples_before_the_position_are_not_loaded() -> None:
    asked: list[int] = []

    def note(index: Any) -> Any:
        asked.append(int(index))
        return index

    feed = BatchReader(
        loaded(lambda index: tf.numpy_function(note, [index], tf.int64), shuffle=False), None, Position(0, 4, 16)
    )
    next(feed.rest_of_epoch())

    assert 16 in asked
    assert min(asked[:4]) >= 16  # two are loaded at a time; later ones may be of the next epoch, which is loaded ahead


def test_files_are_loaded_as_pairs(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number] * 3))
    paths = tf.constant([str(tmp_path / f"{number}.bin") for number in range(8)])

    def load(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        content = tf.io.decode_raw(tf.io.read_file(paths[index]), tf.uint8)
        return tf.ensure_shape(content, [3]), index

    batches = list(BatchReader(loaded(load, count=8, seed=2), None, Position()).rest_of_epoch())

    assert [images.shape.as_list() for images, _ in batches] == [[4, 3]] * 2
    assert all((images.numpy()[:, 0] == labels.numpy()).all() for images, labels in batches)
    assert sorted(int(label) for _, labels in batches for label in labels) == list(range(8))


@pytest.mark.parametrize(
    ("arrays", "settings", "words"),
    [
        ((), {}, "either arrays, or count= and load="),
        ((), {"count": 3}, "either arrays"),
        ((), {"load": abs}, "either arrays"),
        ((np.arange(3),), {"count": 3, "load": abs}, "either arrays"),
        ((), {"count": 0, "load": abs}, "batches of 1 from 0 examples"),
        ((np.arange(3),), {"readers": 0}, "0 readers; use 1 or more"),
    ],
)
def test_arrays_and_load_together_or_neither_are_an_error(arrays: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        worker.Examples(*arrays, batch_size=1, **settings)


@pytest.mark.parametrize("parts", ["none first", "none last"])
def test_part_that_is_none_has_no_examples(parts: str, two_replicas: Any) -> None:
    single = tf.data.Dataset.range(10).batch(4)
    dataset = single.map(lambda row: (None, row) if parts == "none first" else (row, None))
    spread = two_replicas.experimental_distribute_dataset(dataset)

    assert [count_rows(batch) for batch in dataset] == [4, 4, 2]
    assert [int(rows_tensor(batch)) for batch in dataset] == [4, 4, 2]
    assert [count_rows(batch) for batch in spread] == [4, 4, 2]
