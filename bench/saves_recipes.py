"""Restores and saves with each system as its documentation says; for bench/saves_harm.py.

Each is given its best: as many checkpoints kept as it can keep, a backup of the backup. Imports happen in `prepare`,
so that this file can be read where only one of the systems is installed.
"""

import os
import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

KEPT = 3


class Recipe(ABC):
    """One array of `size_mb` (and what the system itself adds): `pattern` plus the number of the step, everywhere."""

    @staticmethod
    @abstractmethod
    def prepare() -> None:
        """Imports what the recipe needs without using it: starts are forks of this process."""

    @abstractmethod
    def __init__(self, folder: Path, size_mb: float) -> None: ...

    @abstractmethod
    def restored(self) -> int:
        """Restores as a start does. Returns the step, 0 if there is no checkpoint."""

    @abstractmethod
    def values(self) -> set[float]:
        """The values of the array minus the pattern: one number if all of it is of the same step."""

    @abstractmethod
    def save(self, step: int) -> None:
        """Sets the array and saves it."""

    def close(self) -> None:  # noqa: B027 - most have nothing to do here
        """Waits until everything is written."""

    @staticmethod
    @abstractmethod
    def parts(folder: Path) -> dict[str, Path]:
        """Of the newest checkpoint: `data`, `index` and, if it has one, `pointer`."""

    @staticmethod
    @abstractmethod
    def known(folder: Path) -> set[Path]:
        """What belongs there."""


def pattern(count: int) -> Any:
    """Whole numbers that no compression makes small, and that float32 holds exactly with a step added."""
    import numpy as np

    return np.random.default_rng(0).integers(0, 1 << 20, count).astype("float32")


def beyond(array: Any) -> set[float]:
    flat = array.reshape(-1)
    return set((flat - pattern(flat.size)).tolist())


def elements(size_mb: float) -> int:
    return int(size_mb * 1e6 / 4)


class Stepkeeper(Recipe):
    """worker.Run, which saves each step."""

    @staticmethod
    def prepare() -> None:
        import tensorflow  # noqa: F401

        import worker  # noqa: F401

    def __init__(self, folder: Path, size_mb: float) -> None:
        import tensorflow as tf

        import worker
        from supervisor.protocol.wire.launch import Launch
        from worker.process.startup import current_attempt

        current_attempt().launch = Launch(checkpoint_keep=KEPT)
        self.array = tf.Variable(pattern(elements(size_mb)))
        self.run = worker.Run(tf.train.Checkpoint(array=self.array), directory=folder, interval="1 steps")

    def restored(self) -> int:
        self.run.__enter__()
        return self.run.step

    def values(self) -> set[float]:
        return beyond(self.array.numpy())

    def save(self, step: int) -> None:
        self.array.assign(pattern(self.array.shape[0]) + step)
        self.run.step_done()

    def close(self) -> None:
        self.run.__exit__(None, None, None)

    @staticmethod
    def parts(folder: Path) -> dict[str, Path]:
        newest = max(folder.glob("step-*"))
        return {
            "data": newest / "ckpt.data-00000-of-00001",
            "index": newest / "ckpt.index",
            "pointer": folder / "checkpoint",
        }

    @staticmethod
    def known(folder: Path) -> set[Path]:
        newest = sorted(folder.glob("step-*[0-9]"))[-KEPT:]
        ours = {path for checkpoint in newest for path in (checkpoint, *checkpoint.iterdir())}
        return ours | {folder / name for name in ("checkpoint", "conditions.json", ".stepkeeper.lock")}


class Manager(Recipe):
    """tf.train.CheckpointManager."""

    @staticmethod
    def prepare() -> None:
        import tensorflow  # noqa: F401

    def __init__(self, folder: Path, size_mb: float) -> None:
        import tensorflow as tf

        self.array = tf.Variable(pattern(elements(size_mb)))
        self.step = tf.Variable(0, dtype=tf.int64)
        self.tracked = tf.train.Checkpoint(array=self.array, step=self.step)
        self.manager = tf.train.CheckpointManager(self.tracked, str(folder), max_to_keep=KEPT, step_counter=self.step)

    def restored(self) -> int:
        self.manager.restore_or_initialize()
        return int(self.step.numpy())

    def values(self) -> set[float]:
        return beyond(self.array.numpy())

    def save(self, step: int) -> None:
        self.array.assign(pattern(self.array.shape[0]) + step)
        self.step.assign(step)
        self.write(step)

    def write(self, step: int) -> None:
        self.manager.save(checkpoint_number=step)

    @staticmethod
    def parts(folder: Path) -> dict[str, Path]:
        newest = max(folder.glob("ckpt-*.index"), key=lambda path: int(path.stem.partition("-")[2]))
        data = newest.with_suffix(".data-00000-of-00001")
        return {"data": data, "index": newest, "pointer": folder / "checkpoint"}

    @staticmethod
    def known(folder: Path) -> set[Path]:
        import tensorflow as tf

        state = tf.train.get_checkpoint_state(str(folder))
        prefixes = list(state.all_model_checkpoint_paths)[-KEPT:] if state is not None else []
        return {folder / "checkpoint", *(path for prefix in prefixes for path in folder.glob(f"{Path(prefix).name}.*"))}


class ManagerAsync(Manager):
    """The same with enable_async_checkpoint, of plain variables."""

    def write(self, step: int) -> None:
        import tensorflow as tf

        self.manager.save(checkpoint_number=step, options=tf.train.CheckpointOptions(enable_async=True))

    def close(self) -> None:
        self.tracked.sync()


class PreemptionHandler(Manager):
    """tf.distribute.experimental.PreemptionCheckpointHandler, told by SIGTERM."""

    def restored(self) -> int:
        import tensorflow as tf

        config = tf.distribute.experimental.TerminationConfig(exit_fn=lambda: None)
        self.handler = tf.distribute.experimental.PreemptionCheckpointHandler(
            None, self.manager, termination_config=config
        )
        return int(self.step.numpy())

    def write(self, step: int) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        saved = self.manager.latest_checkpoint
        while self.manager.latest_checkpoint == saved:
            self.handler.save_checkpoint_if_preempted(checkpoint_number=step)
        self.handler._received_own_sigterm.clear()
        self.handler._received_checkpoint_step.clear()


class Backup(Recipe):
    """keras.callbacks.BackupAndRestore with a second copy."""

    @staticmethod
    def prepare() -> None:
        import keras  # noqa: F401

    def __init__(self, folder: Path, size_mb: float) -> None:
        import keras

        width = max(1, int(elements(size_mb) ** 0.5))
        self.model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width, use_bias=False)])
        self.model.set_weights([pattern(width * width).reshape(width, width)])
        self.model.compile("sgd")  # the callback asks for an optimizer
        self.backup = keras.callbacks.BackupAndRestore(str(folder), double_checkpoint=True)
        self.backup.set_model(self.model)

    def restored(self) -> int:
        self.model._initial_epoch = 0
        self.backup.on_train_begin()
        return int(self.model._initial_epoch)

    def values(self) -> set[float]:
        return beyond(self.model.get_weights()[0])

    def save(self, step: int) -> None:
        (weight,) = self.model.get_weights()
        self.model.set_weights([pattern(weight.size).reshape(weight.shape) + step])
        self.backup.on_epoch_end(step - 1)

    @staticmethod
    def parts(folder: Path) -> dict[str, Path]:
        return {"data": folder / "latest.weights.h5", "index": folder / "training_metadata.json"}

    @staticmethod
    def known(folder: Path) -> set[Path]:
        names = ("latest.weights.h5", "training_metadata.json")
        return {folder / f"{name}{ending}" for name in names for ending in ("", ".bkp")}


class Orbax(Recipe):
    """orbax.checkpoint.CheckpointManager, asynchronous as it is by default; newest first, as latest_step gives it."""

    @staticmethod
    def prepare() -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import jax  # noqa: F401
        import orbax.checkpoint  # noqa: F401

    def __init__(self, folder: Path, size_mb: float) -> None:
        import jax.numpy as jnp
        import orbax.checkpoint as ocp

        self.ocp, self.jnp = ocp, jnp
        self.array = jnp.asarray(pattern(elements(size_mb)))
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, cleanup_tmp_directories=True)
        self.manager = ocp.CheckpointManager(folder, options=options)

    def restored(self) -> int:
        step = self.manager.latest_step()
        if step is None:
            return 0
        args = self.ocp.args.StandardRestore({"array": self.array})
        self.array = self.manager.restore(step, args=args)["array"]
        return int(step)

    def values(self) -> set[float]:
        import numpy as np

        return beyond(np.asarray(self.array))

    def save(self, step: int) -> None:
        self.array = self.jnp.asarray(pattern(self.array.size)) + step
        self.manager.save(step, args=self.ocp.args.StandardSave({"array": self.array}))

    def close(self) -> None:
        self.manager.wait_until_finished()

    @staticmethod
    def parts(folder: Path) -> dict[str, Path]:
        newest = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        data = max((path for path in newest.rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)
        index: Any = next((path for path in sorted(newest.rglob("manifest.ocdbt"))), None)
        return {"data": data, "index": index}

    @staticmethod
    def known(folder: Path) -> set[Path]:
        kept = sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return {path for checkpoint in kept[-KEPT:] for path in (checkpoint, *checkpoint.rglob("*"))}


RECIPES: dict[str, type[Recipe]] = {
    "stepkeeper": Stepkeeper,
    "CheckpointManager": Manager,
    "CheckpointManager async": ManagerAsync,
    "PreemptionCheckpointHandler": PreemptionHandler,
    "BackupAndRestore": Backup,
    "Orbax": Orbax,
}
