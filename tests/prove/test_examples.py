"""The examples, each by its own framework's run, are proven exact."""

import json
import os
import sys
from pathlib import Path

import pytest

from bench import peer
from tests import forked, forking
from tests.places import ROOT

PROOF_S = 600.0
LOOPS = pytest.mark.nightly  # the corpus and tests/system/test_prove.py have loops of this kind

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(700)]


def report_of(
    configuration: Path,
    scratch: Path,
    *options: str,
    scripts_have: tuple[str, ...] = forked.TENSORFLOW,
    **variables: str,
) -> dict[str, object]:
    """What a proof of the job of a configuration reports."""
    command = [sys.executable, "-m", "supervisor.daemon", "--prove", str(configuration), "--json"]
    done = forking.run_proof(
        [*command, "--scratch", str(scratch), *options], scripts_have, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, timeout=PROOF_S,
    )  # fmt: skip
    report = json.loads(done.stdout.splitlines()[-1])
    return dict(report) if isinstance(report, dict) else {}


def path_with(folder: Path) -> str:
    """PATH, so that `python` is that of a folder."""
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("fit", 25),
        # tests/system and the corpus kill loops of this kind:
        *(
            pytest.param(*example, marks=pytest.mark.nightly)
            for example in (("digits", 25), ("charlm", 10), ("tf1_loop", 25))
        ),
    ],
)
def test_an_example_in_tensorflow_is_exact(name: str, steps: int, tmp_path: Path):
    here = path_with(Path(sys.executable).parent)

    report = report_of(ROOT / f"examples/{name}.conf", tmp_path, "--steps", str(steps), "--kills", "1", PATH=here)

    assert (report["verdict"], report["steps"]) == ("exact", steps), report


@pytest.mark.nightly  # the corpus kills scripts in PyTorch, and the same proof is had of an example in TensorFlow
def test_the_example_in_pytorch_is_exact(tmp_path: Path):
    here = path_with(peer.binaries(peer.TORCH))

    report = report_of(ROOT / "examples/torch_digits.conf", tmp_path, "--steps", "30", "--kills", "1", PATH=here)

    assert (report["verdict"], report["steps"]) == ("exact", 30), report


def test_a_program_without_the_package_is_exact(tmp_path: Path):
    here = path_with(Path(sys.executable).parent)

    report = report_of(ROOT / "examples/plain.conf", tmp_path, "--kills", "1", scripts_have=forked.SKLEARN, PATH=here)

    assert (report["verdict"], report["steps"]) == ("exact", 2000), report
    assert any("the metrics of each step" in each for each in report["not_varied"])


@pytest.mark.parametrize("hurried", [1, 6])
def test_a_program_that_was_over_before_it_could_be_killed_is_killed_in_another_run(tmp_path: Path, hurried: int):
    """As on a busy machine, where the step is seen too late."""
    scratch, starts = tmp_path / "scratch", tmp_path / "starts"
    for folder in (scratch, starts):
        folder.mkdir()
    file = tmp_path / "hurried.conf"
    script = ROOT / "tests/prove/scripts/hurried.py"
    file.write_text(
        f"[supervisord]\n[program:hurried]\ncommand = {sys.executable} {script} {starts}\n"
        f"checkpoint_dir = {tmp_path}/ckpt\n"
        f'environment = PYTHONPATH="{ROOT}",STEPS="300",HURRIED="{1 + hurried}"\n'
    )

    report = report_of(file, scratch, "--kills", "1", scripts_have=forked.SKLEARN)

    assert (report["verdict"], report["steps"]) == ("exact", 300), report["reason"]
    # undisturbed ones, and one that is killed and goes on; a kill may meet a hurried one as well, behind its words
    assert 3 <= len(list(starts.iterdir())) <= 3 + hurried


@pytest.mark.nightly  # tests/system/test_multiworker.py kills the same two processes
@pytest.mark.tensorflow
@pytest.mark.parametrize("shards", ["never", "always"])
def test_processes_that_train_together_are_exact(tmp_path: Path, shards: str):
    """They save and end at the same steps, and the first of them is killed; also if each writes its share."""
    scratch, out = tmp_path / "scratch", tmp_path / "out"
    for folder in (scratch, out):
        folder.mkdir()
    file = tmp_path / "pair.conf"
    script = ROOT / "tests/worker/children/together.py"
    file.write_text(
        f"[supervisord]\n[program:pair]\ncommand = {sys.executable} {script} {out} 40\ndirectory = {ROOT}\n"
        f"checkpoint_dir = {tmp_path}/ckpt\nstrategy = multiworker\nworkers = 2\ndeterministic = true\n"
        f"save_shards = {shards}\n"
        f'environment = PYTHONPATH="{ROOT}",PAUSE="0.05"\n'
    )

    report = report_of(file, scratch, "--steps", "20", "--kills", "2")

    assert (report["verdict"], report["steps"]) == ("exact", 20), report
