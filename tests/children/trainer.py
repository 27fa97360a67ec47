"""A job without TensorFlow: counts steps, checkpoints the count, speaks the control pipe. For tests of the daemon.

Behaviour comes from the environment: STEPS (how many in all), STEP_S (seconds a step), EVERY (steps between saves),
FLUSH_S (how long a save takes), FAIL ("import", "hang", "exit-0", "ignore-term",
"elsewhere": says what a person should know), GRANDCHILD (start one that ignores
SIGTERM and leaves the session).
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from supervisor.protocol import checkpoints, durable, launch, layout, manifest
from supervisor.protocol.codec import Decoder, encode
from supervisor.protocol.exitcodes import WorkerExit
from supervisor.protocol.messages import (
    PROTOCOL,
    Committed,
    Done,
    Failed,
    Flush,
    Flushing,
    FromWorker,
    Go,
    Hello,
    Message,
    Progress,
    Restored,
    Then,
)

STEPS = int(os.environ.get("STEPS", "100"))
STEP_S = float(os.environ.get("STEP_S", "0.01"))
EVERY = int(os.environ.get("EVERY", "20"))
FLUSH_S = float(os.environ.get("FLUSH_S", "0"))
FAIL = os.environ.get("FAIL", "")
STATE = "count"


class Pipes:
    def __init__(self, control: launch.Control) -> None:
        self.attempt = control.attempt
        self._in = os.open(control.pipes / layout.TO_WORKER, os.O_RDWR | os.O_NONBLOCK)
        self._out = os.open(control.pipes / layout.FROM_WORKER, os.O_RDWR)
        self._decoder = Decoder()

    def say(self, message: FromWorker) -> None:
        os.write(self._out, encode(message))

    def hear(self, patience_s: float) -> list[Message]:
        if not select.select([self._in], [], [], patience_s)[0]:
            return []
        return [each for each in self._decoder.feed(os.read(self._in, 65536)) if not isinstance(each, ValueError)]


def save(directory: Path, job: str, attempt: int, step: int, flushes: tuple[int, ...]) -> Committed:
    name = layout.CheckpointName(step, attempt)
    final = directory / str(name)
    began = time.monotonic()
    if not final.exists():
        partial = directory / name.partial
        partial.mkdir(parents=True)
        (partial / STATE).write_text(f"{step}\n")
        time.sleep(FLUSH_S)
        files = manifest.record(partial, (STATE,))
        whole = manifest.Manifest(job=job, attempt=attempt, step=step, created_wall_at=time.time(), files=files)
        durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
        durable.commit_folder(partial, final, (STATE,))
    size = sum(each.stat().st_size for each in final.iterdir())
    spent = time.monotonic() - began
    left_out = ("teacher/kernel",) if FAIL == "elsewhere" else ()
    return Committed(attempt, step, str(name), size, spent, spent, flushes, left_out)


def main() -> int:
    told = launch.from_environment(os.environ)
    assert told.control is not None and told.checkpoint_dir is not None
    pipes, attempt = Pipes(told.control), told.control.attempt
    try:
        told.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        pipes.say(Failed(attempt, None, f"cannot use {told.checkpoint_dir}: {error.strerror}"))
        return WorkerExit.DIRECTORY_UNUSABLE
    checkpoints.sweep_partials(told.checkpoint_dir)
    if FAIL == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "GRANDCHILD" in os.environ:
        script = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    pipes.say(Hello(attempt, PROTOCOL, os.getpid(), "test"))
    if FAIL == "import":
        pipes.say(Failed(attempt, None, "ModuleNotFoundError: No module named 'trian'", "Traceback …"))
        return WorkerExit.USER_ERROR
    go: Go | None = None
    while go is None:
        go = next((each for each in pipes.hear(60) if isinstance(each, Go)), None)
    step = int(Path(go.restore, STATE).read_text()) if go.restore else 0
    restored = Path(go.restore).name if go.restore else None
    changed = ("cores is 1, was 2",) if FAIL == "elsewhere" else ()
    pipes.say(Restored(attempt, step, restored, 0.0, STEPS, changed=changed))
    while step < STEPS:
        if FAIL == "hang" and step >= 5:
            time.sleep(600)
        time.sleep(STEP_S)
        step += 1
        pipes.say(Progress(attempt, step, 0, STEPS, STEP_S, {"loss": 1 / step}, told.between_failures_s))
        asked = [each for each in pipes.hear(0) if isinstance(each, Flush)] if FAIL != "deaf" else []
        for each in asked:
            pipes.say(Flushing(attempt, each.id, step))
        if asked or step % EVERY == 0 or step == STEPS:
            pipes.say(save(told.checkpoint_dir, told.job, attempt, step, tuple(each.id for each in asked)))
        if any(each.then is Then.STOP for each in asked):
            return WorkerExit.STOPPED
        if FAIL == "exit-0" and step == 10:
            return 0
    pipes.say(Done(attempt, step, {"accuracy": 1.0}))
    return WorkerExit.DONE


if __name__ == "__main__":
    sys.exit(main())
