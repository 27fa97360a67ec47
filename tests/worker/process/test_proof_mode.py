"""A worker in a proof: what it records, where it ends, and that its kills are taken one for each attempt."""

from pathlib import Path

import numpy as np
import pytest

from supervisor.protocol.proof import KillPlace
from supervisor.protocol.proof_plan import (
    END,
    RECORD,
    WRITTEN,
    Begun,
    Killed,
    Named,
    PlannedKill,
    StepDone,
    WorkerPlan,
    decode_line,
    encode_line,
)
from supervisor.protocol.wire.launch import PROOF, proof_folder
from worker.process.proof_mode import ProofMode


def folder_with(plan: WorkerPlan, folder: Path) -> Path:
    (folder / WRITTEN).mkdir()
    plan.write(folder)
    return folder


def lines_in(folder: Path) -> list[object]:
    return [decode_line(line) for line in (folder / RECORD).read_bytes().splitlines()]


def nothing() -> None:
    """Saves nothing, waits for nothing."""


def step(proof: ProofMode, number: int, **metrics: object) -> bool:
    """One step; whether training ends."""
    proof.record_step(number, (0, number, None), metrics, dict)
    return proof.follow_plan(nothing, nothing)


def test_steps_are_recorded_with_the_exact_bits_of_their_metrics(tmp_path: Path):
    proof = ProofMode(folder_with(WorkerPlan(), tmp_path), None, is_first=True)
    proof.begin_run(2, 5, "worker.Run")
    step(proof, 6, loss=np.float32(0.1), each=np.arange(3))

    begun, done = lines_in(tmp_path)

    assert isinstance(begun, Begun)
    assert (begun.attempt, begun.step, begun.kind) == (2, 5, "worker.Run")
    assert isinstance(done, StepDone)
    assert float.fromhex(done.metrics["loss"][0]) == float(np.float32(0.1))
    assert done.metrics["each"][0].startswith("sha256:")


def test_a_line_that_the_attempt_before_was_killed_in_costs_no_other(tmp_path: Path):
    folder = folder_with(WorkerPlan(), tmp_path)
    (folder / RECORD).write_bytes(encode_line(StepDone(1, 1, 0.0, 0, 1))[:20])

    for attempt in (2, 3):
        ProofMode(folder, None, is_first=True).begin_run(attempt, 5, "worker.Run")

    assert [line.attempt for line in lines_in(folder) if isinstance(line, Begun)] == [2, 3]


def test_training_ends_at_the_planned_step(tmp_path: Path):
    proof = ProofMode(folder_with(WorkerPlan(end=3), tmp_path), None, is_first=True)
    proof.begin_run(1, 0, "worker.Run")

    assert [step(proof, number) for number in (1, 2, 3)] == [False, False, True]


def test_the_end_may_be_decided_while_it_trains(tmp_path: Path):
    proof = ProofMode(folder_with(WorkerPlan(), tmp_path), None, is_first=True)
    proof.begin_run(1, 0, "worker.Run")
    before = step(proof, 1)
    (tmp_path / END).write_text("3")

    assert [before, step(proof, 2), step(proof, 3)] == [False, False, True]


def test_steps_of_a_second_run_count_on(tmp_path: Path):
    proof = ProofMode(folder_with(WorkerPlan(), tmp_path), None, is_first=True)
    for _ in range(2):
        proof.begin_run(1, 0, "worker.Run")
        step(proof, 1)
        step(proof, 2)

    assert [line.step for line in lines_in(tmp_path) if isinstance(line, StepDone)] == [1, 2, 3, 4]


def test_others_that_train_with_it_record_nothing(tmp_path: Path):
    proof = ProofMode(folder_with(WorkerPlan(end=1), tmp_path), None, is_first=False)
    proof.begin_run(1, 0, "worker.Run")

    assert step(proof, 1)
    assert not (tmp_path / RECORD).exists()


def test_a_kill_that_has_happened_is_not_taken_again(tmp_path: Path):
    kills = PlannedKill(KillPlace.STEP, 2), PlannedKill(KillPlace.STEP, 9)
    folder = folder_with(WorkerPlan(kills), tmp_path)
    (folder / RECORD).write_bytes(encode_line(Killed(1, 0, 2)))

    proof = ProofMode(folder, None, is_first=True)
    proof.begin_run(2, 0, "worker.Run")

    assert not any(step(proof, number) for number in range(1, 9))


def test_the_checks_name_what_is_left_out_and_say_so(tmp_path: Path):
    proof = ProofMode(folder_with(WorkerPlan(), tmp_path), None, is_first=True)

    assert proof.without_left_out(["beta", object()]) == ()
    proof.name_findings([("model.beta (train.py:3)", "keep it"), ("lr (train.py:4)", "keep it")])

    assert [(line.name, line.left_out) for line in lines_in(tmp_path) if isinstance(line, Named)] == [
        ("model.beta (train.py:3)", True),
        ("lr (train.py:4)", False),
    ]


@pytest.mark.parametrize(("environment", "folder"), [({}, None), ({PROOF: ""}, None), ({PROOF: "/p"}, Path("/p"))])
def test_one_variable_says_whether_a_proof_runs(environment: dict[str, str], folder: Path | None):
    assert proof_folder(environment) == folder
