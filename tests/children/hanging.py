"""A trainer without TensorFlow that hangs, or is only silent, in the way that its environment names.

SILENCE: a name in WAYS; AT: after which step (50); STEP_S: seconds a step; DEVICE: a file that it has open. A way to
hang is taken once for each job: the next attempt finds the file `hung` in the folder MARKS (the checkpoint directory),
and ends well at step 2 * AT.
What is only silent for a while (LASTS_S seconds) goes on by itself.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import trainer

from supervisor.protocol.wire import launch
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import PROTOCOL, Done, Go, Hello, Progress, Restored

if device := os.environ.get("DEVICE"):
    os.open(device, os.O_RDONLY)  # as CUDA does
AT = int(os.environ.get("AT", "50"))
STEP_S = float(os.environ.get("STEP_S", "0.01"))
LASTS_S = float(os.environ.get("LASTS_S", "10"))
SILENCE = os.environ.get("SILENCE", "")


# --- hangs ---


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def deadlock() -> None:
    """Two locks, taken in opposite order."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def other() -> None:
        with second:
            both.wait()
            with first:
                pass

    threading.Thread(target=other, daemon=True).start()
    with first:
        both.wait()
        with second:
            pass


def endless_loop() -> None:
    count = 0
    while count >= 0:
        count += 1
        count -= 1


def dead_mount() -> None:
    """A read on a file system whose server does not answer any more (see `silent_mount`)."""
    with open(os.environ["DEAD_FILE"], "rb") as file:
        file.read()


def peer_left() -> None:
    """A collective, by socket: the other rank has left it and does something else, so its answer never comes."""
    mine, theirs = socket.socketpair()
    if os.fork() == 0:
        theirs.recv(1)  # the first collective; it is not there for the second
        mine.close()
        signal.pause()
    mine.sendall(b"1")
    mine.sendall(b"2")
    mine.recv(1)


def stuck_data_worker() -> None:
    """A data worker in a process of its own waits for ever, and training for it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_never, args=(theirs,), daemon=True)
    process.start()
    ours.recv()


def _never(_: object) -> None:
    time.sleep(1e9)


def long_sleep() -> None:
    time.sleep(1e9)


def blocked_pipe() -> None:
    """Writes into a pipe that nobody reads."""
    _, writes = os.pipe()
    while True:
        os.write(writes, b"x" * 65536)


HANGS: dict[str, Callable[[], None]] = {
    way.__name__: way
    for way in (
        stopped,
        deadlock,
        endless_loop,
        dead_mount,
        peer_left,
        stuck_data_worker,
        long_sleep,
        blocked_pipe,
    )
}


# --- silent for a while ---


def compiling_child() -> None:
    """As ptxas or nvcc: another process computes, and this one waits for it."""
    script = f"import time\nends = time.monotonic() + {LASTS_S}\nwhile time.monotonic() < ends: sum(range(1000))"
    subprocess.run([sys.executable, "-c", script], check=True)


def compiling_thread() -> None:
    """As XLA: a native call that computes in one thread and touches new memory all the time."""
    ends_at, libc = time.monotonic() + LASTS_S, ctypes.CDLL(None)
    libc.malloc.restype, size = ctypes.c_void_p, 64 << 20
    while time.monotonic() < ends_at:
        block = libc.malloc(size)
        libc.memset(ctypes.c_void_p(block), 1, size)
        libc.free(ctypes.c_void_p(block))


def slow_read() -> None:
    """1 MB/s from a disk, or whatever is as slow."""
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * (1 << 20))
        ends_at = time.monotonic() + LASTS_S
        while time.monotonic() < ends_at:
            file.seek(0)
            file.read(64 << 10)
            time.sleep(1 / 16)


def evaluation() -> None:
    """Some hundred batches, computed here, which the loop does not report as an evaluation."""
    ends_at = time.monotonic() + LASTS_S
    while time.monotonic() < ends_at:
        _forward([1.0] * 300)
        _metrics([1.0] * 300)


def _forward(batch: list[float]) -> list[float]:
    return [sum(value * weight for weight in range(50)) for value in batch]


def _metrics(outputs: list[float]) -> float:
    return sum(abs(output - 1.0) for output in outputs for _ in range(50))


def download() -> None:
    """Bytes come over a connection, slowly."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ends_at = time.monotonic() + LASTS_S
        while time.monotonic() < ends_at:
            theirs.sendall(b"x" * 65536)
            time.sleep(0.25)
        os._exit(0)
    theirs.close()
    while ours.recv(65536):
        pass
    os.wait()


def pause_before_retry() -> None:
    """A request was refused, and is to be repeated after a pause."""
    time.sleep(LASTS_S)


def polling() -> None:
    """Looks now and then whether a file has come."""
    ends_at = time.monotonic() + LASTS_S
    while time.monotonic() < ends_at:
        Path("/nonexistent").exists()
        time.sleep(0.5)


ONLY_SILENT: dict[str, Callable[[], None]] = {
    way.__name__: way
    for way in (
        compiling_child,
        compiling_thread,
        slow_read,
        evaluation,
        download,
        pause_before_retry,
        polling,
    )
}
WAYS = HANGS | ONLY_SILENT


def main() -> int:
    told = launch.from_environment(os.environ)
    assert told.control is not None and told.checkpoint_dir is not None
    pipes = trainer.Pipes(told.control)
    trainer.answer_with_stacks(told.control)
    attempt = pipes.attempt
    told.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    pipes.say(Hello(attempt, PROTOCOL, os.getpid(), "test"))
    while not any(isinstance(message, Go) for message in pipes.hear(60)):
        pass
    pipes.say(Restored(attempt, 0, None, 0.0, 2 * AT))
    mark = Path(os.environ.get("MARKS", told.checkpoint_dir)) / "hung"
    for step in range(1, 2 * AT + 1):
        time.sleep(STEP_S)
        pipes.say(Progress(attempt, step, 0, 2 * AT, STEP_S))
        if step == AT and SILENCE and not mark.exists():
            mark.write_text(str(time.time()))
            WAYS[SILENCE]()
        if any(message for message in pipes.hear(0)) or pipes.take():
            return WorkerExit.STOPPED
    pipes.say(Done(attempt, 2 * AT))
    return WorkerExit.DONE


if __name__ == "__main__":
    sys.exit(main())
