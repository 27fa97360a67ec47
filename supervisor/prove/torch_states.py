"""Compares two files of PyTorch's, in the job's own interpreter: equal states may be other bytes there."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from supervisor.prove.comparison.state import CannotCompare, TorchComparison
from supervisor.prove.comparison.tensors import TensorDifference
from supervisor.prove.record import RunRecord
from supervisor.prove.scratch import ProvableJob

COMPARE_S = 600.0


def compare_torch_with(record: RunRecord, job: ProvableJob) -> TorchComparison:
    """A comparison by the interpreter that the record names."""
    python = record.begun[0].python

    def compare(one: Path, other: Path) -> Sequence[TensorDifference]:
        command = [python, "-m", "worker.torch.compare_states", str(one), str(other)]
        environment = {**os.environ, **job.environment}
        try:
            done = subprocess.run(
                command, cwd=job.directory, env=environment, check=True, capture_output=True, timeout=COMPARE_S
            )
        except subprocess.SubprocessError as error:
            words = (error.stderr if isinstance(error, subprocess.CalledProcessError) else b"").decode(errors="replace")
            why = words.strip().splitlines()[-1:] or [str(error)]
            raise CannotCompare(f"PyTorch can't compare {one.name} of the two runs: {why[0]}") from error
        return [TensorDifference(*difference) for difference in json.loads(done.stdout)]

    return compare
