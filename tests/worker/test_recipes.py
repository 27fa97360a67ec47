"""The files, headings and calls that docs/recipes.md names exist, and the mistakes that it describes are refused."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch
from tests.places import ROOT
from tests.worker import training
from worker.export import export

PAGE = (ROOT / "docs" / "recipes.md").read_text()
TESTED_IN = {
    "a-loop-of-your-own": ("worker/run/test_multiworker.py", "worker/saving/test_saves.py"),
    "latest_checkpoint": ("worker/checkpoint/test_restore.py",),
    "inside-a-function": ("worker/test_recipes.py",),
    "every N epochs": ("worker/saving/test_background_saves.py",),
    "balance the frequency": ("worker/saving/test_cadence.py",),
    "metadata.json": ("worker/saving/test_saves.py",),
    "a-folder-that-is-there-already": ("worker/checkpoint/test_foreign_start.py",),
    "tf1": ("worker/test_tf1.py",),
    "savedmodel": ("worker/test_export.py", "worker/test_recipes.py"),
    "modelfit": ("worker/keras/test_fit.py",),
    "pytorch": ("worker/torch/test_torch.py",),
    "anything-else": ("system/test_plain.py",),
    "TPUStrategy": ("worker/process/test_local_processes.py",),
    "MultiWorkerMirroredStrategy": ("worker/process/test_local_processes.py",),
    "use TensorBoard": ("worker/progress/test_tensorboard.py",),
    "add error handling": ("worker/progress/test_divergence.py", "system/test_faults.py"),
}
"""The tests of each recipe, by the heading that it links to, or by words of its row."""
ROWS = re.findall(r"^\| (?!You have|---)(.+?) \| .+ \|$", PAGE, re.M)
"""What one has, of each recipe."""


@pytest.mark.parametrize("row", ROWS)
def test_every_recipe_has_its_section_and_its_test(row: str) -> None:
    anchors = re.findall(r"\]\(#([^)]+)\)", row)
    headings = [
        re.sub(r"[^\w -]", "", match_).lower().replace(" ", "-") for match_ in re.findall(r"^## (.+)$", PAGE, re.M)
    ]

    assert set(anchors) <= set(headings)
    (tests,) = (tests for key, tests in TESTED_IN.items() if key in anchors or (not anchors and key in row))
    assert all((ROOT / "tests" / test).is_file() for test in tests)


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)

    assert links and all((ROOT / "docs" / link).resolve().is_file() for link in links)


def test_every_call_it_names_exists() -> None:
    calls = set(re.findall(r"(?<!\w)worker\.((?:\w+\.)?\w+)\b", PAGE))

    assert {"keras.fit", "torch.Run", "tf1.Run", "export.export", "files.FilesRun", "Run"} <= calls
    for call in calls:
        module, _, name = call.rpartition(".")
        found = importlib.util.find_spec(f"worker.{module}" if module else "worker")  # torch may be missing
        assert found is not None and found.origin is not None, call
        assert re.search(rf"\b{name}\b", Path(found.origin).read_text()), call


# --- what the recipes do ---------------------------------------------------------------------------------------------


@pytest.mark.tensorflow
@pytest.mark.parametrize("where", ["a tf.function", "strategy.run"])
def test_a_step_counted_inside_of_a_function_is_refused(where: str, two_replicas: Any, tmp_path: Path) -> None:
    count = tf.Variable(0)
    run = worker.Run(tf.train.Checkpoint(count=count), directory=tmp_path, total_steps=3)

    def step() -> None:
        count.assign_add(1)
        run.step_done()

    calls = {"a tf.function": tf.function(step), "strategy.run": lambda: two_replicas.run(run.step_done)}
    with pytest.raises(RuntimeError, match=rf"inside {where}: .* in the Python loop"), run:
        calls[where]()

    assert run.step == 0
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.tensorflow
@pytest.mark.parametrize("inside", [True, False])
def test_the_checkpoint_may_be_made_outside_of_the_scope(inside: bool, two_replicas: Any, tmp_path: Path) -> None:
    tracked = training.build(two_replicas)
    values = []
    for _ in range(2):
        if inside:
            with two_replicas.scope():
                tracked = tf.train.Checkpoint(model=tracked.model, optimizer=tracked.optimizer)
        with worker.Run(tracked, strategy=two_replicas, total_steps=3, directory=tmp_path) as run:
            begun_at = run.step
            training.train(run, tracked, two_replicas)
        values.append([value.tobytes() for value in training.all_values(tracked)])
        tracked = training.build(two_replicas)

    assert begun_at == 3
    assert values[0] == values[1]


@pytest.mark.tensorflow
def test_a_model_made_outside_of_the_scope_is_refused(two_replicas: Any, tmp_path: Path) -> None:
    tracked = training.build(tf.distribute.get_strategy())
    run = worker.Run(tracked, strategy=two_replicas, directory=tmp_path)

    with pytest.raises(ValueError, match=r"kernel was created outside strategy\.scope\(\)"), run:
        pass


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("given", "why"),
    [(".", "it is a SavedModel, an export: the optimizer's state"), ("variables/variables", "it does not hold")],
)
def test_training_from_an_export_is_refused(
    given: str,
    why: str,
    begin: Callable[[Launch], None],
    two_replicas: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = export(training.build(two_replicas).model, tmp_path / "export", 7)
    begin(Launch(checkpoint_dir=tmp_path / "c", initial_checkpoint=folder / given))
    with pytest.raises(SystemExit) as leaving, worker.Run(training.build(two_replicas), strategy=two_replicas):
        pass

    assert leaving.value.code == 65
    assert why in capsys.readouterr().err
