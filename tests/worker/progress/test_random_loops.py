"""Any nesting of loops, broken off at any steps, ends as if undisturbed, or is refused or named."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.protocol.wire.launch import Launch
from tests.worker.histories import Script, Trainer, train, train_with_deaths

pytestmark = pytest.mark.slow
INNER = ("range", "order", "slices", "own", "next", "none")
OUTER = ("epochs", "while", "ranged", "own", "none")


@dataclass(frozen=True)
class Shape:
    """A training: its outer and inner loop, and the steps in the head, for each item and in the tail of a body."""

    outer: str
    inner: str
    epochs: int
    items: int
    head_steps: int
    item_steps: int
    tail_steps: int
    draws: bool
    breaks_at: int | None


SHAPES = st.builds(
    Shape,
    outer=st.sampled_from(OUTER),
    inner=st.sampled_from(INNER),
    epochs=st.integers(1, 3),
    items=st.integers(0, 3),
    head_steps=st.sampled_from([0, 0, 0, 0, 1]),
    item_steps=st.sampled_from([1, 1, 1, 0, 2]),
    tail_steps=st.sampled_from([0, 0, 1, 2]),
    draws=st.booleans(),
    breaks_at=st.sampled_from([None, None, None, 0, 1]),
)


def script_of(shape: Shape) -> Script:
    def body(trainer: Trainer, epoch: int) -> None:
        if shape.draws:
            np.random.random()
        trainer.passes()
        for _ in range(shape.head_steps):
            trainer.steps([epoch, "head"])
        if shape.inner == "own":
            for item in range(shape.items):
                steps(trainer, epoch, item)
        elif shape.inner == "next":
            items = trainer.run.range(shape.items)
            for _ in range(shape.items):
                steps(trainer, epoch, next(items))
        elif shape.inner == "range":
            for item in trainer.run.range(shape.items):
                steps(trainer, epoch, item)
        elif shape.inner == "order":
            for item in trainer.run.order(np.random.permutation(shape.items)):
                steps(trainer, epoch, int(item))
        elif shape.inner == "slices":
            for several in trainer.run.order(np.random.permutation(shape.items), batch_size=2):
                steps(trainer, epoch, several.tolist())
        trainer.does([epoch, "tail", np.random.random() if shape.draws else 0])
        trainer.passes()
        for _ in range(shape.tail_steps):
            trainer.steps([epoch, "behind"])

    def steps(trainer: Trainer, epoch: int, item: object) -> None:
        for part in range(shape.item_steps):
            trainer.steps([epoch, item, part])
        if shape.item_steps == 0:
            trainer.does(item)

    def script(trainer: Trainer) -> None:
        run = trainer.run
        if shape.outer == "epochs":
            for epoch in run.epochs(shape.epochs):
                body(trainer, epoch)
                if epoch == shape.breaks_at:
                    break
        elif shape.outer == "while":
            while run.epoch < shape.epochs:
                epoch = run.epoch
                body(trainer, epoch)
                if run.epoch == epoch:
                    break
        elif shape.outer == "ranged":
            for epoch in range(run.epoch, shape.epochs):
                body(trainer, epoch)
        elif shape.outer == "own":
            for epoch in range(shape.epochs):
                body(trainer, epoch)
        else:
            body(trainer, 0)

    return script


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=SHAPES, deaths=st.lists(st.integers(1, 30), min_size=1, max_size=4), every=st.sampled_from([1, 2, 3]))
def test_loops_of_any_shape_go_on_exactly_or_are_refused(
    shape: Shape, deaths: list[int], every: int, begin: Callable[[Launch], None], capfd: pytest.CaptureFixture[str]
) -> None:
    begin(Launch())
    capfd.readouterr()
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        try:
            *expected, _ = train(script_of(shape), Path(folder) / "undisturbed", interval=f"{every} steps")
        except (RuntimeError, StopIteration):
            return
        if "cannot resume exactly" in capfd.readouterr().err:
            return

        found = train_with_deaths(script_of(shape), Path(folder) / "killed", deaths, interval=f"{every} steps")
        assert found == tuple(expected)
        again = train_with_deaths(script_of(shape), Path(folder) / "killed", [], interval=f"{every} steps")
        assert again[1] == found[1], "a complete training makes no more steps"
        reads = shape.items > 0 and shape.inner in ("range", "order", "slices")
        in_epochs = shape.outer == "epochs" or (shape.outer in ("while", "ranged") and reads)
        assert again == found or not in_epochs, "code outside of all epochs runs in each process"
