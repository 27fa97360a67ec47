"""What a save costs training: ours beside it, ours while it waits, TensorFlow's CheckpointManager, and the floor.

Run with `python -m bench.saves`. Prints a table and writes bench/results/saves.json. One Keras model with Adam for each
state size, on one CPU device; every variable changes in every step. Loss per save: the sum, over the steps from the
save until it is on the disk and two more, of (step time - median step time without saves). Durable: from the decision
to the last sync; CheckpointManager syncs nothing, so its figure ends when its call returns, and is given once more with
its files synced. Floor: write and fsync of as many bytes, once. The systems take turns, each on a disk with nothing
left to write.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import worker
from supervisor.protocol import durable
from supervisor.protocol.launch import Launch
from supervisor.protocol.messages import Committed, FromWorker, Progress
from supervisor.protocol.retention import RetentionPolicy
from worker import attempt
from worker.requests import Asked

ROOT = Path(__file__).resolve().parent.parent
BATCH = 16
WARM_UP_STEPS = 5
BASE_STEPS = 10  # without saves, before and after each save: what a step costs now
BYTES_OF_PARAMETER = 12  # float32, and Adam's two slots
BESIDE, WAITING = "stepkeeper, beside", "stepkeeper, waiting"
MANAGER, SYNCED, FLOOR = "CheckpointManager", "CheckpointManager, fsync", "write + fsync"


class Heard:
    """The end of the messages: keeps the last commit."""

    def __init__(self) -> None:
        self.committed: Committed | None = None

    def say(self, message: FromWorker) -> None:
        if isinstance(message, Committed):
            self.committed = message

    def progress(self, message: Progress) -> None:
        """Not measured."""

    def remark(self, text: str) -> None:
        print(text)

    def drain(self, timeout: float) -> bool:
        return True


@dataclass
class Figures:
    """Milliseconds, one for each save."""

    loss_ms: list[float] = field(default_factory=list)
    stall_ms: list[float] = field(default_factory=list)
    durable_ms: list[float] = field(default_factory=list)


class Bench:
    """One model of `size_mb` of state, trained on noise, and the ways to save it."""

    def __init__(self, size_mb: float, folder: Path) -> None:
        import tensorflow as tf

        from worker.checkpoint import CheckpointWriter, Origin

        self.folder = folder
        width = int((size_mb * 1e6 / BYTES_OF_PARAMETER / 4) ** 0.5)
        layers = [tf.keras.Input((width,)), *(tf.keras.layers.Dense(width) for _ in range(4))]
        model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.Adam(1e-4)
        optimizer.build(model.trainable_variables)
        self.tracked = tf.train.Checkpoint(model=model, optimizer=optimizer)
        inputs = tf.random.normal([BATCH, width])

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(inputs)))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            return loss

        self.step = step
        present = attempt.this()
        self.heard = present.reporter = Heard()
        present.launch = Launch(checkpoint_dir=folder / "beside", retention=RetentionPolicy(newest=2))
        self.requests = present.requests
        self.run = worker.Run(self.tracked, interval="1000000 steps")
        self.manager = tf.train.CheckpointManager(self.tracked, str(folder / "manager"), max_to_keep=2)
        (folder / "waiting").mkdir()
        self.writer = CheckpointWriter(
            self.tracked, folder / "waiting", Origin("bench", 1, {}, {}), RetentionPolicy(newest=2), 1
        )

    def stepped(self) -> float:
        """Seconds that a step and its boundary took."""
        began = time.perf_counter()
        self.step().numpy()
        self.run.step_done()
        return time.perf_counter() - began

    def measure(self, save: Callable[[], tuple[float, float] | None], figures: Figures) -> None:
        os.sync()  # what the system before left to be written would be paid for by this one's fsync
        quiet = [self.stepped() for _ in range(BASE_STEPS)]
        self.heard.committed = None
        began = time.perf_counter()
        waited = save()
        called_s = time.perf_counter() - began
        steps = [self.stepped()]
        while waited is None and self.heard.committed is None:
            steps.append(self.stepped())
        steps += [self.stepped(), self.stepped()]
        quiet += [self.stepped() for _ in range(BASE_STEPS)]
        if waited is None:
            assert self.heard.committed is not None
            waited = self.heard.committed.stall_s, self.heard.committed.save_s
        figures.loss_ms.append((called_s + sum(steps) - len(steps) * statistics.median(quiet)) * 1000)
        figures.stall_ms.append(waited[0] * 1000)
        figures.durable_ms.append(waited[1] * 1000)

    def beside(self) -> None:
        self.requests.ask(Asked((1,)))  # served at the end of the next step

    def waiting(self) -> tuple[float, float]:
        from worker.checkpoint import Figures as Known
        from worker.state import Position

        began = time.perf_counter()
        proof = self.writer.write(self.writer.take(Known(self.run.step, Position(), {}, {}), copied=False))
        durable_s = time.perf_counter() - began
        self.writer.tidy(proof.name)
        return time.perf_counter() - began, durable_s

    def managed(self) -> tuple[float, float]:
        began = time.perf_counter()
        self.manager.save()
        took_s = time.perf_counter() - began
        return took_s, took_s

    def synced(self) -> tuple[float, float]:
        began = time.perf_counter()
        written = Path(self.manager.save())
        for path in written.parent.glob(f"{written.name}.*"):
            durable.sync_file(path)
        durable.sync_folder(written.parent)
        took_s = time.perf_counter() - began
        return took_s, took_s

    def floor(self, size_bytes: int) -> float:
        """Seconds to write and sync as many bytes."""
        content = os.urandom(1 << 20) * (size_bytes // (1 << 20) + 1)
        path = self.folder / "floor"
        os.sync()
        began = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            file.write(memoryview(content)[:size_bytes])
            os.fsync(file.fileno())
        took_s = time.perf_counter() - began
        path.unlink()
        return took_s


def measured(size_mb: float, repeats: int, parent: Path) -> dict[str, Figures]:
    """All systems in turn; the first save of each is not counted, it sets up what later ones use."""
    folder = Path(tempfile.mkdtemp(prefix="saves-", dir=parent))
    results = {name: Figures() for name in (BESIDE, WAITING, MANAGER, SYNCED, FLOOR)}
    try:
        bench = Bench(size_mb, folder)
        ways = ((BESIDE, bench.beside), (WAITING, bench.waiting), (MANAGER, bench.managed), (SYNCED, bench.synced))
        with bench.run:
            for _ in range(WARM_UP_STEPS):
                bench.stepped()
            for count in range(repeats + 1):
                for name, save in ways:
                    bench.measure(save, results[name] if count else Figures())
                if count:
                    results[FLOOR].durable_ms.append(bench.floor(int(size_mb * 1e6)) * 1000)
    finally:
        shutil.rmtree(folder)
    return results


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 100, 400], help="MB of state")
    parser.add_argument("--repeats", type=int, default=10, help="saves of each system and size")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    results = {size: measured(size, options.repeats, options.folder) for size in options.sizes}
    table = Table("state", "system", "lost per save, ms", "stood still, ms", "durable, ms", "lost, of manager's")
    for size, systems in results.items():
        theirs = statistics.median(systems[MANAGER].loss_ms)
        for name, figures in systems.items():
            ratio = f"{statistics.median(figures.loss_ms) / theirs:.2f}" if figures.loss_ms else "-"
            columns = map(spread, (figures.loss_ms, figures.stall_ms, figures.durable_ms))
            table.add_row(f"{size:g} MB", name, *columns, ratio)
        table.add_section()
    Console(width=130).print(table)
    machine = {"cores": os.cpu_count(), "load": load, "kernel": platform.release(), "python": platform.python_version()}
    content = {
        "machine": machine,
        "results": {
            f"{size:g} MB": {name: vars(each) for name, each in systems.items()} for size, systems in results.items()
        },
    }
    folder = ROOT / "bench" / "results"
    folder.mkdir(exist_ok=True)
    (folder / "saves.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
