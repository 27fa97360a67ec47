"""Everything about data and random operations that is checked at the first step: what would not resume exactly."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from worker.checks.dataset_checks import find_in_dataset, find_in_functions
from worker.checks.findings import Finding
from worker.checks.graph_checks import find_random_operations
from worker.checks.reachability import Root
from worker.data.examples import Examples
from worker.internals.tensorflow_internals import original_dataset
from worker.state.dataset_parts import open_iterators
from worker.state.dataset_passes import PassLog

_READ_THROUGH_RUN = (
    "read through run.batches(dataset), which keeps the position; an iterator of a dataset that is not distributed may "
    "also be tracked in the tf.train.Checkpoint; name one that is not read in training in leave_out="
)


def find_problems(
    roots: Iterable[Root],
    exempt: Iterable[Any],
    tracked: tf.train.Checkpoint,
    data: Any,
    passes: PassLog,
    total_steps: int | None,
) -> list[Finding]:
    """What of the data and of the traced functions would not be the same after a restart.

    Call it after the first step, on the thread that trains. `roots`: what the loop can reach, as for `find_missing`.
    `exempt`: objects that the user says need not be saved. `data`: what `run.batches` or `fit` reads, or
    the function that loads its examples, or None. `passes`: the
    run's log of its passes.
    """
    exempt = tuple(exempt)
    left_out = {id(each) for each in exempt}
    found = find_random_operations(roots, exempt)
    load = data.load if isinstance(data, Examples) else data
    if passes.data is None:
        found += find_in_functions([load] if callable(load) else [])
    elif not left_out & {id(data), id(passes.data)}:
        found += find_in_dataset(passes.data, _reads_again(passes.data, total_steps))
    saved = {id(each) for each in tf.train.TrackableView(tracked).descendants()}
    found += [
        Finding(f"what the loop reads from the iterator of {place}", _READ_THROUGH_RUN)
        for iterator, place in open_iterators()
        if id(iterator) not in saved | left_out
    ]
    return found


def _reads_again(data: Any, total_steps: int | None) -> bool:
    """Whether more than one pass over the data is to be expected."""
    batches = int(tf.data.experimental.cardinality(original_dataset(data)))
    return total_steps is None or batches < total_steps
