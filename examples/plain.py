"""Handwritten digits in plain NumPy: a worker with its own implementation of the control pipe (docs/control-pipe.md).

    supervisord -n -c examples/plain.conf

It imports nothing of stepkeeper: this is what a program in any language has to do. The network, its momentum and the
state of the generator are arrays in one file, `state.npz`.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import select
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from sklearn.datasets import load_digits

TOTAL_STEPS = int(os.environ.get("STEPS", "2000"))
SAVE_EVERY = 200  # steps, unless checkpoint_interval says another number
BATCH_SIZE = 64
PROGRESS_S = 0.1


def launch() -> dict[str, Any]:
    """The launch variable: what the daemon tells this attempt."""
    settings: dict[str, Any] = json.loads(os.environ.get("STEPKEEPER_LAUNCH", "{}"))
    return settings


class Daemon:
    """The control pipe: JSON lines, both ways."""

    def __init__(self) -> None:
        if "control" not in launch():
            sys.exit("plain.py is a job of supervisord: start it with supervisord -n -c examples/plain.conf")
        if launch()["protocol"] != 1:
            sys.exit(78)
        self.attempt = launch()["control"]["attempt"]
        pipes = Path(launch()["control"]["pipes"])
        self._last_words = pipes / "last-words"
        self._in = os.open(pipes / "to-worker", os.O_RDWR | os.O_NONBLOCK)  # read-write: stays open if the daemon dies
        self._out = os.open(pipes / "from-worker", os.O_RDWR | os.O_NONBLOCK)
        self._unread = self._unsent = b""

    def send_message(self, type_: str, **fields: Any) -> None:
        """Sends a message without waiting. While no daemon reads, `progress` is dropped and the rest is queued."""
        line = json.dumps({"type": type_, "attempt": self.attempt, **fields}).encode() + b"\n"
        if type_ in ("done", "failed"):  # for a daemon that is started after this process has ended
            with self._last_words.open("ab") as file:
                file.write(line)
        self._send()
        if type_ != "progress" or not self._unsent:
            self._unsent += line
        self._send()

    def _send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[os.write(self._out, self._unsent) :]

    def receive_messages(self, timeout_s: float) -> list[dict[str, Any]]:
        """The messages that are there, or arrive within `timeout_s`."""
        self._send()
        if select.select([self._in], [], [], timeout_s)[0]:
            self._unread += os.read(self._in, 65536)
        *lines, self._unread = self._unread.split(b"\n")
        messages = [message for line in lines if (message := parse_message(line)) is not None]
        for request in messages:
            if request["attempt"] == self.attempt and request["type"] == "identify":
                self.send_message("hello", protocol=1, pid=os.getpid(), version="plain")
        return [
            message for message in messages if message["attempt"] == self.attempt and message["type"] in ("go", "flush")
        ]


def parse_message(line: bytes) -> dict[str, Any] | None:
    """The message in a line. None for an empty line, with which a new daemon begins, and for an incomplete one."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and {"type", "attempt"} <= message.keys() else None


def sync(path: Path) -> None:
    """Forces a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Creates a folder and its parents, and syncs each: a power cut would otherwise lose what they contain."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def commit(directory: Path, attempt: int, step: int, arrays: dict[str, Any]) -> tuple[str, int]:
    """Writes a checkpoint. Returns its name and its size in bytes."""
    name = f"step-{step:010d}.a{attempt}"
    partial = directory / f"{name}.partial"
    partial.mkdir()
    with (partial / "state.npz").open("wb") as file:
        np.savez(file, **arrays)
    content = (partial / "state.npz").read_bytes()
    digest = f"xxh3_128:{xxhash.xxh3_128_hexdigest(content)}"
    manifest = {
        "job": launch()["job"], "attempt": attempt, "step": step, "created_wall_at": time.time(),
        "files": [{"name": "state.npz", "size": len(content), "hash": digest}],
        "versions": {"numpy": np.__version__}, "topology": {}, "metrics": {}, "format": 1,
    }  # fmt: skip
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    manifest["self_hash"] = f"sha256:{hashlib.sha256(canonical).hexdigest()}"
    (partial / "MANIFEST.json").write_text(json.dumps(manifest))
    for path in (partial / "state.npz", partial / "MANIFEST.json", partial):
        sync(path)
    partial.rename(directory / name)
    sync(directory)
    return name, len(content)


class Network:
    """One hidden layer, dropout, momentum. `arrays` has everything that decides the next step except its number."""

    def __init__(self) -> None:
        self.chance = np.random.default_rng(1)
        self.weights = {
            "w1": self.chance.normal(0, 0.15, (64, 48)), "b1": np.zeros(48),
            "w2": self.chance.normal(0, 0.15, (48, 10)), "b2": np.zeros(10),
        }  # fmt: skip
        self.momentum = {name: np.zeros_like(value) for name, value in self.weights.items()}

    def arrays(self) -> dict[str, Any]:
        """The state, as arguments of `np.savez`."""
        chance = json.dumps(self.chance.bit_generator.state)
        momentum = {f"momentum_{name}": value for name, value in self.momentum.items()}
        return {**self.weights, **momentum, "chance": np.array(chance)}

    def restore(self, file: Path) -> None:
        """Restores what `arrays` returned from the file. Uses no pickle."""
        with np.load(file, allow_pickle=False) as archive:
            self.weights = {name: archive[name] for name in self.weights}
            self.momentum = {name: archive[f"momentum_{name}"] for name in self.weights}
            self.chance.bit_generator.state = json.loads(str(archive["chance"]))

    def train(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Makes one step. Returns the loss."""
        w = self.weights
        kept = self.chance.random((len(images), 48)) > 0.2
        hidden = np.maximum(images @ w["w1"] + w["b1"], 0) * kept / 0.8
        scores = hidden @ w["w2"] + w["b2"]
        scores -= scores.max(axis=1, keepdims=True)
        likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(-np.log(likely[rows, labels] + 1e-12).mean())
        likely[rows, labels] -= 1
        upper = likely / len(labels)
        lower = (upper @ w["w2"].T) * (hidden > 0) * kept / 0.8
        slopes = {"w1": images.T @ lower, "b1": lower.sum(0), "w2": hidden.T @ upper, "b2": upper.sum(0)}
        for name, slope in slopes.items():
            self.momentum[name] = 0.9 * self.momentum[name] - 0.1 * slope
            w[name] += self.momentum[name]
        return loss

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of images that it classifies correctly."""
        hidden = np.maximum(images @ self.weights["w1"] + self.weights["b1"], 0)
        return float((np.argmax(hidden @ self.weights["w2"] + self.weights["b2"], axis=1) == labels).mean())


def batch_at(step: int, count: int) -> np.ndarray:
    """Indices of the batch of a step: a function of the step alone, so no data position has to be saved."""
    epoch, number = divmod(step, count // BATCH_SIZE)
    order = np.random.default_rng([1, epoch]).permutation(count)
    return order[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]


def main() -> int:
    """Trains from the checkpoint that the daemon selects, until all steps are done or the daemon asks it to stop."""
    daemon = Daemon()
    daemon.send_message("hello", protocol=1, pid=os.getpid(), version="plain")
    images, labels = load_digits(return_X_y=True)
    test = np.arange(len(labels)) % 5 == 0
    training = images[~test] / 16.0, labels[~test]
    network, step = Network(), 0
    while not (messages := [message for message in daemon.receive_messages(60.0) if message["type"] == "go"]):
        pass  # before `go` nothing may be read or written
    directory = Path(launch()["checkpoint_dir"])
    make_folder(directory)
    lock = os.open(directory / ".stepkeeper.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
    except BlockingIOError:
        daemon.send_message("failed", step=None, error=f"another live worker holds {directory}", traceback="")
        return 75
    for leftover in directory.glob("step-*.partial"):
        shutil.rmtree(leftover)
    started, name = time.monotonic(), None
    if messages[0]["restore"] is not None:
        folder = Path(messages[0]["restore"])
        network.restore(folder / "state.npz")
        step, name = int(folder.name[5:15]), folder.name
    restore_s = time.monotonic() - started
    daemon.send_message(
        "restored", step=step, checkpoint=name, restore_s=restore_s, total_steps=TOTAL_STEPS, unmatched=[]
    )
    return train(daemon, directory, network, step, training, (images[test] / 16.0, labels[test]))


def train(daemon: Daemon, directory: Path, network: Network, step: int, training: Any, test: Any) -> int:
    """The training loop. Returns the exit status."""
    first, reported_at, reported_step = step + 1, time.monotonic(), step
    save_every = launch().get("checkpoint_interval", {}).get("steps", SAVE_EVERY)
    images, labels = training
    while step < TOTAL_STEPS:
        rows = batch_at(step, len(labels))
        loss = network.train(images[rows], labels[rows])
        step += 1
        now = time.monotonic()
        if step == first or now - reported_at > PROGRESS_S:
            step_s = (now - reported_at) / (step - reported_step)
            daemon.send_message("progress", step=step, total_steps=TOTAL_STEPS, step_s=step_s, metrics={"loss": loss})
            reported_at, reported_step = now, step
        flushes = daemon.receive_messages(0.0)
        for flush in flushes:
            daemon.send_message("flushing", id=flush["id"], step=step)
        stops = any(flush["then"] == "stop" for flush in flushes)
        if flushes or step % save_every == 0 or step == TOTAL_STEPS:
            error = save(daemon, directory, network, step, [flush["id"] for flush in flushes])
            if error is not None and (stops or step == TOTAL_STEPS):  # the last steps would be lost
                daemon.send_message("failed", step=step, error=f"the last save failed: {error}", traceback="")
                return 74
        if stops:
            return 143
    daemon.send_message("done", step=step, metrics={"accuracy": network.accuracy(*test)})
    print(f"test accuracy {network.accuracy(*test):.3f}")
    digest = hashlib.sha256(b"".join(value.tobytes() for value in network.weights.values())).hexdigest()
    print(f"hash {digest}")
    return 0


def save(daemon: Daemon, directory: Path, network: Network, step: int, flushes: list[int]) -> str | None:
    """Commits a checkpoint and reports it. Returns the error, if there is one."""
    started = time.monotonic()
    try:
        name, size_bytes = commit(directory, daemon.attempt, step, network.arrays())
    except OSError as error:
        discard(directory / f"step-{step:010d}.a{daemon.attempt}")
        daemon.send_message("save-failed", step=step, error=str(error), flushes=flushes)
        return str(error)
    spent_s = time.monotonic() - started
    daemon.send_message(
        "committed", step=step, checkpoint=name, size_bytes=size_bytes, save_s=spent_s, stall_s=spent_s, flushes=flushes
    )
    try:
        retain(directory, launch()["checkpoint_keep"])
    except OSError as error:
        print(f"cannot delete old checkpoints: {error}", file=sys.stderr)  # training continues
    return None


def discard(final: Path) -> None:
    """Deletes what a failed save left, also a checkpoint that was renamed but perhaps not synced."""
    partial = final.with_name(f"{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    if final.is_dir():
        with contextlib.suppress(OSError):
            shutil.rmtree(final.rename(partial))


def retain(directory: Path, keep: int) -> None:
    """Deletes all but the newest checkpoints. Renames each first, so that no incomplete one has a checkpoint's name."""
    for old in sorted(directory.glob("step-*.a*[0-9]"))[:-keep]:
        shutil.rmtree(old.rename(f"{old}.partial"))


if __name__ == "__main__":
    sys.exit(main())
