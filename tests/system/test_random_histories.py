"""Half a minute of `random_histories`, with another seed each time."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.system.random_histories import Histories

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MINUTES = float(os.environ.get("HISTORY_MINUTES", "0.5"))


@pytest.mark.timeout(60 * MINUTES + 600)
@pytest.mark.parametrize("minutes", [MINUTES, pytest.param(2.0, marks=pytest.mark.nightly)])
def test_no_attempt_begins_behind_what_was_told_without_a_reason(tmp_path: Path, minutes: float) -> None:
    probe = tmp_path / "probe"
    probe.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "none", probe], check=False, capture_output=True)
    if os.geteuid() != 0 or mounted.returncode != 0:
        pytest.skip("a small disk to fill takes root")
    subprocess.run(["umount", probe], check=True)

    Histories(tmp_path, random.randrange(1 << 30)).run(minutes)
