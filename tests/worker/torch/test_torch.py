"""PyTorch as a job: killed anywhere, it ends with the same bits, and only tensors are unpickled."""

import errno
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import peer
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.wire.launch import Launch, without_launch_variables
from tests import forked
from tests.worker.run.test_multiworker import CHILDREN, ROOT, read_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
Start = Callable[..., subprocess.Popen[str]]
STEPS = 40


@pytest.fixture(scope="session")
def python() -> Path:
    try:
        return peer.binaries(peer.TORCH) / "python"
    except peer.NotInstalled as error:
        pytest.skip(str(error))


@pytest.fixture
def start(python: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, launch: Launch | None = None) -> subprocess.Popen[str]:
        told = launch.to_environment() if launch is not None else {}
        environment = {**without_launch_variables(os.environ), **told, "PYTHONPATH": str(ROOT)}
        command = [str(python), *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(forked.ForkedProcess(command, forked.TORCH, env=environment, cwd=ROOT, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_killed_at_random_steps_it_ends_with_the_same_bits(start: Start, tmp_path: Path) -> None:
    def training(folder: str, *hold_at: int) -> subprocess.Popen[str]:
        return start(CHILDREN / "torching.py", tmp_path / folder, STEPS, *hold_at, launch=Launch(deterministic=True))

    undisturbed = read_until(training("a"), "hash")

    lost_at = [random.randint(6, 14), random.randint(16, 24)]
    for step in lost_at:
        process = training("b", step)
        read_until(process, f"step {step}")
        process.send_signal(signal.SIGKILL)
        process.wait()
    newest = selection.committed_checkpoints(tmp_path / "b")[0]
    (tmp_path / "b" / str(newest) / "torch.pt").write_bytes(b"damaged")
    disturbed = read_until(training("b"), "hash")

    assert disturbed == undisturbed, f"killed at {lost_at}"
    assert undisturbed.endswith("False")  # TensorFlow was never imported
    assert [each.name for each in list_quarantined(tmp_path / "b")] == [str(newest)]


def test_sigterm_saves_and_leaves_with_143(start: Start, tmp_path: Path) -> None:
    process = start(CHILDREN / "torching.py", tmp_path, 1_000_000)
    read_until(process, "step 3")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 143
    assert selection.committed_checkpoints(tmp_path)[0].step >= 3


def test_pickled_objects_in_a_checkpoint_are_refused_and_never_executed(
    start: Start, python: Path, tmp_path: Path
) -> None:
    """A damaged checkpoint with a matching manifest, which only somebody with write access can make."""
    read_until(start(CHILDREN / "torching.py", tmp_path / "c", 5), "hash")
    folder = tmp_path / "c" / str(selection.committed_checkpoints(tmp_path / "c")[0])
    forge = (
        "import os, sys, torch\n"
        "class Evil:\n"
        "    def __reduce__(self): return os.mkdir, (sys.argv[2],)\n"
        "torch.save({'parts': Evil()}, sys.argv[1])"
    )
    command = [str(python), "-c", forge, str(folder / "torch.pt"), str(tmp_path / "evil")]
    subprocess.run(command, check=True, timeout=100)
    names = ("state.json", "torch.pt")
    whole = Manifest("job", 1, 5, 1.7e9, manifest.record_files(folder, names))
    durable.write_file(folder / layout.MANIFEST, whole.to_bytes())

    process = start(CHILDREN / "torching.py", tmp_path / "c", 5)
    _, errors = process.communicate(timeout=100)

    assert process.returncode == 65
    assert "Weights only load failed" in errors
    assert not (tmp_path / "evil").exists()


# --- pieces --------------------------------------------------------------------------------------------------------

Found = Callable[..., tuple[Any, str]]


@pytest.fixture
def found(start: Start, tmp_path: Path) -> Found:
    """The result of a piece that runs in a process of its own, and its standard error."""

    def found(piece: str, *arguments: object, folder: Path = tmp_path, launch: Launch | None = None) -> Any:
        process = start(CHILDREN / "torch_pieces.py", folder, piece, *arguments, launch=launch)
        output, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        return json.loads(output.splitlines()[-1]), errors

    return found


def test_no_example_is_lost_or_repeated_when_the_batch_size_changes(found: Found) -> None:
    runs, _ = found("batches")

    first, second = runs["undisturbed"][:24], runs["undisturbed"][24:48]
    assert runs["seen"] == first[:20] + second, "two of 4, two of 6; 8 do not fit into that epoch's rest; four of 4"
    assert runs["left"] == [[3, 0, 12], [3, 1, 0]], "no whole batch of 16 was left: the epoch is over"


def test_loader_processes_draw_the_same_after_a_resume_and_differently_in_each_epoch(found: Found) -> None:
    both, _ = found("loaders")

    drawn = both["each"]
    assert drawn["disturbed"] == drawn["undisturbed"]
    assert both["together"] == drawn, "also where a dataset takes a batch of indices at once"
    numbers = [number for batch in drawn["undisturbed"] for example in batch for number in example]
    assert len(set(numbers)) == len(numbers) == 2 * 16 * 3


def test_relaunch_under_other_conditions_is_reported_and_keeps_the_threads(found: Found) -> None:
    first, _ = found("conditions", 2)
    kept, said = found("conditions")
    other, complained = found("conditions", 1)

    assert first["torch"].startswith("2.")
    assert first.keys() >= {"numpy", "python", "device", "processor", "inter_op_threads", "tf32", "kernels"}
    assert (first["intra_op_threads"], kept["intra_op_threads"], other["intra_op_threads"]) == (2, 2, 1)
    assert kept["deterministic"] is True
    assert "under other conditions" not in said
    assert "under other conditions, so not to the same bits: intra_op_threads is 1, was 2" in complained


def test_loss_scaling_that_is_switched_off_trains_and_resumes(found: Found) -> None:
    steps, said = found("scaler_off")

    assert steps == [0, 1, 2, 3]
    assert "scaler" not in said


def test_copy_for_a_background_save_equals_a_blocking_save(found: Found) -> None:
    copies, _ = found("copies")

    assert copies["same"]
    assert copies["trained_on"], "else the comparison would prove nothing"
    assert copies["tied"]
    assert copies["metadata"]
    assert copies["sizes"][0] == copies["sizes"][1]


def test_unusual_states_are_copied_or_refused(found: Found) -> None:
    odd, _ = found("odd")

    assert (odd["few"], odd["all"]) == ([0.0, 1.0, 2.0, 3.0, 4.0], [float(number) for number in range(10)])
    assert odd["without_memory"], "written in place"
    assert odd["failed"] == {"CUDA error": ["RuntimeError"] * 2, "DefaultCPUAllocator": ["MemoryError"] * 2}


def test_numpy_numbers_and_arrays_in_a_state_are_restored(found: Found) -> None:
    plain, _ = found("plain")

    assert plain == {"same": True, "rate": "np.float64(0.01)", "allowed": True}, "what the script allows stays allowed"


def test_state_that_could_not_be_restored_is_named_with_the_first_checkpoint(found: Found) -> None:
    _, said = found("refused")

    assert said.count("cannot be restored") == 1
    assert "collections.defaultdict, collections.deque;" in said


def test_state_that_could_not_be_restored_later_is_named_then(found: Found) -> None:
    _, said = found("late")

    assert said.count("cannot be restored: they hold objects of collections.deque;") == 1


def test_parts_that_grow_are_named_at_the_first_save_that_no_restart_could_use(found: Found) -> None:
    _, said = found("grown")

    assert said.count("cannot be restored: model has 1.bias, 1.weight, and a restart makes it without;") == 1
    assert (
        said.count("optimizer has groups of 2, 2 parameters, and a restart makes it with groups of 2 parameters;") == 1
    )
    assert "restored: fixed has" not in said


def test_named_tuples_and_enums_of_the_script_are_restored(found: Found) -> None:
    state, said = found("named")

    assert state == "{'seen': [Seen(state=tensor([1., 1.]), reward=0.5)], 'phase': <Phase.FIRST: 1>}"
    assert "cannot be restored" not in said


def test_nan_is_found_in_tensors_of_every_type_that_has_one(found: Found) -> None:
    finite, _ = found("finite")

    assert finite["unseen"] == []
    assert finite["seen"] >= 8


def test_host_with_fewer_gpus_restores_the_generators_of_those(found: Found) -> None:
    was_set, said = found("fewer")

    assert was_set == [[], [0], [0, 1, 2]]
    assert "the random state of 3 GPUs, but this host has 0" in said
    assert "the random state of 3 GPUs, but this host has 1" in said


def test_full_disk_is_reported_with_its_errno(found: Found, small_disk: Path) -> None:
    number, _ = found("full", folder=small_disk)

    assert number == errno.ENOSPC


def test_memory_and_device_errors_do_not_blame_the_checkpoint_and_a_nan_is_never_saved(
    start: Start, tmp_path: Path
) -> None:
    said, errors = start(CHILDREN / "torch_failing.py", tmp_path).communicate(timeout=200)

    assert said.splitlines() == [
        "dtype: DeliberateExit 65 False",
        "shape: DeliberateExit 65 False",
        "device-memory: OutOfMemoryError True",
        "host-memory: MemoryError True",
        "in-a-module: MemoryError True",
        "device: RuntimeError False",
        "misfit: DeliberateExit 65 False",
        "nan: DeliberateExit 80 False",
        "saved [2, 1]",
    ], errors
    assert "model.weight, optimizer.state.0.momentum_buffer are not finite" in errors
    assert "model.weight is float32 [3, 2] in the checkpoint and float64 [3, 2] in the program" in errors
    assert "model.weight is float32 [3, 2] in the checkpoint and float32 [4, 2] in the program" in errors


def test_parameter_in_no_module_is_kept_in_the_state_as_the_refusal_says(start: Start, tmp_path: Path) -> None:
    said, errors = start(CHILDREN / "torch_failing.py", tmp_path, "parameter").communicate(timeout=200)

    refusal, *parameters = said.splitlines()
    assert refusal.endswith('; give it to state=, as in Run(..., state={"log_std": log_std})'), errors
    assert parameters == ["parameter: 7.0 True"] * 2


def test_edits_of_a_script_are_said_with_what_is_used_now(start: Start, tmp_path: Path) -> None:
    printed, errors = start(CHILDREN / "torch_edits.py", tmp_path).communicate(timeout=200)
    used = dict(line.split(": ") for line in printed.splitlines())
    said = {part.partition("\n")[0]: part for part in errors.split("--- ")[1:]}
    edited = {name for name, text in said.items() if "sets other values than the one" in text}

    assert edited == {"rate:1", "rate:2", "class:1", "betas:1", "schedule:2", "seed:1"}, errors
    assert {name for name, text in said.items() if "other data than before" in text} == {"data:2", "data:3"}, errors
    assert used["rate:1"] == "0.003" and used["rate:2"] == used["rate:3"] == "0.0001"
    assert "optimizer.param_groups[0]['lr'] is 0.003, from the checkpoint; the script says 0.0001" in said["rate:1"]
    assert "write `if run.step == 1: optimizer.param_groups[0]['lr'] = 0.0001` at the beginning" in said["rate:1"]
    assert "the class of optimizer is AdamW, the script's; the checkpoint was trained with Adam" in said["class:1"]
    assert "optimizer.param_groups[0]['betas'] is (0.9, 0.999), from the checkpoint" in said["betas:1"]
    assert "optimizer.param_groups[0]['betas'] = (0.8, 0.99)`" in said["betas:1"]
    assert "scheduler.gamma is 0.5, from the checkpoint; the script says 0.1" in said["schedule:2"]
    assert "the seed of torch is 2, was 1: random numbers go on from the checkpoint's state" in said["seed:1"]
    assert used["sgd:1"] == "65"
    assert "optimizer is a SGD, and the optimizer in the checkpoint has no dampening, momentum" in said["sgd:1"]
    assert "content of the data is another one" in said["data:2"]
    assert "number of examples of the data is 20, was 24" in said["data:3"]
