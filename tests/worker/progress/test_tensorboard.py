"""After restarts, TensorBoard's own reader finds each step once, with the metrics of an undisturbed run."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, Restored
from worker.files import FilesRun, Unfit
from worker.process.reporting import ConsoleReporter
from worker.progress import event_file
from worker.progress.tensorboard import TensorBoardWriter

pytestmark = pytest.mark.tensorflow  # TensorBoard's reader takes seconds to import

Begin = Callable[[Launch], None]


class Number:
    """A state of one number."""

    def __init__(self) -> None:
        self.value = 0.0
        self.versions: dict[str, str] = {}
        self.topology: dict[str, str | int | bool] = {}

    def write(self, folder: Path) -> None:
        (folder / "number").write_text(repr(self.value))

    def read(self, folder: Path) -> None:
        self.value = float((folder / "number").read_text())

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("no")


class Killed(BaseException):
    pass


def train(folder: Path, until: int, killed_at: int | None = None) -> None:
    """Trains like a process that is killed after `killed_at` steps."""
    state = Number()
    run = FilesRun(
        state, total_steps=until, directory=folder / "c", interval="5 steps", summaries=folder / "t", summary_every=1
    )
    try:
        with run:
            while not run.reached:
                state.value = state.value * 0.9 + run.step
                run.step_done(epoch=0, batch=run.step + 1, loss=state.value)
                if run.step == killed_at:
                    raise Killed
    except Killed:
        pass


def curve(folder: Path, tag: str = "loss") -> list[tuple[int, float]]:
    reader = EventAccumulator(str(folder / "t"), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return [(scalar.step, scalar.value) for scalar in reader.Scalars(tag)]


@pytest.fixture(autouse=True)
def _alone(begin: Begin) -> None:
    begin(Launch())


@pytest.mark.slow  # many durable saves
def test_each_step_appears_once_after_kills_and_restarts(tmp_path: Path) -> None:
    train(tmp_path / "calm", 24)
    for killed_at in (3, 4, 13, 22, 22):
        train(tmp_path / "rough", 24, killed_at)
    train(tmp_path / "rough", 24)

    assert [step for step, _ in curve(tmp_path / "rough")] == list(range(1, 25))
    assert curve(tmp_path / "rough") == curve(tmp_path / "calm")


def test_incomplete_record_hides_no_later_record(tmp_path: Path) -> None:
    train(tmp_path, 20, 7)
    (written,) = (tmp_path / "t").iterdir()
    written.write_bytes(written.read_bytes()[:-5])
    train(tmp_path, 20)

    assert [step for step, _ in curve(tmp_path)] == list(range(1, 21))


def test_restarts_and_saves_are_marked(tmp_path: Path) -> None:
    train(tmp_path, 12, 7)
    train(tmp_path, 12)
    reader = EventAccumulator(str(tmp_path / "t"), size_guidance={"tensors": 0, "scalars": 0})
    reader.Reload()
    texts = [tensor.tensor_proto.string_val[0].decode() for tensor in reader.Tensors("stepkeeper/restarts")]

    assert texts == [
        "attempt 1 begins at step 0",
        "attempt 2 continues from step-0000000005.a1 at step 5",
    ]
    assert [step for step, _ in curve(tmp_path, "stepkeeper/save_s")] == [5, 10, 12]
    assert all(each > 0 for _, each in curve(tmp_path, "stepkeeper/steps_per_s"))


def test_failing_disk_ends_the_summaries_but_not_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_text("a file where the folder should be")

    train(tmp_path, 10)

    assert "cannot write summaries for TensorBoard" in capsys.readouterr().err
    assert any((tmp_path / "c").glob("step-0000000010*"))


def test_metric_beyond_the_range_of_float32_becomes_infinite(tmp_path: Path) -> None:
    with FilesRun(Number(), total_steps=2, directory=tmp_path / "c", summaries=tmp_path / "t", summary_every=1) as run:
        run.step_done(epoch=0, batch=1, perplexity=1e40, slope=-1e300)
        run.step_done(epoch=0, batch=2, perplexity=8.0, slope=0.5)

    assert [value for _, value in curve(tmp_path, "perplexity")] == [np.inf, 8.0]
    assert [value for _, value in curve(tmp_path, "slope")] == [-np.inf, 0.5]


def test_tag_that_is_not_valid_utf8_is_written_with_a_question_mark(tmp_path: Path) -> None:
    with FilesRun(Number(), total_steps=1, directory=tmp_path / "c", summaries=tmp_path / "t", summary_every=1) as run:
        run.step_done(epoch=0, batch=1, **{"loss_of_caf\udce9": 1.0})

    assert [value for _, value in curve(tmp_path, "loss_of_caf?")] == [1.0]


class Heard(ConsoleReporter):
    """The real reporter. `meanwhile`: what another thread does while a message is shown."""

    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def show_message(self, text: str) -> None:
        self.remarks.append(text)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


def on_a_failing_disk(folder: Path) -> tuple[TensorBoardWriter, Heard]:
    """A writer whose file fails: it is a pipe that can't be synced and has no reader."""
    heard = Heard()
    board = TensorBoardWriter(folder, heard, every=1)
    board.send_message(Restored(1, 0, None, 0.0))
    (path,) = folder.iterdir()
    (opened,) = [each for each in Path("/proc/self/fd").iterdir() if each.exists() and each.samefile(path)]
    reading, writing = os.pipe()
    os.dup2(writing, int(opened.name))
    os.close(writing)
    os.close(reading)
    return board, heard


def test_failing_sync_at_the_end_is_reported_and_not_raised(tmp_path: Path) -> None:
    board, heard = on_a_failing_disk(tmp_path)

    assert board.close() is heard
    assert [remark.partition(":")[0] for remark in heard.remarks[1:]] == ["cannot write more summaries for TensorBoard"]


def test_step_and_save_may_fail_at_the_same_time(tmp_path: Path) -> None:
    board, heard = on_a_failing_disk(tmp_path)
    heard.meanwhile = lambda: board.send_message(Committed(1, 1, "step-0000000001.a1", 1, 0.1, 0.1))

    board.write_step(1, {"loss": 1.0}, {})

    assert heard.remarks


@pytest.mark.parametrize("number", [0, 127, 128, 300, 2**40, 2**62])
def test_numbers_are_valid_protocol_buffers(number: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event.FromString(struct.pack("<Bd", 9, 1.5) + event_file._varint(2, number))

    assert (event.step, event.wall_time) == (number, 1.5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_replicas_have_curves_of_their_own(two_replicas, tmp_path: Path) -> None:
    import worker
    from tests.worker import training

    def trained(until: int) -> None:
        tracked = training.build(two_replicas)
        with worker.Run(
            tracked, strategy=two_replicas, total_steps=until, directory=tmp_path / "c", interval="4 steps",
            summaries=tmp_path / "t", summary_every=2,
        ) as run:  # fmt: skip
            training.train(run, tracked, two_replicas)

    trained(6)
    trained(10)

    first, second = (dict(curve(tmp_path, f"loss/replica-{number}")) for number in (0, 1))
    mean = dict(curve(tmp_path))
    assert list(first) == list(second) == list(mean) == [2, 4, 6, 8, 10]
    assert all(np.isclose(mean[step], (first[step] + second[step]) / 2) for step in mean)
    assert first != second
    assert len(curve(tmp_path, "stepkeeper/examples_per_s")) >= 3
