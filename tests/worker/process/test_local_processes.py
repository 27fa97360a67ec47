"""The processes of one host that train together: they begin with the first and end with any of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.protocol.wire.launch import Launch, without_launch_variables
from supervisor.protocol.wire.messages import Failed
from tests import forked
from tests.places import ROOT
from tests.reading import alive
from tests.waiting import wait_until
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.integration

SCRIPT = ROOT / "tests" / "worker" / "children" / "member.py"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def start(*acts: str, workers: int = 3, **launch: Any) -> subprocess.Popen[str]:
        told = Launch(strategy="multiworker", workers=workers, **launch).to_environment()
        environment = {**without_launch_variables(os.environ), **told, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *acts],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def introduced(process: subprocess.Popen[str], count: int) -> dict[int, dict[str, Any]]:
    """What each said of itself, by rank."""
    assert process.stdout is not None
    said = [json.loads(process.stdout.readline()) for _ in range(count)]
    return {each["task"]["index"]: each for each in said}


def until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(alive, pids)), "they are gone")


def test_each_has_a_rank_and_all_the_same_addresses(start: Start) -> None:
    found = introduced(start("0:end", "1:end", "2:end"), 3)

    assert sorted(found) == [0, 1, 2]
    (addresses,) = {tuple(each["cluster"]["worker"]) for each in found.values()}
    assert len(set(addresses)) == 3
    assert {each["task"]["type"] for each in found.values()} == {"worker"}


def test_when_the_first_is_killed_the_others_end_at_once(start: Start) -> None:
    process = start()
    found = introduced(process, 3)
    os.kill(found[0]["pid"], signal.SIGKILL)

    until_gone([each["pid"] for each in found.values()][1:])


def test_when_another_is_killed_all_end_and_the_first_says_who(start: Start) -> None:
    process = start()
    found = introduced(process, 3)
    os.kill(found[2]["pid"], signal.SIGKILL)
    _, errors = process.communicate(timeout=100)

    assert process.returncode == 128 + signal.SIGKILL
    assert "worker 2 of 3 was terminated by SIGKILL" in errors
    until_gone([each["pid"] for each in found.values()])


def test_first_process_forwards_the_exit_report_of_another(start: Start, daemon: DaemonEnd) -> None:
    process = start("1:unfit", control=daemon.control())
    process.communicate(timeout=100)
    failed = daemon.wait_for(Failed)

    assert process.returncode == 65, "the code says that another attempt can't help"
    assert failed.error == "worker 1 of 3 ended with exit status 65: the checkpoint does not fit"


def test_an_exception_of_another_arrives_with_its_traceback_and_kind(start: Start, daemon: DaemonEnd) -> None:
    process = start("2:raise", control=daemon.control())
    process.communicate(timeout=100)
    failed = daemon.wait_for(Failed)

    assert process.returncode == 1
    assert failed.error == "worker 2 of 3 ended with exit status 1: MemoryError: no room for the batch"
    assert failed.out_of_memory
    assert "member.py" in failed.traceback


def test_processes_may_exit_one_after_the_other_once_training_is_done(start: Start) -> None:
    process = start("0:end", "1:die", workers=2)  # whichever is first: it is no failure any more, or it is one
    process.communicate(timeout=100)

    calm = start("0:end", "1:end", workers=2)
    _, errors = calm.communicate(timeout=100)

    assert process.returncode in (0, 128 + signal.SIGKILL)
    assert (calm.returncode, errors) == (0, "")


def test_first_process_that_comes_to_its_end_a_moment_later_is_not_failed_by_the_kill_that_is_its_own(
    start: Start, tmp_path: Path
) -> None:
    """As where data are refused: nothing is trained, the scripts of all end, and whichever is first, nothing failed."""
    process = start(f"0:follow={tmp_path}/over", f"1:over={tmp_path}/over", workers=2)
    found = introduced(process, 2)
    _, errors = process.communicate(timeout=100)

    assert (process.returncode, errors) == (0, "")
    until_gone([found[1]["pid"]])


@pytest.mark.parametrize("act", ["refuse-later", "follow"])
def test_the_kill_at_the_end_of_the_first_process_is_no_reason_of_a_failure(
    start: Start, daemon: DaemonEnd, tmp_path: Path, act: str
) -> None:
    """All refuse the same data, and their scripts catch that; or it is another alone that fails."""
    process = start(f"0:{act}={tmp_path}/over", f"1:refuse={tmp_path}/over", workers=2, control=daemon.control())
    process.communicate(timeout=100)
    failed = daemon.wait_for(Failed)

    if act == "refuse-later":
        assert (process.returncode, failed.error) == (0, "cannot fit"), "as its script says"
    else:
        assert (process.returncode, failed.error) == (1, "worker 1 of 2 ended with exit status 1: cannot fit")


@pytest.mark.parametrize(("act", "end"), [("leave", "ended with exit status 0"), ("fail", "was terminated by SIGKILL")])
def test_one_that_left_after_a_training_fails_the_next_one(start: Start, tmp_path: Path, act: str, end: str) -> None:
    """Without it, the others would wait for it in their first step for ever."""
    process = start(f"0:again={tmp_path}/left", f"1:{act}={tmp_path}/left", workers=2)
    _, errors = process.communicate(timeout=30)

    assert process.returncode != 0
    assert f"worker 1 of 2 {end}" in errors


@pytest.mark.slow
def test_process_that_outlives_training_is_ended(start: Start) -> None:
    process = start("0:end", "1:wait", workers=2)
    found = introduced(process, 2)
    process.communicate(timeout=100)

    assert process.returncode == 0
    until_gone([found[1]["pid"]])


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("worker.strategy('tpu')", "cannot train on TPU 'local': "),
        ("worker.strategy('multiworker')", "set workers=2 or more"),
        ("worker.strategy('mirrored', workers=2)", "they go with multiworker"),
        ("worker.strategy('parameter-server')", "it can be auto, mirrored, one-device, multiworker, tpu"),
    ],
)
def test_a_strategy_that_can_not_be_had_says_what_to_do(tmp_path: Path, call: str, text: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import worker; {call}")
    environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
    said = forked.run([sys.executable, str(script)], env=environment, timeout=100)

    assert said.returncode == 1
    assert text in said.stderr.splitlines()[-1]
