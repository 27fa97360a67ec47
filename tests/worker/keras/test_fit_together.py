"""`fit` on several workers: the bits of a loop of its own, and those of an undisturbed run whoever is killed."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from supervisor.protocol.wire.launch import Launch, without_launch_variables
from tests import forking
from tests.places import ROOT
from tests.worker.gang import PATIENCE_S, Gang
from tests.worker.keras.test_fit_arguments import COUNT
from tests.worker.run.test_multiworker import CHILDREN

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(3600)]
NIGHTLY = pytest.mark.nightly
SCRIPT = CHILDREN / "fit_together.py"
ROWS = (
    "arrays", "arrays in order", "tensors and weights", "arrays split", "class weights", "arrays in steps", "endless",
    "dataset in steps", "shuffled", "weighed dataset", "PyDataset", "PyDataset with workers", "PyDataset with noise",
    "validated on a shuffled dataset", "validated on a PyDataset", "generator", "endless generator", "generator object",
    "Examples", "of unknown length", "of unknown length in steps", "made for each epoch", "callbacks of Keras",
    "stopped by one", "steps of its own", "averages and metrics", "eager", "half precision",
    "validated now and then",
)  # fmt: skip
SOME = ("callbacks of Keras",)
"""The row of `make test`; the nightly tests have all."""
PLACES = ("batch 3", "validation 0", "begin 1", "end 1", r"save fsync ckpt\..*")
"""Where a worker is killed: in an epoch, in its validation, at its edges, in a save."""
PLACES_OF = {"validated now and then": ("batch 3", "begin 1", "validation 1", "end 1", PLACES[-1])}
"""Those of a row whose first epoch has no validation."""
SOME_PLACES = ("batch 3", r"save fsync ckpt\..*")
"""Those of `make test`; test_fit_arguments.py kills a fit on one worker in its validation and at an epoch's edge."""


def started(folder: Path, workers: int, rows: Sequence[str], kill: str = "", **orders: object) -> Gang:
    words = [row.replace(" ", "_") for row in rows]
    command = [sys.executable, str(SCRIPT), str(folder), *words, *(["--kill", *kill.split()] if kill else [])]
    return Gang(command, workers, folder, **orders)


def train(folder: Path, workers: int, rows: Sequence[str], **orders: object) -> None:
    gang = started(folder, workers, rows, **orders)
    assert gang.wait(PATIENCE_S * len(rows)) == [0] * workers, gang.said()


def kill(folder: Path, workers: int, row: str, rank: int, place: str, **orders: object) -> None:
    gang = started(folder, workers, [row], f"{rank} {place}", **orders)
    assert gang.wait()[rank] == -signal.SIGKILL, gang.said()


def ends(folder: Path, row: str, workers: int) -> list[list[str]]:
    """By rank: a digest of the weights and one of all, then what is no variable."""
    return [(folder / row / f"end-{rank}").read_text().splitlines() for rank in range(workers)]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=NIGHTLY)])
def test_fit_ends_with_the_weights_of_a_loop_of_its_own(tmp_path: Path, workers: int) -> None:
    """As with `workers =` of a job: the first process starts the others."""
    launch = Launch(strategy="multiworker", workers=workers).to_environment()
    environment = {**without_launch_variables(os.environ), **launch, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), str(tmp_path), "Examples", "loop"]
    done = forking.run_chief(command, env=environment, cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]

    of_fit, of_loop = (ends(tmp_path, row, workers) for row in ("Examples", "loop"))
    assert [lines[0].split()[0] for lines in of_fit] == [lines[0].split()[0] for lines in of_loop]
    assert len({lines[0].split()[0] for lines in of_fit}) == 1, "all workers have the same"


REFUSED = {
    "a model outside of the scope": "created outside strategy.scope()",
    "a metric outside of the scope": "mean_absolute_error/total of a metric was created outside strategy.scope()",
    "an optimizer outside of the scope": "of its optimizer was created outside strategy.scope()",
    "XLA": "with jit_compile=True",
    "several steps at once": "with steps_per_execution=2",
    "files for each": "with auto_shard_policy FILE",
    "no seed": "because of the order of Dataset.shuffle(9), which has no seed; set deterministic = true",
    "generators without a seed": "have the same data",
    "numbers drawn in threads": "because of random numbers of DrawsInThreads.__getitem__",
    "another seed": "have the same order of the data",
    "batches of its own": "have the same data",
    "rows of its own": "have the same data",
    "other epochs": "have the same epochs",
    "callbacks of the chief": "have the same callbacks",
}


def test_what_can_not_hold_on_several_workers_is_refused_by_all_before_the_first_step(tmp_path: Path) -> None:
    train(tmp_path, 2, ["refused"])

    for rank in (0, 1):
        said = json.loads((tmp_path / f"refused-{rank}").read_text())
        assert {name: REFUSED[name] in text for name, (text, _) in said.items()} == dict.fromkeys(REFUSED, True), said
        assert not any(steps for _, steps in said.values())


@pytest.mark.parametrize(
    ("workers", "rows", "places"),
    [(2, SOME, SOME_PLACES), *(pytest.param(workers, ROWS, PLACES, marks=NIGHTLY) for workers in (2, 3))],
    ids=["two, some", "two", "three"],
)
def test_fit_killed_on_any_worker_ends_like_an_undisturbed_one(
    tmp_path: Path, workers: int, rows: tuple[str, ...], places: tuple[str, ...]
) -> None:
    calm, rough, ranks = tmp_path / "calm", tmp_path / "rough", count()
    train(calm, workers, rows)

    for row, shards in zip(rows, _alternating(), strict=False):
        for place in PLACES_OF.get(row, places):
            is_chiefs = place.startswith("save") and shards == "never"  # it writes all
            rank = 0 if is_chiefs else next(ranks) % workers
            kill(rough, workers, row, rank, place, save_shards=shards)
    train(rough, workers, rows)

    assert {row: ends(rough, row, workers) for row in rows} == {row: ends(calm, row, workers) for row in rows}


def _alternating() -> Iterator[str]:
    while True:
        yield from ("never", "always")


@NIGHTLY  # test_replicas_sharing.py has the same of a loop
def test_other_numbers_of_workers_go_on_amid_an_epoch_with_each_example_once(tmp_path: Path) -> None:
    kill(tmp_path, 2, "seen", 1, "batch 3")
    kill(tmp_path, 3, "seen", 0, "batch 7", save_shards="always")
    kill(tmp_path, 2, "seen", 0, "batch 10")
    train(tmp_path, 1, ["seen"], strategy="one-device")

    history, epochs, _ = json.loads(ends(tmp_path, "seen", 1)[0][1])
    assert (history["seen"], epochs) == ([COUNT] * 3, [0, 1, 2])
