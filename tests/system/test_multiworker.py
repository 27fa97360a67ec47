"""Several processes train together under a daemon: whoever dies, all begin again from one checkpoint, exactly."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.host.gang.free_port import free_port
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.gang import cluster_text
from supervisor.protocol.wire.launch import Launch, without_launch_variables
from tests import forked, forking
from tests.places import ROOT
from tests.reading import alive, whole_lines
from tests.system.harness import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.tensorflow, pytest.mark.timeout(600)]

SCRIPT = ROOT / "tests" / "worker" / "children" / "together.py"
FIT_SCRIPT = SCRIPT.with_name("fit_together.py")
STEPS = 40
PATIENCE_S = 240.0
BEGINS = re.compile(r"worker (\d) pid (\d+) begins at (\d+)")


def program(folder: Path, pause: float, keys: str = "", every: int = 7) -> str:
    return (
        f"[program:pair]\ncommand={sys.executable} {SCRIPT} {folder} {STEPS}\ndirectory={ROOT}\n"
        f"checkpoint_dir={folder}/ckpt\nstrategy=multiworker\nworkers=2\ndeterministic=true\n"
        f"checkpoint_interval={every} steps\nredirect_stderr=true\n"
        f'environment=PYTHONPATH="{ROOT}",PAUSE="{pause}"\n{keys}'
    )


def ends(folder: Path) -> list[str]:
    return [(folder / f"end-{rank}").read_text() for rank in (0, 1)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    launch = {**Launch(workers=2, strategy="multiworker").to_environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), str(folder), str(STEPS)]
    done = forking.run_chief(command, cwd=ROOT, env={**os.environ, **launch}, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return ends(folder)


class Pair:
    """The two processes of the newest attempt, as they said themselves."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def begun(self, times: int) -> dict[int, tuple[int, int]]:
        """By rank: pid and first step, once both began so many times."""

        def look() -> dict[int, tuple[int, int]] | None:
            found = [tuple(map(int, match_)) for match_ in BEGINS.findall(self.text())]
            if len(found) < 2 * times:
                return None
            return {rank: (pid, step) for rank, pid, step in found[-2:]}

        found: dict[int, tuple[int, int]] = self.daemon.until(look, f"both began {times} times", PATIENCE_S)
        assert found.keys() == {0, 1}
        return found

    def text(self) -> str:
        return "\n".join(whole_lines(self.daemon.folder / "state" / "log" / "pair-stdout.log"))


def test_killing_any_member_ends_with_the_same_bits(tmp_path: Path, undisturbed: list[str]) -> None:
    moments = random.Random(7)
    with Daemon(tmp_path, program(tmp_path, pause=0.05), scripts_have=forked.TENSORFLOW) as daemon:
        pair = Pair(daemon)
        for times, killed in enumerate((1, 0), 1):
            both = pair.begun(times)
            first = both[0][1]
            daemon.until_step("pair", first + moments.randint(8, 15), PATIENCE_S)
            if times == 2:
                daemon.until(
                    lambda: len(selection.committed_checkpoints(tmp_path / "ckpt")) > 1,
                    "there is one beside the one to be damaged",
                    PATIENCE_S,
                )
            os.kill(both[killed][0], signal.SIGKILL)
            other = both[1 - killed][0]
            daemon.until(lambda other=other: not alive(other), "the other one left", PATIENCE_S)
            if times == 2:
                newest = tmp_path / "ckpt" / str(selection.committed_checkpoints(tmp_path / "ckpt")[0])
                content = bytearray((newest / "worker-1.npz").read_bytes())
                content[len(content) // 2] ^= 1
                (newest / "worker-1.npz").write_bytes(content)
        resumed = pair.begun(3)
        daemon.until_state("pair", "SUCCEEDED", patience_s=PATIENCE_S)
        ended = [attempt["text"] for attempt in daemon.call("history", name="pair")["attempts"]]

    assert resumed[0][1] == resumed[1][1] > 0, "both began from the same checkpoint"
    assert ends(tmp_path) == undisturbed
    assert sum("worker 1 of 2 was terminated by SIGKILL" in each for each in ended) == 1
    assert sum("terminated by SIGKILL" in each for each in ended) == 2


@pytest.mark.nightly  # test_fit_together.py kills the workers of a fit in each of its phases
def test_fit_of_which_any_member_is_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    row = "callbacks of Keras"
    command = [sys.executable, str(FIT_SCRIPT), str(tmp_path / "calm"), row.replace(" ", "_")]
    launch = {**Launch(workers=2, strategy="multiworker").to_environment(), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **launch}, timeout=PATIENCE_S, check=True)
    folder = tmp_path / "job"
    folder.mkdir()
    text = program(folder, pause=0.5, every=2).replace(
        f"{SCRIPT} {folder} {STEPS}", f"{FIT_SCRIPT} {folder} {command[-1]}"
    )
    with Daemon(tmp_path, text, scripts_have=forked.TENSORFLOW) as daemon:
        pair = Pair(daemon)
        for times, killed in enumerate((1, 0), 1):
            both = pair.begun(times)
            daemon.until_step("pair", both[0][1] + 4, PATIENCE_S)
            os.kill(both[killed][0], signal.SIGKILL)
        resumed = pair.begun(3)
        daemon.until_state("pair", "SUCCEEDED", patience_s=PATIENCE_S)

    assert resumed[0][1] == resumed[1][1] > 0
    assert ends(folder / row) == ends(tmp_path / "calm" / row)


def test_a_stop_that_reaches_one_of_them_stops_both_after_one_save(tmp_path: Path, undisturbed: list[str]) -> None:
    with Daemon(tmp_path, program(tmp_path, pause=0.1, every=10 * STEPS), scripts_have=forked.TENSORFLOW) as daemon:
        pair = Pair(daemon)
        member = pair.begun(1)[1][0]
        daemon.until_step("pair", 3, PATIENCE_S)
        os.kill(member, signal.SIGTERM)
        again = pair.begun(2)
        daemon.until_state("pair", "SUCCEEDED", patience_s=PATIENCE_S)

    assert again[0][1] == again[1][1] > 0, "what was agreed upon was saved: there is no periodic save"
    assert ends(tmp_path) == undisturbed


def test_exports_amid_training_and_at_its_end_hold_up_nobody(tmp_path: Path, undisturbed: list[str]) -> None:
    keys = f"export_dir={tmp_path}/models\n"
    with Daemon(tmp_path, program(tmp_path, pause=0.1, keys=keys), scripts_have=forked.TENSORFLOW) as daemon:
        Pair(daemon).begun(1)
        daemon.until_step("pair", 3, PATIENCE_S)
        asked = daemon.call("export", name="pair")
        daemon.until_state("pair", "SUCCEEDED", patience_s=PATIENCE_S)
        tries = len(daemon.call("history", name="pair")["attempts"])

    assert 3 <= asked["step"] < STEPS
    assert {folder.name for folder in (tmp_path / "models").iterdir()} == {str(asked["step"]), str(STEPS)}
    for folder in (tmp_path / "models").iterdir():
        record = json.loads((folder / "EXPORT.json").read_text())
        assert all((folder / name).stat().st_size == size for name, (size, _) in record["files"].items())
    assert (tries, ends(tmp_path)) == (1, undisturbed)


@pytest.mark.parametrize("is_shared", [False, pytest.param(True, marks=pytest.mark.nightly)])  # as in all other tests
def test_workers_with_directories_of_their_own_are_told_at_their_first_start(tmp_path: Path, is_shared: bool) -> None:
    """As on two nodes with a checkpoint_dir on each node's own disk: they would train, and not be able to go on."""
    cluster = [f"localhost:{free_port()}" for _ in range(2)]
    started = []
    for rank in (0, 1):
        folder = tmp_path / ("shared" if is_shared else f"node-{rank}")
        folder.mkdir(exist_ok=True)
        environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
        environment |= {"TF_CONFIG": cluster_text(cluster, rank)}
        command = [sys.executable, str(SCRIPT), str(folder), "8"]
        started.append(forked.ForkedProcess(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE))
    errors = [process.communicate(timeout=PATIENCE_S)[1] for process in started]

    said = ["must be shared by all nodes of the gang" in error for error in errors]
    assert [process.returncode for process in started] == ([0, 0] if is_shared else [73, 73])
    assert said == [not is_shared] * 2
    assert not list(tmp_path.glob("node-*/ckpt/step-*"))
    assert not list(tmp_path.glob("*/ckpt/.stepkeeper.gang-*"))
