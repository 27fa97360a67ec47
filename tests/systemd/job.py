"""A job whose result shows whether a step was lost or made twice: each step folds its number into a running hash.

For machines without TensorFlow; speaks the control pipe by what tests/children/trainer.py has for it. From the
environment: STEPS, STEP_S (seconds a step), EVERY (steps between saves), FLUSH_S (how long a save takes), SLOW_ATTEMPTS
(how many take these times; later ones take none, as nothing happens to them any more). Its last line is the result.
"""

import fcntl
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest, removal
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import PROTOCOL, Committed, Done, Go, Hello, Phase, Progress, Restored, Then

sys.path.insert(0, str(Path(__file__).parent.parent / "children"))
from trainer import Pipes

STEPS = int(os.environ.get("STEPS", "100"))
STEP_S = float(os.environ.get("STEP_S", "0.01"))
EVERY = int(os.environ.get("EVERY", "1000"))
FLUSH_S = float(os.environ.get("FLUSH_S", "0"))
SLOW_ATTEMPTS = int(os.environ.get("SLOW_ATTEMPTS", "1"))
STATE = "hash"


def fold(state: str, step: int) -> str:
    """The state after one more step."""
    return hashlib.sha256(f"{state}:{step}".encode()).hexdigest()


def result(steps: int) -> str:
    """The state after so many steps in one go."""
    state = ""
    for step in range(1, steps + 1):
        state = fold(state, step)
    return state


def save(pipes: Pipes, folder: Path, job: str, step: int, state: str) -> Committed:
    attempt, flushes = pipes.attempt, tuple(each.id for each in pipes.asked)
    name = layout.CheckpointName(step, attempt)
    final, began = folder / str(name), time.monotonic()
    if not final.exists():
        partial = folder / name.partial
        partial.mkdir(parents=True)
        (partial / STATE).write_text(f"{step} {state}\n")
        while attempt <= SLOW_ATTEMPTS and (left := began + FLUSH_S - time.monotonic()) > 0:
            pipes.hear(left)
        files = manifest.record_files(partial, (STATE,))
        whole = manifest.Manifest(job=job, attempt=attempt, step=step, created_wall_at=time.time(), files=files)
        durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
        durable.commit_folder(partial, final, (STATE,))
    size = sum(path.stat().st_size for path in final.iterdir())
    spent = time.monotonic() - began
    return Committed(attempt, step, str(name), size, spent, spent, flushes)


def main() -> int:
    asked_to_leave: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_leave.append(number))
    told = launch.from_environment(os.environ)
    assert told.control is not None and told.checkpoint_dir is not None
    pipes, attempt, folder = Pipes(told.control), told.control.attempt, told.checkpoint_dir
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / layout.LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two of them must never be
    removal.delete_partials(folder)
    pipes.say(Hello(attempt, PROTOCOL, os.getpid(), "test"))
    go: Go | None = None
    while go is None:
        go = next((each for each in pipes.hear(60) if isinstance(each, Go)), None)
    pipes.phase = Phase.TRAINING
    step, state = 0, ""
    if go.restore:
        words = Path(go.restore, STATE).read_text().split()
        step, state = int(words[0]), words[1]
    print(f"attempt {attempt} begins at {step}", flush=True)
    pipes.say(Restored(attempt, step, Path(go.restore).name if go.restore else None, 0.0, STEPS))
    while step < STEPS:
        if attempt <= SLOW_ATTEMPTS:
            time.sleep(STEP_S)
        step += 1
        state = fold(state, step)
        pipes.say(Progress(attempt, step, 0, STEPS, STEP_S, {}))
        pipes.hear(0)
        asked = pipes.take()
        if asked or asked_to_leave or step % EVERY == 0 or step == STEPS:
            committed = save(pipes, folder, told.job, step, state)
            pipes.asked = []
            pipes.say(committed)
        if asked_to_leave or any(each.then is Then.STOP for each in asked):
            return WorkerExit.STOPPED
    pipes.phase = Phase.DONE
    print(f"result {state}", flush=True)
    pipes.say(Done(attempt, step, {}))
    return WorkerExit.DONE


if __name__ == "__main__":
    sys.exit(main())
