"""Ways to save one Keras model with Adam: stepkeeper's, TensorFlow's and Keras', in turn in one process."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import worker
from bench.saves_measure import Begun, timed
from supervisor.protocol import durable
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Committed, FromWorker, Progress, SaveFailed
from worker.checkpoint import restore
from worker.checkpoint.tensorflow_writer import StepBoundary as Known
from worker.checkpoint.tensorflow_writer import TensorFlowWriter
from worker.process.requests import SaveRequest
from worker.process.startup import current_attempt
from worker.saving.commit import CheckpointOrigin
from worker.state.state_file import Position

BATCH = 16
BYTES_OF_PARAMETER = 12  # float32, and Adam's two slots
LAYERS = 4
KEPT = 2


class Heard:
    """The end of the messages: keeps the last answer."""

    def __init__(self) -> None:
        self.committed: Committed | None = None

    def send_message(self, message: FromWorker) -> None:
        if isinstance(message, SaveFailed):
            raise RuntimeError(message.error)
        if isinstance(message, Committed):
            self.committed = message

    def send_progress(self, message: Progress) -> None:
        """Does nothing: not measured."""

    def show_message(self, text: str) -> None:
        print(text)

    def drain(self, timeout: float) -> bool:
        return True


@dataclass
class Way:
    """`save` at a step boundary; `restore` the newest into the same objects, as the system does at a start, after
    `prove` has read all of it. For a supervised job the daemon proves, while the worker imports TensorFlow."""

    name: str
    save: Callable[[], float | Begun]
    restore: Callable[[], object] | None
    prove: Callable[[], object] | None = None


class Bench:
    """One model of `size_mb` of state, trained on noise: every variable changes in every step."""

    def __init__(self, size_mb: float, folder: Path) -> None:
        self.folder = folder
        self.size_bytes = int(size_mb * 1e6)
        width = int((size_mb * 1e6 / BYTES_OF_PARAMETER / LAYERS) ** 0.5)
        layers = [keras.Input((width,)), *(keras.layers.Dense(width) for _ in range(LAYERS))]
        self.model, self.optimizer = keras.Sequential(layers), keras.optimizers.Adam(1e-4)
        self.model.compile(self.optimizer)  # BackupAndRestore saves the optimizer that the model knows
        self.optimizer.build(self.model.trainable_variables)
        self.tracked = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
        self.step = self._step(tf.random.normal([BATCH, width]))
        present = current_attempt()
        self.heard = present.reporter = Heard()
        present.launch = Launch(checkpoint_dir=folder / "beside", checkpoint_keep=KEPT)
        self.requests = present.requests
        self.run = worker.Run(self.tracked, interval="1000000 steps")

    def _step(self, inputs: Any) -> Callable[[], Any]:
        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.model(inputs)))
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return step

    def stepped(self) -> float:
        """Makes a step. Returns the seconds that it and its boundary took."""
        began = time.perf_counter()
        self.step().numpy()
        self.run.step_done()
        return time.perf_counter() - began

    def ways(self) -> list[Way]:
        """All of them; call it inside of `run`."""
        return [
            self._beside(),
            self._waiting(),
            *self._manager(),
            self._manager_async(),
            self._preemption_handler(),
            self._backup(),
            Way("floor: write + fsync", self._write_and_sync, None),
            Way("floor: memcpy", self._memcpy(), None),
        ]

    def _beside(self) -> Way:
        def save() -> Begun:
            self.heard.committed = None
            self.requests.add_save_request(SaveRequest((1,)))  # served at the end of the next step
            return Begun(lambda: self.heard.committed is not None, lambda: self._committed().save_s)

        return self._ours("stepkeeper", save, self.folder / "beside")

    def _committed(self) -> Committed:
        assert self.heard.committed is not None
        return self.heard.committed

    def _waiting(self) -> Way:
        folder = self.folder / "waiting"
        folder.mkdir()
        writer = TensorFlowWriter(
            self.tracked, folder, CheckpointOrigin("bench", 1, {}, {}), RetentionPolicy(checkpoint_keep=KEPT), 1
        )

        def save() -> float:
            began = time.perf_counter()
            proof = writer.commit(writer.capture(Known(self.run.step, Position(), {}, {}), copied=False))
            took_s = time.perf_counter() - began
            writer.tidy_up(proof.name)
            return took_s

        return self._ours("stepkeeper, training waits", save, folder)

    def _ours(self, name: str, save: Callable[[], float | Begun], folder: Path) -> Way:
        def newest() -> Path:
            return folder / str(selection.committed_checkpoints(folder)[0])

        return Way(
            name,
            save,
            lambda: restore.restore_checkpoint(self.tracked, newest(), 1),
            lambda: manifest.verify_checkpoint(newest()),
        )

    def _manager(self) -> list[Way]:
        manager = tf.train.CheckpointManager(self.tracked, str(self.folder / "manager"), max_to_keep=KEPT)

        def synced() -> None:
            written = Path(manager.save())
            for path in written.parent.glob(f"{written.name}.*"):
                durable.sync_file(path)
            durable.sync_folder(written.parent)

        return [
            Way("CheckpointManager", lambda: timed(manager.save), manager.restore_or_initialize),
            Way("CheckpointManager + fsync", lambda: timed(synced), None),
        ]

    def _manager_async(self) -> Way:
        """Of the raw variables: with Keras 3 objects its second save fails (`keras_objects_async`)."""
        variables = [*self.model.variables, *self.optimizer.variables]
        tracked = tf.train.Checkpoint(state={f"{number}": variable.value for number, variable in enumerate(variables)})
        manager = tf.train.CheckpointManager(tracked, str(self.folder / "async"), max_to_keep=KEPT)

        def save() -> Begun:
            written, at = threading.Event(), [0.0]

            def note() -> None:
                at[0] = time.perf_counter()
                written.set()

            # fresh options each time: the manager adds a callback to those it gets
            options = tf.train.CheckpointOptions(enable_async=True, experimental_write_callbacks=[note])
            began = time.perf_counter()
            manager.save(options=options)
            return Begun(written.is_set, lambda: at[0] - began)

        def again() -> None:
            tracked.sync()
            manager.restore_or_initialize()

        return Way("CheckpointManager async", save, again)

    def _preemption_handler(self) -> Way:
        """Told by SIGTERM as on a host that goes away; its handler is ours too for the time of the bench."""
        manager = tf.train.CheckpointManager(self.tracked, str(self.folder / "handler"), max_to_keep=KEPT)
        config = tf.distribute.experimental.TerminationConfig(exit_fn=lambda: None)  # or it would end the process
        handler = tf.distribute.experimental.PreemptionCheckpointHandler(None, manager, termination_config=config)

        def save() -> float:
            began = time.perf_counter()
            os.kill(os.getpid(), signal.SIGTERM)
            saved = manager.latest_checkpoint
            while manager.latest_checkpoint == saved:
                handler.save_checkpoint_if_preempted()
            took_s = time.perf_counter() - began
            handler._received_own_sigterm.clear()
            handler._received_checkpoint_step.clear()
            return took_s

        return Way("PreemptionCheckpointHandler", save, manager.restore_or_initialize)

    def _backup(self) -> Way:
        backup = keras.callbacks.BackupAndRestore(str(self.folder / "backup"), double_checkpoint=True)
        backup.set_model(self.model)
        backup.on_train_begin()

        return Way("BackupAndRestore", lambda: timed(lambda: backup.on_epoch_end(1)), backup.on_train_begin)

    def _write_and_sync(self) -> float:
        content = memoryview(os.urandom(1 << 20) * (self.size_bytes // (1 << 20) + 1))[: self.size_bytes]
        path = self.folder / "floor"
        began = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        took_s = time.perf_counter() - began
        path.unlink()
        return took_s

    def _memcpy(self) -> Callable[[], float]:
        source, target = bytearray(self.size_bytes), bytearray(self.size_bytes)

        def copy() -> None:
            target[:] = source

        return lambda: timed(copy)


def keras_objects_async(folder: Path) -> str:
    """What TensorFlow's async save does when it is given Keras 3 objects: the error of its second save, or nothing."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), str(folder / "keras-async"), max_to_keep=2)
    try:
        for _ in range(3):
            manager.save(options=tf.train.CheckpointOptions(enable_async=True))
    except ValueError as error:
        return f"fails at its second save of Keras objects: {' '.join(str(error).split())[:120]}"
    return ""
