"""A proof finds the classical mistakes of training code, whose warnings were silenced, and names what it is."""

import json
import os
import sys
from pathlib import Path

import pytest

from bench import peer
from supervisor.protocol.proof import EXIT_STATUS, Likely, ProofReport, Verdict
from supervisor.protocol.wire.codec import decode_record
from tests import forked, forking
from tests.places import ROOT

MISTAKES = Path(__file__).parent / "mistakes"
PROOF_S = 280.0
AGAIN = pytest.mark.nightly  # the verdict, the cause and the remedy of another script here are the same


def proof_of(name: str, folder: Path, *options: str) -> ProofReport:
    """What a proof of a script of this folder reports."""
    script = MISTAKES / f"{name}.py"
    is_torch = "small_torch" in script.read_text()
    python = str(peer.binaries(peer.TORCH) / "python") if is_torch else sys.executable
    command = [sys.executable, "-m", "supervisor.prove", "--json", "--scratch", str(folder), *options]
    done = forking.run_proof(
        [*command, "--", python, str(script)], forked.NUMPY, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PROOF_S,
    )  # fmt: skip
    report = decode_record(json.loads(done.stdout.splitlines()[-1]), ProofReport, "the report")
    assert done.returncode == EXIT_STATUS[report.verdict], done.stderr
    assert list(folder.iterdir()) == [], "the scratch folder is left"
    return report


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "kills", "steps"),
    [("loop_over_range", 2, 24), pytest.param("own_index_loop", 2, 24, marks=AGAIN), ("epoch_as_step", 2, 12)],
)
def test_a_loop_that_begins_anew_is_told_by_the_number_of_steps(script: str, kills: int, steps: int, tmp_path: Path):
    report = proof_of(script, tmp_path, "--kills", str(kills))

    assert (report.verdict, report.likely) == (Verdict.DIFFERENT, Likely.LOOP_BEGAN_ANEW)
    assert report.differences[0].name == "number of steps"
    assert report.differences[0].undisturbed == str(steps)
    assert int(report.differences[0].killed.removesuffix(" or more")) > steps
    assert "run.epochs" in report.remedy


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("attribute_in_method", ["model.beta", "lr"]),
        pytest.param("average_of_weights", ["average.shadow['weights']"], marks=AGAIN),
        ("early_stopping", ["stopping.best", "stopping.weights"]),
        ("replay_memory", ["memory"]),
        pytest.param("permutation_at_head", ["order"], marks=AGAIN),
    ],
)
def test_a_value_that_nobody_keeps_is_named(script: str, names: list[str], tmp_path: Path):
    report = proof_of(script, tmp_path, "--kills", "2")

    assert (report.verdict, report.likely) == (Verdict.DIFFERENT, Likely.NOT_KEPT)
    assert all(f"{name} (" in report.reason for name in names), report.reason
    assert "run.state" in report.remedy


@pytest.mark.nightly  # test_comparison.py has what is blamed; the corpus names the same script: torch_grad_accumulation
@pytest.mark.slow
@pytest.mark.integration
def test_gradients_over_several_steps_are_named(tmp_path: Path):
    report = proof_of("accumulated_gradients", tmp_path, "--kills", "1")

    assert (report.verdict, report.likely) == (Verdict.DIFFERENT, Likely.NOT_KEPT)
    assert "model.weight.grad (" in report.reason
    assert "once for each optimizer step" in report.remedy


@pytest.mark.slow
@pytest.mark.integration
def test_batches_that_are_numbered_from_0_are_named(tmp_path: Path):
    report = proof_of("enumerated_batches", tmp_path, "--kills", "1")

    assert (report.verdict, report.likely) == (Verdict.DIFFERENT, Likely.LOOP_BEGAN_ANEW)
    assert " i (" in report.reason
    assert "enumerate(run.batches(data), run.batch)" in report.remedy
    assert {difference.name for difference in report.differences} == {
        'generator.npz["momentum"]', 'generator.npz["weights"]',
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.integration
def test_runs_that_differ_by_themselves_blame_no_restart(tmp_path: Path):
    report = proof_of("unseeded_shuffle", tmp_path, "--kills", "1")

    assert (report.verdict, report.likely) == (Verdict.DIFFERENT, Likely.NOT_DETERMINISTIC)
    assert "seed" in report.remedy
