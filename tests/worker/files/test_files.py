"""A run whose program writes its own files: restored, saved, stopped and refused as any other."""

import errno
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, removal, selection
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Committed, Done, Failed, Flush, Go, Progress, Restored, SaveFailed, Then
from tests.waiting import wait_until
from tests.worker.daemon_end import DaemonEnd
from worker.checks.findings import Finding
from worker.devices import conditions
from worker.files import FilesRun, NotFinite, Unfit, prepare
from worker.saving import scheduler
from worker.saving.save import restored_checkpoint

Begin = Callable[[Launch], None]


class Counting:
    """The smallest program: one array in one file."""

    versions: Mapping[str, str] = {"counting": "1"}
    topology: Mapping[str, str | int | bool] = {"knob": 3}

    def __init__(self, full_at: float = -1) -> None:
        self.value = np.zeros(1)
        self.full_at = full_at

    def write(self, folder: Path) -> None:
        if self.value[0] == self.full_at:
            (folder / "value.npy").write_bytes(b"half")
            raise OSError(28, "No space left on device")
        np.save(folder / "value.npy", self.value)

    def read(self, folder: Path) -> None:
        self.value = np.load(folder / "value.npy", allow_pickle=False)

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint")


class Other(Counting):
    """A program of another kind."""


@pytest.fixture(autouse=True)
def _fresh_attempt(begin: Begin) -> None:
    """Begins a new attempt for each test: an attempt reports its failure only once."""
    begin(Launch())


def test_an_object_that_cannot_be_saved_is_refused_before_it_trains() -> None:
    class Guessed:
        versions: Mapping[str, str] = {}

        def read(self, folder: Path) -> None:
            raise NotImplementedError

    with pytest.raises(
        TypeError, match=r"files of Guessed: it has no topology and no write; help\(worker.files.Files\)"
    ):
        FilesRun(Guessed(), directory="/nowhere")  # type: ignore[arg-type]


def test_a_run_that_was_not_entered_is_called_as_scripts_call_it(tmp_path: Path) -> None:
    class OwnRun(FilesRun):
        """A script's own."""

    for kind, name in ((FilesRun, r"worker\.files\.FilesRun"), (OwnRun, rf"{OwnRun.__module__}\.OwnRun")):
        with pytest.raises(RuntimeError, match=rf'write "with {name}\(\.\.\.\) as run:"'):
            kind(Counting(), directory=tmp_path).step_done()


def train(run: FilesRun, files: Counting) -> list[float]:
    """Counts to the end; gives what Python's and NumPy's generators drew."""
    drawn = []
    while not run.reached:
        files.value += 1
        drawn.append(random.random() + np.random.rand())
        run.step_done(epoch=run.step // 4, batch=run.step % 4, value=float(files.value[0]))
    return drawn


def test_files_run_resumes_with_both_generators(tmp_path: Path) -> None:
    files = Counting()
    with FilesRun(files, total_steps=6, directory=tmp_path, interval="3 steps") as run:
        first = train(run, files)
    removal.delete_checkpoint(tmp_path, layout.CheckpointName(6, 1))
    random.seed(0)
    np.random.seed(0)
    files = Counting()
    with FilesRun(files, total_steps=6, directory=tmp_path, interval="3 steps") as run:
        begun_at, place = run.step, (run.epoch, run.batch)
        again = train(run, files)

    assert (begun_at, place) == (3, (0, 2))
    assert again == first[3:]
    assert files.value[0] == 6


def draw_to_the_end(run: FilesRun, rng: np.random.Generator, dice: random.Random) -> list[float]:
    drawn = []
    while not run.reached:
        drawn.append(rng.random() + dice.random())
        run.step_done(epoch=0, batch=run.step + 1)
    return drawn


def test_own_generators_resume(tmp_path: Path) -> None:
    def begun() -> tuple[np.random.Generator, random.Random, FilesRun]:
        rng, dice = np.random.default_rng(5), random.Random(6)
        run = FilesRun(Counting(), total_steps=6, directory=tmp_path, interval="3 steps", generators=[rng, dice])
        return rng, dice, run

    rng, dice, run = begun()
    with run:
        first = draw_to_the_end(run, rng, dice)
    removal.delete_checkpoint(tmp_path, layout.CheckpointName(6, 1))
    rng, dice, run = begun()
    with run:
        again = draw_to_the_end(run, rng, dice)

    assert again == first[3:]


@pytest.mark.parametrize("fewer", [[], [np.random.default_rng(1), random.Random(1), random.Random(2)]])
def test_checkpoint_of_other_generators_is_refused(
    fewer: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with FilesRun(Counting(), total_steps=1, directory=tmp_path, generators=[random.Random(1)]) as run:
        run.step_done(epoch=0, batch=1)

    with (
        pytest.raises(SystemExit),
        FilesRun(Counting(), total_steps=2, directory=tmp_path, generators=fewer),
    ):
        pass

    assert f"state of 1 generator of the script, but the run was given {len(fewer)}" in capfd.readouterr().err


def test_generator_that_the_loop_reaches_and_nobody_keeps_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Sampler:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(1)

    sampler, kept, unused = Sampler(), random.Random(1), random.Random(2)
    with FilesRun(Counting(), total_steps=2, directory=tmp_path, generators=[kept], leave_out=[unused]) as run:
        while not run.reached:
            draws = [sampler.rng.random(), kept.random(), unused.random(), random.random()]
            run.step_done(epoch=0, batch=run.step + 1, value=sum(draws))

    said = capfd.readouterr().err
    assert "Generator (reached as sampler)" in said
    assert "reached as kept" not in said
    assert "reached as unused" not in said
    assert "reached as random" not in said


def test_generator_that_a_program_pickles_is_not_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Chain(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(1)

        def write(self, folder: Path) -> None:
            super().write(folder)
            (folder / "rng").write_bytes(pickle.dumps(self.rng))

    chain = Chain()
    with FilesRun(chain, total_steps=2, directory=tmp_path) as run:
        while not run.reached:
            run.step_done(epoch=0, batch=run.step + 1, value=chain.rng.random())

    assert "checkpoints do not include" not in capfd.readouterr().err


class Environment:
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)


class EnvironmentState:
    """Keeps the generator of an environment."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def state_dict(self) -> dict[str, list[np.random.Generator]]:
        return {"generators": [self.environment.rng]}

    def load_state_dict(self, state: dict[str, list[np.random.Generator]]) -> None:
        (self.environment.rng,) = state["generators"]


def test_generator_that_an_object_gives_as_its_state_is_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    draws = []
    for steps in (1, 3):
        environment, dice = Environment(), [random.Random(3)]
        state = {"environment": EnvironmentState(environment), "dice": dice}
        with FilesRun(Counting(), total_steps=steps, directory=tmp_path, state=state) as run:
            while not run.reached:
                draws.append(environment.rng.random() + dice[0].random())
                run.step_done(epoch=0, batch=run.step + 1)
    said = capfd.readouterr().err

    rng, dice = np.random.default_rng(1), [random.Random(3)]
    assert draws == [rng.random() + dice[0].random() for _ in draws]
    assert "reached as" not in said


def test_generators_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot save the state of a str; generators= takes "):
        FilesRun(Counting(), directory=tmp_path, generators=["seed"])


def test_script_that_changes_its_directory_saves_where_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    files = Counting()
    with FilesRun(files, total_steps=4, directory="c", interval="2 steps") as run:
        os.chdir("elsewhere")
        train(run, files)

    assert [name.step for name in selection.committed_checkpoints(tmp_path / "c")] == [4, 2]


def test_daemon_hears_all_of_it(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=None))
    files = Counting()
    with FilesRun(files, total_steps=3) as run:
        train(run, files)
    restored, committed, done = daemon.wait_for(Restored), daemon.wait_for(Committed), daemon.wait_for(Done)

    assert (restored.step, restored.checkpoint, restored.total_steps) == (0, None, 3)
    assert (committed.step, committed.checkpoint) == (3, "step-0000000003.a1")
    assert done.metrics == {"value": 3.0}


def test_figures_of_numpy_and_more_than_a_message_holds_leave_the_control_thread_alone(
    tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=None))
    many = {f"norm_of_{number}": np.float32(number) for number in range(5000)}
    with FilesRun(Counting(), total_steps=1) as run:
        run.step_done(epoch=0, batch=1, loss=np.float32(1.5), odd=np.nan, **many)
        said = daemon.wait_for(Progress).metrics

    assert said == daemon.wait_for(Done).metrics
    assert said["loss"] == 1.5 and said["norm_of_90"] == 90.0 and len(said) == 99


def test_second_run_of_a_script_goes_on_where_the_first_one_ended(
    tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path, checkpoint_interval=Interval(steps=2)))
    daemon.send(Go(1, restore=None))
    files = Counting()
    with FilesRun(files, total_steps=4) as first:
        train(first, files)
    files = Counting()
    with FilesRun(files, total_steps=8) as second:
        begun_at, held = second.step, float(files.value[0])
        train(second, files)
    daemon.wait_for(Done, among=lambda done: done.step == 8)

    assert (begun_at, held) == (4, 4.0)
    assert [str(name) for name in selection.committed_checkpoints(tmp_path)] == [
        f"step-{step:010d}.a1" for step in (8, 6, 4, 2)
    ]
    assert not daemon.all_of(SaveFailed)


@pytest.mark.parametrize("total_steps", [np.int64(2), 2.0])
def test_counts_of_numpy_are_told_and_saved(total_steps: int, tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=None))
    with FilesRun(Counting(), total_steps=total_steps) as run:
        run.step_done(epoch=np.int64(1), batch=np.int64(3), examples=np.int64(12))
        told = daemon.wait_for(Progress)
        run.step_done(epoch=np.int64(1), batch=np.int64(4), examples=np.int64(16))
    daemon.wait_for(Done)
    begin(Launch())
    with FilesRun(Counting(), directory=tmp_path) as again:
        place = again.epoch, again.batch, again.examples

    assert (told.epoch, told.total_steps) == (1, 2)
    assert place == (1, 4, 16)


def test_stop_is_flushed_answered_and_left_with_143(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=None))
    files = Counting()
    run = FilesRun(files)
    with pytest.raises(SystemExit) as leaving, run:
        daemon.send(Flush(1, id=7, reason="stop", then=Then.STOP))
        while True:
            files.value += 1
            run.step_done(epoch=0, batch=run.step + 1)

    assert leaving.value.code == 143
    committed = daemon.wait_for(Committed)
    assert committed.flushes == (7,)
    assert committed.step == files.value[0]


def test_full_disk_is_reported_and_trained_through(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=None))
    files = Counting(full_at=4)
    with FilesRun(files, total_steps=6, interval="2 steps") as run:
        train(run, files)

    partial = tmp_path / "step-0000000004.a1.partial"
    assert f"cannot save step-0000000004.a1: {partial}: No space left on device" in daemon.wait_for(SaveFailed).error
    assert [name.step for name in selection.committed_checkpoints(tmp_path)] == [6, 2]
    assert not list(tmp_path.glob("*.partial"))


def test_retention_is_the_jobs(tmp_path: Path, begin: Begin) -> None:
    begin(Launch(checkpoint_dir=tmp_path, checkpoint_keep=2))
    files = Counting()
    with FilesRun(files, total_steps=8, interval="2 steps") as run:
        train(run, files)

    assert [name.step for name in selection.committed_checkpoints(tmp_path)] == [8, 6]


def test_damaged_newest_is_set_aside(tmp_path: Path) -> None:
    files = Counting()
    with FilesRun(files, total_steps=4, directory=tmp_path, interval="2 steps") as run:
        train(run, files)
    (tmp_path / "step-0000000004.a1" / "value.npy").write_bytes(b"")
    with FilesRun(Counting(), total_steps=4, directory=tmp_path) as run:
        begun_at = run.step
        run.total_steps = run.step

    assert begun_at == 2
    assert [each.name for each in list_quarantined(tmp_path)] == ["step-0000000004.a1"]


@pytest.mark.parametrize("restored", ["theirs", "prefix"])
def test_checkpoint_of_another_program_exits_with_65(
    restored: str, tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    with FilesRun(Counting(), total_steps=0, directory=tmp_path / "theirs"):
        pass
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "mine"))
    path = tmp_path / "theirs" / "step-0000000000.a1" if restored == "theirs" else tmp_path / "model.ckpt-3"
    daemon.send(Go(1, restore=str(path)))
    with pytest.raises(SystemExit) as leaving, FilesRun(Other()):
        pass

    assert leaving.value.code == 65
    assert "checkpoint" in daemon.wait_for(Failed).error


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_disk_that_fails_at_the_restore_is_a_crash_that_is_tried_again(
    number: int, tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    class Unlucky(Counting):
        def read(self, folder: Path) -> None:
            if fails:
                raise OSError(number, os.strerror(number), str(folder / "value.npy"))
            super().read(folder)

    with FilesRun(Unlucky(), total_steps=0, directory=tmp_path):
        pass
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=str(tmp_path / "step-0000000000.a1")))
    fails = True
    with pytest.raises(OSError, match=os.strerror(number)), FilesRun(Unlucky()):
        pass
    fails = False
    daemon.send(Go(1, restore=str(tmp_path / "step-0000000000.a1")))

    with FilesRun(Unlucky()) as again:  # what it held of the directory is free again
        assert again.step == 0


def test_a_checkpoint_without_the_programs_file_is_anothers_and_one_that_is_gone_is_not(
    tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    class Elsewhere(Counting):
        def read(self, folder: Path) -> None:
            if goes:
                shutil.rmtree(folder)
            np.load(folder / "weights.npy", allow_pickle=False)

    with FilesRun(Elsewhere(), total_steps=0, directory=tmp_path):
        pass
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    for goes, expected in ((False, SystemExit), (True, FileNotFoundError)):  # noqa: B007 - read by the class above
        daemon.send(Go(1, restore=str(tmp_path / "step-0000000000.a1")))
        with pytest.raises(expected), FilesRun(Elsewhere()):
            pass


def test_a_state_that_is_not_finite_is_no_checkpoint_and_ends_the_attempt_as_diverged(
    tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    class Watchful(Counting):
        def write(self, folder: Path) -> None:
            super().write(folder)
            if not np.isfinite(self.value).all():
                raise NotFinite("value is not finite")

    begin(
        Launch(
            control=daemon.control(), checkpoint_dir=tmp_path, checkpoint_interval=Interval(steps=2), on_nan="rollback"
        )
    )
    daemon.send(Go(1, restore=None))
    files = Watchful()
    run = FilesRun(files, total_steps=8)
    with pytest.raises(SystemExit) as leaving, run:
        while not run.reached:
            files.value += 1 if run.step < 3 else np.nan
            run.step_done(epoch=0, batch=run.step + 1, loss=1.0)

    words = daemon.wait_for(Failed)
    assert leaving.value.code == 80
    assert (words.step, words.go_back) == (4, True) and "value is not finite" in words.error
    assert [name.step for name in selection.committed_checkpoints(tmp_path)] == [2]
    assert not list(tmp_path.glob("*.partial"))


def test_without_a_directory_it_says_what_to_give() -> None:
    with pytest.raises(ValueError, match="checkpoint_dir"):
        FilesRun(Counting())


@pytest.mark.slow
def test_the_daemon_is_told_that_a_save_is_no_step(begin: Begin, daemon: DaemonEnd, tmp_path: Path) -> None:
    class Slow(Counting):
        def write(self, folder: Path) -> None:
            daemon.wait_for(Progress, among=lambda said: said.section == "save")
            time.sleep(2.0)
            super().write(folder)

    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=2)))
    daemon.send(Go(1, restore=None))
    with FilesRun(Slow(), total_steps=4) as run:
        for step in (1, 2, 3):
            time.sleep(0.11 * (step == 3))  # so long, and it is worth telling
            run.step_done(epoch=0, batch=step)
        after = daemon.wait_for(Progress, among=lambda said: said.step == 3 and said.section is None)
        run.step_done(epoch=0, batch=4)

    assert after.step_s is not None
    assert after.step_s < 1.0, "what a save takes is no step's time"


def test_position_in_examples_comes_back(tmp_path: Path) -> None:
    with FilesRun(Counting(), directory=tmp_path) as run:
        run.step_done(epoch=2, batch=1, examples=48)
    with FilesRun(Counting(), directory=tmp_path) as run:
        found = run.epoch, run.batch, run.examples

    assert found == (2, 1, 48)


# --- what the bits depend on ---------------------------------------------------------------------------------------


class Newer(Counting):
    """The same program with a newer library, and a knob that stands elsewhere."""

    versions: Mapping[str, str] = {"counting": "2"}
    topology: Mapping[str, str | int | bool] = {"knob": 4}


Newer.__name__ = Counting.__name__  # it reads its checkpoints


@pytest.mark.parametrize(
    ("files", "changed"), [(Counting(), ()), (Newer(), ("counting is 2, was 1", "knob is 4, was 3"))]
)
def test_relaunch_under_other_conditions_says_so_before_it_trains(
    files: Counting, changed: tuple[str, ...], tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    with FilesRun(Counting(), total_steps=2, directory=tmp_path) as run:
        train(run, Counting())
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=str(tmp_path / "step-0000000002.a1")))
    with FilesRun(files):
        restored = daemon.wait_for(Restored)

    assert restored.changed == changed


def test_conditions_are_known_from_before_the_first_step_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FilesRun(Counting(), directory=tmp_path)
    with pytest.raises(ZeroDivisionError), run:
        raise ZeroDivisionError  # as a kill does: nothing is saved
    found = conditions.recorded_conditions(tmp_path)
    with pytest.raises(ZeroDivisionError), FilesRun(Newer(), directory=tmp_path):
        raise ZeroDivisionError

    assert not list(tmp_path.glob("step-*"))
    assert found is not None
    assert (found["counting"], found["knob"], found["numpy"]) == ("1", 3, np.__version__)
    assert "not to the same bits: counting is 2, was 1; knob is 4, was 3" in capsys.readouterr().err


@pytest.mark.parametrize("does", [True, False])
def test_script_that_does_not_do_what_deterministic_promises_is_told(
    does: bool, tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Counting()
    files.topology = {"deterministic": does}
    begin(Launch(checkpoint_dir=tmp_path, deterministic=True))
    with FilesRun(files):
        pass

    assert ("the job sets deterministic, but the script does not ensure it" in capsys.readouterr().err) is not does


# --- saves beside training, and full disks -------------------------------------------------------------------------


class Copied(Counting):
    """It can be written while training goes on; each write waits until it `may`."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.fails = False

    def copied(self) -> Callable[[Path], None]:
        value = self.value.copy()

        def write(folder: Path) -> None:
            assert self.may.wait(10)
            if self.fails:
                raise OSError(5, "Input/output error")
            np.save(folder / "value.npy", value)

        return write


def test_training_goes_on_beside_a_save_which_holds_the_step_it_was_taken_at(
    tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=2)))
    daemon.send(Go(1, restore=None))
    files = Copied()
    with FilesRun(files, total_steps=4) as run:
        for step in (1, 2, 3):
            files.value += 1
            run.step_done(epoch=0, batch=step)
        assert not selection.committed_checkpoints(tmp_path / "c")
        files.may.set()
        saved = daemon.wait_for(Committed)
        files.value += 1
        run.step_done(epoch=0, batch=4)

    folder = tmp_path / "c" / saved.checkpoint
    assert (saved.step, np.load(folder / "value.npy")[0]) == (2, 2)
    assert json.loads((folder / layout.STATE).read_text())["batch"] == 2
    assert manifest.verify_checkpoint(folder).step == 2


def test_what_is_found_beside_a_save_is_in_the_report_of_the_next_one(
    tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=1)))
    daemon.send(Go(1, restore=None))
    files = Copied()
    with FilesRun(files, total_steps=2) as run:
        run._checkpoints.report_findings([Finding("an order", "keep it")], 0)
        run.step_done(epoch=0, batch=1)
        run._checkpoints.report_findings([Finding("a rate", "keep it")], 1)
        files.may.set()
        first = daemon.wait_for(Committed)
        run.step_done(epoch=0, batch=2)

    second = daemon.wait_for(Committed, among=lambda committed: committed.step == 2)
    assert first.left_out == ("an order",)
    assert "a rate" in second.left_out


def test_flush_of_the_step_in_flight_is_answered_by_that_save(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=1)))
    daemon.send(Go(1, restore=None))
    files = Copied()
    with pytest.raises(ZeroDivisionError), FilesRun(files) as run:
        run.step_done(epoch=0, batch=1)
        daemon.send(Flush(1, id=4, reason="operator", then=Then.GO_ON))
        wait_until(lambda: run._attempt.requests.has_save_request, "it is asked to save")
        run._checkpoints.on_step_boundary(1, run._step_boundary)
        files.may.set()
        answered = daemon.wait_for(Committed)
        raise ZeroDivisionError

    assert answered.flushes == (4,)
    assert [name.step for name in selection.committed_checkpoints(tmp_path / "c")] == [1]


def test_flush_of_a_step_that_is_saved_says_how_long_ago(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=1)))
    daemon.send(Go(1, restore=None))
    files = Copied()
    files.may.set()
    with pytest.raises(ZeroDivisionError), FilesRun(files) as run:
        run.step_done(epoch=0, batch=1)
        saved = daemon.wait_for(Committed)
        daemon.send(Flush(1, id=4, reason="operator", then=Then.GO_ON))
        wait_until(lambda: run._attempt.requests.has_save_request, "it is asked to save")
        run._checkpoints.on_step_boundary(1, run._step_boundary)
        answered = daemon.wait_for(Committed, among=lambda committed: committed.flushes == (4,))
        raise ZeroDivisionError

    assert saved.ago_s is None
    assert answered.checkpoint == saved.checkpoint
    assert answered.ago_s is not None and answered.ago_s < 60


def test_a_restored_checkpoint_is_as_old_as_its_manifest_says() -> None:
    assert 3600 <= restored_checkpoint(7, "step-0000000007.a1", 1, time.time() - 3600).age_s < 3660
    assert restored_checkpoint(7, "step-0000000007.a1", 1, time.time() + 3600).age_s < 60


def test_error_of_a_save_beside_training_is_told_at_once(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=1)))
    daemon.send(Go(1, restore=None))
    files = Copied()
    files.fails = True
    files.may.set()
    with pytest.raises(ZeroDivisionError), FilesRun(files) as run:
        run.step_done(epoch=0, batch=1)
        told = daemon.wait_for(SaveFailed)  # and no second step was done
        raise ZeroDivisionError

    assert "Input/output error" in told.error
    assert not list((tmp_path / "c").glob("step-*"))


@pytest.mark.parametrize("by", ["flush", "signal"])
def test_save_before_a_stop_is_tried_again(
    by: str, tmp_path: Path, begin: Begin, daemon: DaemonEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may be full for a moment only, and there is nothing that could be lost by waiting."""

    class Fails(Counting):
        tries = 0

        def write(self, folder: Path) -> None:
            self.tries += 1
            if self.tries < 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write(folder)

    monkeypatch.setattr(scheduler, "LAST_SAVE_PAUSES_S", (0.01, 0.01))
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c"))
    daemon.send(Go(1, restore=None))
    with pytest.raises(SystemExit) as leaving, FilesRun(Fails()) as run:
        if by == "flush":
            daemon.send(Flush(1, id=4, reason="notice", then=Then.STOP))
        else:
            signal.raise_signal(signal.SIGTERM)
        wait_until(lambda: run._attempt.requests.has_save_request, "it is asked to save")
        run.step_done(epoch=0, batch=1)

    assert leaving.value.code == WorkerExit.STOPPED
    assert daemon.wait_for(Committed).flushes == ((4,) if by == "flush" else ())
    assert len(daemon.all_of(SaveFailed)) == 2
    assert [name.step for name in selection.committed_checkpoints(tmp_path / "c")] == [1]


def test_save_before_a_stop_is_not_tried_beyond_its_deadline(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    """So the worker itself says why it could not save, before it is killed."""
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c"))
    daemon.send(Go(1, restore=None))
    with pytest.raises(SystemExit) as leaving, FilesRun(files := Counting(full_at=1)) as run:
        daemon.send(Flush(1, id=4, reason="stop", then=Then.STOP, deadline_s=1.5))
        wait_until(lambda: run._attempt.requests.has_save_request, "it is asked to save")
        files.value += 1
        began_at = time.monotonic()
        run.step_done(epoch=0, batch=1)

    assert leaving.value.code == WorkerExit.SAVE_FAILED
    assert time.monotonic() - began_at < 3.0, "the second pause, 2 s, would end after the deadline"
    assert "told to stop" in daemon.wait_for(Failed).error


@pytest.mark.integration
@pytest.mark.parametrize("says", ["errno", "nothing"])
@pytest.mark.parametrize("allowed", [True, False])
def test_older_checkpoints_make_room_on_a_full_disk_if_they_may(
    allowed: bool, says: str, begin: Begin, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NumPy raises for a full disk has no number."""

    class Large(Counting):
        def write(self, folder: Path) -> None:
            if says == "errno":
                (folder / "value.npy").write_bytes(b"x" * 96_000)
            else:
                np.save(folder / "value.npy", np.zeros(12_000))

    monkeypatch.setattr(scheduler, "LAST_SAVE_PAUSES_S", ())
    subprocess.run(["mount", "-o", "remount,size=400k", small_disk], check=True)  # for some of eight
    begin(Launch(checkpoint_dir=small_disk / "c", checkpoint_keep=20, checkpoint_make_room=allowed))
    files = Large()
    run = FilesRun(files, total_steps=8, interval="1 steps")
    if allowed:
        with run:
            train(run, files)
    else:
        with pytest.raises(SystemExit) as leaving, run:
            train(run, files)
        assert leaving.value.code == 74

    steps = [name.step for name in selection.committed_checkpoints(small_disk / "c")]
    assert 2 <= len(steps) < 8
    assert steps == (list(range(8, 8 - len(steps), -1)) if allowed else list(range(len(steps), 0, -1)))
    assert not list((small_disk / "c").glob("*.partial"))


def test_a_lack_of_memory_for_a_copy_has_training_wait_and_is_said_once(
    tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    class Tight(Counting):
        def copied(self) -> Callable[[Path], None]:
            raise MemoryError("cannot allocate 2 GiB")

    begin(Launch(checkpoint_dir=tmp_path, checkpoint_interval=Interval(steps=1)))
    files = Tight()
    with FilesRun(files, total_steps=3) as run:
        train(run, files)

    assert [name.step for name in selection.committed_checkpoints(tmp_path)] == [3, 2, 1]
    assert capsys.readouterr().err.count("cannot allocate 2 GiB") == 1


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """None can be started: each would need more memory for its stack than there are addresses."""
    before = threading.stack_size(1 << 50)
    yield
    threading.stack_size(before)


def test_training_waits_for_saves_where_no_thread_can_be_started(
    tmp_path: Path, begin: Begin, no_more_threads: None
) -> None:
    begin(Launch(checkpoint_dir=tmp_path, checkpoint_interval=Interval(steps=1)))
    files = Copied()
    files.may.set()
    with FilesRun(files, total_steps=3) as run:
        for step in (1, 2, 3):
            files.value += 1
            run.step_done(epoch=0, batch=step)
            assert selection.committed_checkpoints(tmp_path)[0].step == step

    assert [np.load(tmp_path / str(name) / "value.npy")[0] for name in selection.committed_checkpoints(tmp_path)] == [
        3,
        2,
        1,
    ]


def test_an_error_while_the_copy_is_made_is_trained_through(tmp_path: Path, begin: Begin, daemon: DaemonEnd) -> None:
    class Failing(Counting):
        def copied(self) -> Callable[[Path], None]:
            raise OSError("device is busy")

    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=2)))
    daemon.send(Go(1, restore=None))
    files = Failing()
    with FilesRun(files, total_steps=3) as run:
        train(run, files)

    assert "cannot save step-0000000002.a1: device is busy" in daemon.wait_for(SaveFailed).error
    assert [name.step for name in selection.committed_checkpoints(tmp_path / "c")] == [3]


@pytest.mark.parametrize("kind", [MemoryError, ValueError])
def test_an_error_of_the_programs_own_on_the_saves_thread_is_answered_and_leaves_nothing(
    kind: type[Exception], tmp_path: Path, begin: Begin, daemon: DaemonEnd
) -> None:
    class Failing(Counting):
        def copied(self) -> Callable[[Path], None]:
            def write(folder: Path) -> None:
                (folder / "value.npy").write_bytes(b"half")
                assert asked.wait(30)
                raise kind("it went wrong")

            return write

    asked = threading.Event()
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=1)))
    daemon.send(Go(1, restore=None))
    run = FilesRun(Failing())
    with pytest.raises(ZeroDivisionError if kind is MemoryError else kind, match=r"on purpose|wrong"), run:
        run.step_done(epoch=0, batch=1)
        daemon.send(Flush(1, id=4, reason="operator", then=Then.GO_ON))
        wait_until(lambda: run._attempt.requests.has_save_request, "it is asked to save")
        run._checkpoints.on_step_boundary(1, run._step_boundary)
        asked.set()
        answered = daemon.wait_for(SaveFailed)
        assert not list((tmp_path / "c").glob("step-*"))
        run._checkpoints._wait_for_save()
        raise ZeroDivisionError("on purpose")

    assert answered.flushes == (4,)
    assert "cannot save step-0000000001.a1" in answered.error and "it went wrong" in answered.error


def test_a_state_that_is_not_finite_does_not_hide_the_scripts_own_error(tmp_path: Path, begin: Begin) -> None:
    class Diverging(Copied):
        def copied(self) -> Callable[[Path], None]:
            def write(folder: Path) -> None:
                assert self.may.wait(30)
                raise NotFinite("value is not finite")

            return write

    begin(Launch(checkpoint_dir=tmp_path, checkpoint_interval=Interval(steps=1), on_nan="rollback"))
    files = Diverging()
    with pytest.raises(ZeroDivisionError), FilesRun(files) as run:
        run.step_done(epoch=0, batch=1)
        files.may.set()
        raise ZeroDivisionError


def test_an_end_that_fails_hides_no_error_of_the_script_and_lets_go_of_all(
    tmp_path: Path, begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Copied):
        def copied(self) -> Callable[[Path], None]:
            def write(folder: Path) -> None:
                assert self.may.wait(30)
                raise ValueError("it went wrong")

            return write

    begin(Launch(checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=1)))
    files = Failing()
    run = FilesRun(files, summaries=tmp_path / "summaries")
    with pytest.raises(ZeroDivisionError), run:
        run.step_done(epoch=0, batch=1)
        files.may.set()
        raise ZeroDivisionError

    assert "cannot end the run cleanly after that error: ValueError: it went wrong" in capsys.readouterr().err
    assert run._tensorboard is None
    with FilesRun(Counting(), directory=tmp_path / "c"):
        """The directory is free again."""


def test_prepare_seeds_both_generators() -> None:
    prepare(5)
    first = random.random(), np.random.rand()
    prepare(5)

    assert (random.random(), np.random.rand()) == first
