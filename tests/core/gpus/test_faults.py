"""The table of faults, and the page that shows them."""

import subprocess
import sys

import pytest

from supervisor.core.gpus.faults import NVML_FAULTS, RECOVERY, XIDS, Follows, recovery_fault
from tests.places import ROOT


@pytest.mark.integration
def test_the_page_has_the_lists() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "supervisor.core.gpus.faults"], capture_output=True, text=True, check=True, cwd=ROOT
    )

    page = (ROOT / "docs" / "gpus.md").read_text()
    assert printed.stdout in page, "python -m supervisor.core.gpus.faults prints them"


def test_what_leaves_a_gpu_out_says_what_the_operator_has_to_do() -> None:
    table = [*XIDS.values(), *NVML_FAULTS, recovery_fault(99)]

    assert all(fault is not None and bool(fault.remedy) is fault.leaves_out for fault in table)


def test_keys_are_unique_and_short() -> None:
    keys = [fault.key for fault in (*XIDS.values(), *NVML_FAULTS)]

    assert len(keys) == len(set(keys)) and all(0 < len(key) <= 40 for key in keys)


def test_45_and_43_never_mean_anything() -> None:
    assert XIDS[45].follows is XIDS[43].follows is Follows.NOTE


def test_no_recovery_action_is_a_zero() -> None:
    assert recovery_fault(0) is None and 0 not in RECOVERY
