"""Has `python -m worker.prove` judge scripts of the corpus: another comparison, by a daemon, with kills of its own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT
from tests.training_code.corpus import EXACT, Entry
from tests.training_code.starter import python_of

STEPS = 14
KILLS = 2
SECONDS = 300.0
_SAMPLE = (
    "np_permutation",
    "np_sarsa_steps",
    "np_average_meter",
    "np_annealing",
    "np_counted_state",
    "np_evolution",
    "jax_key_splitting",
    "jax_tqdm_bar",
    "torch_early_stopping",
    "torch_dqn",
    "torch_ema",
    "tf_gan_list_mean",
)
"""Of each framework; those without TensorFlow take two seconds an attempt."""
PROVED = tuple(entry for entry in EXACT if entry.name in _SAMPLE)


def prove(entry: Entry, folder: Path) -> tuple[int, str]:
    """The exit status of a proof, and what it says. Raises NotInstalled; TimeoutExpired."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "worker.prove", "--deterministic"),
        *("--steps", str(STEPS), "--kills", str(KILLS), "--scratch", str(folder)),
        *("--", str(python_of(entry.framework)), str(entry.script)),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return ended.returncode, ended.stdout
