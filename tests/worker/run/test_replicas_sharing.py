"""Several processes share out the data, and others in number go on where they stopped: every example once."""

import json
import os
import sys
from pathlib import Path

import pytest

from supervisor.protocol.wire.launch import Launch, SaveShards, without_launch_variables
from tests import forking
from tests.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CHILDREN = ROOT / "tests" / "worker" / "children"
COUNT = 38
ANY = ("examples", "dataset", "uneven batches", "files")
FIXED = "files of its own"


def ran(script: str, workers: int, *arguments: object, shards: SaveShards = "auto") -> str:
    """Runs a script with so many processes; what they printed."""
    told = Launch(strategy="one-device")
    if workers > 1:
        told = Launch(strategy="multiworker", workers=workers, save_shards=shards)
    environment = {**without_launch_variables(os.environ), **told.to_environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(CHILDREN / script), *map(str, arguments)]
    done = forking.run_chief(command, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def given(folder: Path, kind: str) -> dict[int, list[int]]:
    """By epoch, all examples that any process was given."""
    epochs: dict[int, list[int]] = {}
    for path in folder.glob(f"{kind}-?.jsonl"):
        for epoch, rows in map(json.loads, path.read_text().splitlines()):
            epochs.setdefault(epoch, []).extend(rows)
    return epochs


@pytest.fixture(scope="module", params=["auto", pytest.param("always", marks=pytest.mark.nightly)])
def two_one_two(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two processes up to step 3, one up to step 5 with smaller batches, two to the end of the second epoch.

    Of so small a state the chief writes all; always: both write their share."""
    folder = tmp_path_factory.mktemp("shared")
    for name, rows in (("one.txt", range(25)), ("two.txt", range(25, COUNT))):
        (folder / name).write_text("".join(f"{row}\n" for row in rows))

    def goes_on(workers: int, *orders: tuple[int, int, str]) -> str:
        words = [":".join(map(str, order)) for order in orders]
        return ran("sharing.py", workers, folder, *words, shards=request.param)

    goes_on(2, *((6, 3, kind) for kind in ANY), (4, 2, FIXED))
    refused = goes_on(1, *((4, 5, kind) for kind in (*ANY, FIXED)))
    goes_on(2, *((6, 0, kind) for kind in ANY), (4, 0, FIXED))
    return folder, refused


@pytest.mark.integration
@pytest.mark.parametrize("kind", ANY)
def test_no_example_is_lost_or_seen_twice_whoever_goes_on(kind: str, two_one_two: tuple[Path, str]) -> None:
    epochs = given(two_one_two[0], kind)

    assert sorted(epochs[0]) == list(range(COUNT))
    assert len(set(epochs[1])) == len(epochs[1]) == (36 if kind == "examples" else COUNT)


@pytest.mark.integration
def test_files_of_each_process_go_on_with_as_many_processes(two_one_two: tuple[Path, str]) -> None:
    epochs = given(two_one_two[0], FIXED)

    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(COUNT))


@pytest.mark.integration
def test_other_processes_can_not_go_on_amid_files_of_each_process(two_one_two: tuple[Path, str]) -> None:
    assert two_one_two[1].startswith(f"{FIXED}: cannot resume in the middle of epoch 0 with 1 process: 2 began it")


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["FILE", "OFF"])
def test_fit_refuses_data_of_each_process_before_a_step_is_made(policy: str) -> None:
    """Where they would go on in the middle of an epoch, nobody could say."""
    said = ran("fit_sharing.py", 2, policy)

    assert said.startswith(f"refused after 0 steps: cannot fit on 2 workers with auto_shard_policy {policy}")


@pytest.mark.integration
def test_fit_of_one_process_takes_any_policy() -> None:
    assert ran("fit_sharing.py", 1, "OFF") == "trained 2 steps\n"
