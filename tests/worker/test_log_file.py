"""A log file has each line of the training that counts once, whenever that was killed."""

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.wire.launch import PROOF
from worker.log_file import LogFile
from worker.process.startup import attempt_or_standby


@pytest.fixture(autouse=True)
def run_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_or_standby(), "has_begun_run", True)


def written(path: Path, *texts: str, restored: dict[str, int | None] | None = None) -> LogFile:
    """The log of another process, which has written these texts."""
    log = LogFile(path)
    if restored is not None:
        log.load_state_dict(restored)
    for text in texts:
        log.write(text)
    log.flush()
    return log


def test_a_restart_goes_on_behind_what_the_checkpoint_knows(tmp_path: Path) -> None:
    path = tmp_path / "loss.csv"
    log = written(path, "1,0.5\n", "2,ä\n")
    state = log.state_dict()
    log.write("3,lost\n")
    log.flush()

    written(path, "3,0.3\n", restored=state)

    assert path.read_text() == "1,0.5\n2,ä\n3,0.3\n"
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("restored", [None, {"length": None}])
def test_what_another_training_wrote_is_kept(tmp_path: Path, restored: dict[str, int | None] | None) -> None:
    path = tmp_path / "loss.csv"
    for text in ("first", "second"):
        written(path, text, restored=restored)

    written(path, "third", restored=restored)

    kept = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert kept == {"loss.csv": "third", "loss.csv.1": "first", "loss.csv.2": "second"}


def test_nothing_is_opened_before_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "loss.csv"
    path.write_text("of another training")

    written(path, restored={"length": 3}).state_dict()

    assert path.read_text() == "of another training"


def test_lines_that_the_host_lost_are_said_and_the_rest_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loss.csv"
    state = written(path, "1\n2\n").state_dict()
    path.write_text("1\n")

    written(path, "3\n", restored=state)

    assert path.read_text() == "1\n3\n"
    assert f"{path} has lost its last 2 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [[], ["1\n", "2\n"]])
def test_what_is_written_before_the_run_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str]
) -> None:
    """`rows`: of the first process, which a checkpoint knows."""
    path = tmp_path / "loss.csv"
    state: dict[str, int | None] | None = None
    for texts in (rows, ["3\n"]):
        log = LogFile(path)
        monkeypatch.setattr(attempt_or_standby(), "has_begun_run", False)
        log.write("step,")
        log.write("loss\n")
        assert log.state_dict() == {"length": None}
        if state is not None:
            log.load_state_dict(state)
        monkeypatch.setattr(attempt_or_standby(), "has_begun_run", True)
        for text in texts:
            log.write(text)
        state = log.state_dict()

    assert path.read_text() == "".join(["step,loss\n", *rows, "3\n"])


def test_a_csv_writer_and_print_write_to_it(tmp_path: Path) -> None:
    path = tmp_path / "loss.csv"
    log = written(path)
    csv.writer(log).writerow([1, "a,b"])
    print("2", file=log)
    log.flush()

    assert path.read_bytes() == b'1,"a,b"\r\n2\n'


@pytest.mark.parametrize(
    ("cluster", "task", "writes"),
    [
        (["worker"], {"type": "worker", "index": 0}, True),
        (["worker"], {"type": "worker", "index": 1}, False),
        (["chief", "worker"], {"type": "worker", "index": 0}, False),
        (["chief", "worker"], {"type": "chief", "index": 0}, True),
    ],
)
def test_of_processes_that_train_together_the_chief_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: list[str], task: dict[str, object], writes: bool
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {kind: ["a:1"] for kind in cluster}, "task": task}))

    written(tmp_path / "loss.csv", "1\n")

    assert (tmp_path / "loss.csv").exists() == writes


def test_a_proof_leaves_the_users_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROOF, str(tmp_path / "proof"))
    (tmp_path / "proof").mkdir()

    for name in ("a", "b"):  # files of one name are two there too
        written(tmp_path / name / "loss.csv", f"{name}\n")

    logs = list((tmp_path / "proof").iterdir())
    assert sorted(path.read_text() for path in logs) == ["a\n", "b\n"]
    assert {path.suffix for path in logs} == {".csv"}, "none stood in the other's way"
    assert [path.name for path in tmp_path.iterdir()] == ["proof"]


@given(st.lists(st.tuples(st.text(max_size=4), st.booleans(), st.booleans()), max_size=12))
def test_killed_at_any_step_it_ends_with_the_lines_of_an_undisturbed_training(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bool, bool]]
) -> None:
    """Each step writes its text; then a checkpoint may be written, and then the process may be killed."""
    path = tmp_path_factory.mktemp("log") / "loss.csv"
    log, at, checkpoint, kills = LogFile(path), 0, None, set[int]()
    while at < len(steps):
        text, is_saved, is_killed = steps[at]
        log.write(text)
        at += 1
        if is_saved:
            checkpoint = at, log.state_dict()
        if is_killed and at not in kills:
            kills.add(at)
            log.flush()  # what the kernel has got survives the process
            log, at = LogFile(path), 0
            if checkpoint is not None:
                at = checkpoint[0]
                log.load_state_dict(checkpoint[1])
    log.flush()

    assert (path.read_bytes() if path.exists() else b"") == "".join(text for text, _, _ in steps).encode()
