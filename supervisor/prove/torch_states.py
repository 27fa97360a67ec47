"""Compares two files of PyTorch's, in the job's own interpreter: equal states may be other bytes there."""

import json
import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.prove.comparison.state import TorchComparison
from supervisor.prove.comparison.tensors import TensorDifference
from supervisor.prove.record import RunRecord
from supervisor.prove.scratch import ProvableJob

COMPARE_S = 600.0


def compare_torch_with(record: RunRecord, job: ProvableJob) -> TorchComparison:
    """A comparison by the interpreter that the record names, as the job's user."""
    python = record.begun[0].python

    def compare(one: Path, other: Path) -> Sequence[TensorDifference]:
        command = [python, "-m", "worker.torch.compare_states", str(one), str(other)]
        environment = {**os.environ, **job.environment}
        done = subprocess.run(
            command,
            cwd=job.directory,
            env=environment,
            check=True,
            capture_output=True,
            timeout=COMPARE_S,
            **_as(job.user),
        )
        return [TensorDifference(*difference) for difference in json.loads(done.stdout)]

    return compare


def _as(user: str | None) -> dict[str, Any]:
    """What makes a child run as the job's user."""
    if user is None or os.geteuid() != 0:
        return {}
    entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
