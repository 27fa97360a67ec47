"""Jobs of every kind that writes checkpoints, each trained and saved one step at a time; what step N saves is N."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import tensorflow as tf

import worker
from examples import plain
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, Flush, Flushing, SaveFailed, Then
from tests.worker.daemon_end import DaemonEnd
from worker.files import FilesRun, Unfit

_VALUE = ".ATTRIBUTES/VARIABLE_VALUE"


class Job(Protocol):
    """One that trains."""

    step: int

    def save(self) -> type[Committed | SaveFailed]:
        """Trains a step and saves it, after all that the save before it still had to do; what the daemon heard."""


@dataclass(frozen=True)
class Kind:
    """`begin`: a job from step 0 on, until the block ends. `held`: the step whose values a checkpoint's files hold."""

    begin: Callable[[DaemonEnd, Launch], AbstractContextManager[Job]]
    held: Callable[[Path], int]


class _OfRun:
    def __init__(self, run: Any, daemon: DaemonEnd, train: Callable[[], None]) -> None:
        self._run, self._daemon, self._train = run, daemon, train

    @property
    def step(self) -> int:
        return int(self._run.step)

    def save(self) -> type[Committed | SaveFailed]:
        number = self.step + 1
        self._daemon.send(Flush(1, id=number, reason="operator", then=Then.GO_ON))
        self._daemon.wait_for(Flushing, among=lambda said: said.id == number)
        self._train()
        return type(self._daemon.wait_for(Committed | SaveFailed, among=lambda said: number in said.flushes))


# --- TensorFlow ----------------------------------------------------------------------------------------------------


@contextmanager
def _tensorflow(daemon: DaemonEnd, launch: Launch) -> Iterator[Job]:
    count = tf.Variable(0, dtype=tf.int64)
    with worker.Run(tf.train.Checkpoint(count=count)) as run:
        yield _OfRun(run, daemon, lambda: (count.assign_add(1), run.step_done()))


def _held_by_tensorflow(path: Path) -> int:
    return int(tf.train.load_checkpoint(str(path / "ckpt")).get_tensor(f"count/{_VALUE}"))


# --- with values of its own on each replica ------------------------------------------------------------------------


@contextmanager
def _replicas(daemon: DaemonEnd, launch: Launch) -> Iterator[Job]:
    strategy = worker.strategy(replicas=2)
    with strategy.scope():
        norm = tf.keras.layers.BatchNormalization()
        model = tf.keras.Sequential([tf.keras.Input((1,)), norm])

    def train() -> None:
        for copy in norm.moving_mean.value.values:
            copy.assign([1.0 + run.step + (0.5 if copy is norm.moving_mean.value.values[1] else 0.0)])
        run.step_done()

    with worker.Run(tf.train.Checkpoint(model=model), strategy=strategy) as run:
        yield _OfRun(run, daemon, train)


def _held_by_replicas(path: Path) -> int:
    first, second = (tf.train.load_checkpoint(str(path / prefix)) for prefix in ("ckpt", "replicas"))
    (name,) = (each for each in first.get_variable_to_shape_map() if "moving_mean" in each)
    mean, other = float(first.get_tensor(name)[0]), float(second.get_tensor(f"copies/1/{_VALUE}")[0])
    assert other == mean + 0.5, "each replica's own"
    return int(mean)


# --- files of the program's own, as of PyTorch or TF1 --------------------------------------------------------------


class _Counting:
    """Its files are written while training waits."""

    versions: Mapping[str, str] = {}
    topology: Mapping[str, str | int | bool] = {}

    def __init__(self) -> None:
        self.value = 0

    def write(self, folder: Path) -> None:
        _write(folder, self.value)

    def read(self, folder: Path) -> None:
        self.value = _held_by_files(folder)

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint")


class _Copied(_Counting):
    """Its files can be written while training goes on."""

    def copied(self) -> Callable[[Path], None]:
        value = self.value
        return lambda folder: _write(folder, value)


def _write(folder: Path, value: int) -> None:
    for name in ("one", "other"):
        (folder / name).write_bytes(np.full(10_000, value).tobytes())


@contextmanager
def _files(daemon: DaemonEnd, launch: Launch, kind: type[_Counting] = _Counting) -> Iterator[Job]:
    files = kind()

    def train() -> None:
        files.value += 1
        run.step_done(epoch=0, batch=files.value)

    with FilesRun(files) as run:
        yield _OfRun(run, daemon, train)


def _held_by_files(path: Path) -> int:
    values = {int(each) for name in ("one", "other") for each in np.frombuffer((path / name).read_bytes(), np.int64)}
    (value,) = values
    return value


# --- a program that does it all by itself --------------------------------------------------------------------------


class _Plain:
    def __init__(self, daemon: DaemonEnd, directory: Path) -> None:
        self._heard, self._directory = daemon, directory
        self._pipe, self._network = plain.Daemon(), plain.Network()
        self.step = 0

    def save(self) -> type[Committed | SaveFailed]:
        self.step += 1
        self._network.weights["b1"] += 1
        plain.save(self._pipe, self._directory, self._network, self.step, [self.step])
        return type(self._heard.wait_for(Committed | SaveFailed, among=lambda said: self.step in said.flushes))


@contextmanager
def _plain(daemon: DaemonEnd, launch: Launch) -> Iterator[Job]:
    assert launch.checkpoint_dir is not None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in launch.to_environment().items():
            patch.setenv(name, value)
        plain.make_folder(launch.checkpoint_dir)
        yield _Plain(daemon, launch.checkpoint_dir)


def _held_by_plain(path: Path) -> int:
    with np.load(path / "state.npz", allow_pickle=False) as found:
        return int(found["b1"][0])


KINDS = {
    "tensorflow": Kind(_tensorflow, _held_by_tensorflow),
    "replicas": Kind(_replicas, _held_by_replicas),
    "files": Kind(_files, _held_by_files),
    "files beside": Kind(partial(_files, kind=_Copied), _held_by_files),
    "plain": Kind(_plain, _held_by_plain),
}
