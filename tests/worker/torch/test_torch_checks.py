"""DataLoaders of a script's own resume exactly, and state that a PyTorch loop forgets to hand over is named."""

import itertools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import peer
from supervisor.protocol.wire.launch import without_launch_variables
from tests import forked
from tests.worker.run.test_multiworker import CHILDREN, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
Piece = Callable[..., tuple[int, Any, str]]
Start = Callable[..., tuple[subprocess.CompletedProcess[str], str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Runs a child to its end: its process, with what it printed, and its standard error."""
    try:
        python = peer.binaries(peer.TORCH) / "python"
    except peer.NotInstalled as error:
        pytest.skip(str(error))

    def start(child: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], str]:
        environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
        command = [str(python), str(CHILDREN / child), str(tmp_path), *arguments]
        done = forked.run(command, forked.TORCH, env=environment, cwd=ROOT, timeout=300)
        return done, done.stderr

    return start


@pytest.fixture
def piece(start: Start) -> Piece:
    """Runs a piece in a process of its own: its exit status, its result, and its standard error."""

    def piece(name: str, *arguments: str) -> tuple[int, Any, str]:
        done, errors = start("torch_checks.py", name, *arguments)
        return done.returncode, json.loads(done.stdout.splitlines()[-1]) if done.stdout else None, errors

    return piece


def test_dataloaders_of_the_script_resume_with_the_next_example(piece: Piece) -> None:
    status, found, errors = piece("of_loaders")

    assert status == 0, errors
    for name, runs in found.items():
        assert runs["parts"] == runs["whole"], name
    epochs = [found["shuffled"]["whole"][first : first + 5] for first in (0, 5, 10)]
    assert all(sorted(itertools.chain(*epoch)) == list(range(22)) for epoch in epochs), "the last batch is a small one"
    assert epochs[0] != epochs[1] != epochs[2], "each epoch has an order of its own"
    assert found["in order"]["whole"][0] == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in found["whole batches"]["whole"]] == [5] * 12
    assert found["generator"]["whole"] != found["shuffled"]["whole"], "its seed counts"


def test_heads_that_step_a_scheduler_and_draw_an_order_are_undone(piece: Piece) -> None:
    status, found, errors = piece("of_orders")

    assert status == 0, errors
    assert found["whole"][0] == 9
    assert [number for number, part in enumerate(found["parts"], 1) if part != found["whole"]] == []


def test_loaders_that_can_not_be_resumed_are_refused_with_what_to_write(piece: Piece) -> None:
    _, texts, errors = piece("refused_loaders")

    named = {"endless", "huge", "unrepeatable", "stream", "generator", "own loader", "both", "no size", "too few"}
    assert set(texts) == named, errors
    assert "a Endless that yields more than 20000000 indices" in texts["endless"]
    assert "a Huge that yields more than 20000000 indices" in texts["huge"]
    assert "a Unrepeatable in the middle of an epoch: it yields another order" in texts["unrepeatable"]
    assert "run.batches(dataset, batch_size" in texts["unrepeatable"]
    assert "a Queue: it yields other examples when it is read again" in texts["stream"]
    assert "state_dict and load_state_dict" in texts["stream"]
    assert "its examples have no numbers" in texts["generator"]
    assert "a OnDevice in the middle of an epoch: it has an __iter__ of its own" in texts["own loader"]
    assert "cannot use batch_size with a DataLoader" in texts["both"]
    assert "run.batches(dataset, batch_size=64)" in texts["no size"]
    assert "batches of 50 from 22 examples" in texts["too few"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("", 'give it to the run: worker.torch.Run(..., generators={"rng": dataset.rng})'),
        ("transformed", """generators={"rng": dataset.transforms['train'][1].rng})"""),
        ("processes", "each loader process draws from a copy, which begins anew after a restart"),
        ("kept", None),
    ],
)
def test_generator_of_a_dataset_is_named_at_the_first_step(piece: Piece, how: str, said: str | None) -> None:
    status, _, errors = piece("noisy", how)

    named = [line for line in errors.splitlines() if ".rng" in line]
    assert status == 0, errors
    assert [said is not None and said in line for line in named] == [True] * (said is not None)


@pytest.mark.parametrize("how", ["keeps", ""])
def test_what_a_stream_carries_and_its_state_lacks_is_named(piece: Piece, how: str) -> None:
    status, _, errors = piece("packed", how)

    said = " ".join(line for line in errors.splitlines() if "cannot resume exactly" in line)
    lacking = "().__iter__.count", "().__iter__.waiting", "().seen", "that state_dict gives", "dataset.rng"
    assert status == 0, errors
    assert [text in said for text in lacking] == [how == ""] * 5, errors
    assert "().line" not in said


def test_optimizers_share_their_groups_behind_a_restore(piece: Piece) -> None:
    """The rate that a scheduler gives the outer one is that of the inner one, which steps."""
    status, shared, errors = piece("shared_groups")

    assert status == 0, errors
    assert shared == {kind: [0.0125, 0.0125, True] for kind in ("outer first", "inner first", "again", "alone")}
    assert errors.count("checkpoints do not include SGD (reached as optimizer.base)") == 2, errors  # those alone


def test_settings_of_a_saved_optimizer_are_not_named(piece: Piece) -> None:
    status, _, errors = piece("rates")

    assert status == 0, errors


CLEARED = (
    "zero_grad_first", "zero_grad_last", "zeros_first", "several_backward", "with_scaler", "adversaries", "closure",
    "by_hand", "frozen",
)  # fmt: skip
CARRIED = "accumulated_by_two", "accumulated_by_four", "never_cleared"


def test_gradients_that_are_carried_over_a_step_are_named_and_no_others(start: Start) -> None:
    _, errors = start("torch_gradients.py", *CLEARED, *CARRIED)
    said = {part.partition("\n")[0]: part for part in errors.split("--- ")[1:]}

    assert {kind for kind, text in said.items() if "gradients (.grad)" in text} == set(CARRIED), errors
    assert said.keys() == {*CLEARED, *CARRIED}
    for kind in CARRIED:
        assert "gradients (.grad) of model" in said[kind]
        assert "call run.step_done once for each optimizer.step" in said[kind]


def test_state_that_nobody_keeps_is_named_at_the_first_step(piece: Piece) -> None:
    status, _, errors = piece("forgotten")

    (line,) = [each for each in errors.splitlines() if "do not include" in each]
    assert status == 0
    assert "StepLR (reached as scheduler)" in line
    assert "AveragedModel (reached as averaged)" in line
    assert "Generator (reached as noise)" in line
    assert "Teacher (reached as model)" in line
    assert "Generator (reached as model)" in line
    assert "SGD" not in line and "MSELoss" not in line and "Linear" not in line
    assert "worker.torch.Run by name" in line


def test_what_functions_of_schedulers_and_optimizers_count_is_named(piece: Piece) -> None:
    status, _, errors = piece("warm_up")

    assert status == 0, errors
    for name in ("calls (", "hooked (", "optimizer.speed (", "collate_fn.batches ("):
        assert name in errors
    assert "scales" not in errors and "optimizer.state" not in errors, (
        "nothing changes the one, and checkpoints have the other"
    )


def test_strict_ends_a_training_whose_optimizer_is_forgotten(piece: Piece) -> None:
    status, _, errors = piece("forgotten", "part", "strict")

    assert status == 70
    assert "SGD (reached as optimizer)" in errors
    assert "AveragedModel" not in errors, "it is in leave_out"


def test_state_that_is_kept_is_not_named(piece: Piece) -> None:
    status, _, errors = piece("kept")

    assert status == 0, errors
    assert "do not include" not in errors


def test_loop_over_its_own_loader_is_named(piece: Piece) -> None:
    _, _, errors = piece("own_loop")

    assert "the position in the DataLoader loader" in errors
    assert "run.batches(loader)" in errors


def test_epoch_without_step_done_is_an_error(piece: Piece) -> None:
    status, _, errors = piece("no_steps")

    assert status == 1
    assert "run.step_done was never called" in errors
