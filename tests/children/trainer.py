"""A job without TensorFlow: counts steps, checkpoints the count, speaks the control pipe. For tests of the daemon.

Behaviour comes from the environment: STEPS (how many in all), STEP_S (seconds a step), EVERY (steps between saves),
FLUSH_S (how long a save takes), SAID_S (how long it says that one took),
LOAD_S (how long it loads before it opens its pipes), FAIL ("import", "hang",
"exit-0", "ignore-term", "elsewhere": says what a person should know; once, after step 5: "stop", "spin", "data",
"save", "evaluation", each a way to hang, and "start-up" and "tracing", before that; "save-beside": a save that never
ends, beside steps that do; "no-export": an export is never answered; "dies-from-20": at the first step after the
restore of step 20; "dies-at-27": at that step; "dies-restoring-20": while it restores step 20; "nan": diverges at
step NAN_AT until that is skipped, "memory": takes more than there is at step 5, unless it divides its batches;
"unfit": no checkpoint fits it; "told": as the file `fail` in the checkpoint directory says, once there is one, see
`fail_as_told`), GRANDCHILD (start one that ignores SIGTERM and leaves the session), DETACHED (start one that nobody
is the parent of, in a session of its own and without an environment; its pid is in the file `detached` in the
checkpoint directory), HURRY (steps take no time once there is a file `hurry` in the checkpoint directory), STRAY (as a
standby, start one that nobody is the parent of), METRIC (report one of that name, too), OLD (it does not say when it
begins to restore, as older workers).
"""

import fcntl
import importlib.util
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest, removal
from supervisor.protocol.wire import launch
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.lines import Decoder, encode_message
from supervisor.protocol.wire.messages import (
    PROTOCOL,
    STANDBY,
    Committed,
    Done,
    Export,
    Exported,
    Failed,
    Flush,
    Flushing,
    FromWorker,
    Go,
    Hello,
    Identify,
    Message,
    Phase,
    Progress,
    Promote,
    Ready,
    Restored,
    Restoring,
    Then,
    WorkerStatus,
)

STEPS = int(os.environ.get("STEPS", "100"))
STEP_S = float(os.environ.get("STEP_S", "0.01"))
EVERY = int(os.environ.get("EVERY", "20"))
FLUSH_S = float(os.environ.get("FLUSH_S", "0"))
SAID_S = os.environ.get("SAID_S")
LOAD_S = float(os.environ.get("LOAD_S", "0"))
FAIL = os.environ.get("FAIL", "")
METRIC = os.environ.get("METRIC", "")
HURRIES = "HURRY" in os.environ
NAN_AT = int(os.environ.get("NAN_AT", "0"))
SKIP = "skip"  # a file in the checkpoint directory: do not diverge any more
STATE = "count"


class Pipes:
    """Both pipes, without a thread: it hears between two steps and while it saves."""

    def __init__(self, control: launch.Control) -> None:
        self.attempt = control.attempt
        self._folder = control.pipes
        self._in = os.open(control.pipes / layout.TO_WORKER, os.O_RDWR | os.O_NONBLOCK)
        self._out = os.open(control.pipes / layout.FROM_WORKER, os.O_RDWR | os.O_NONBLOCK)
        self._decoder = Decoder()
        self._unsent: list[FromWorker] = []  # the pipe was full: no daemon reads
        self._flushes: list[Flush] = []  # heard and not taken
        self._newest: dict[type[FromWorker], FromWorker] = {}
        self._last_flush = 0
        self._early: list[Message] = []  # heard with the word that made it an attempt
        self.phase = Phase.WAITING
        self.asked: list[Flush] = []  # taken and not answered

    def say(self, message: FromWorker) -> None:
        self._newest[type(message)] = message
        if isinstance(message, Done | Failed):
            with (self._folder / layout.LAST_WORDS).open("ab") as file:
                file.write(encode_message(message))
        self._unsent.append(message)
        while self._unsent:
            try:
                os.write(self._out, encode_message(self._unsent[0]))
            except BlockingIOError:
                self._unsent = [each for each in self._unsent if not isinstance(each, Progress)]
                return
            del self._unsent[0]

    def hear(self, patience_s: float) -> list[Message]:
        """Waits so long for words; flushes are kept, an order to identify itself is answered, the rest is given."""
        if not self._early and not select.select([self._in], [], [], patience_s)[0]:
            return []
        others, self._early = self._early, []
        for each in self._decoder.feed(self._read()):
            if isinstance(each, Identify):
                self._identify()
            elif isinstance(each, Flush) and FAIL != "deaf":
                self._flushes.append(each)
                self._last_flush = max(self._last_flush, each.id)
                self.say(Flushing(self.attempt, each.id, 0))
            elif isinstance(each, Export):
                self._export(each.id)
            elif not isinstance(each, ValueError):
                others.append(each)
        return others

    def _export(self, id: int) -> None:
        progress = self._newest.get(Progress)
        step = progress.step if isinstance(progress, Progress) else 0
        export_dir = launch.from_environment(os.environ).export_dir
        assert export_dir is not None
        folder = export_dir / ("asked" if FAIL == "no-export" else str(step))
        folder.mkdir(parents=True, exist_ok=True)
        if FAIL != "no-export":
            self.say(Exported(self.attempt, id, step, str(folder)))

    def wait_for_promotion(self) -> None:
        """As a standby that has nothing to load; ends with the daemon."""
        daemon, began = os.getppid(), time.monotonic()
        if FAIL == "standby":
            self.say(Failed(STANDBY, None, "no module named corpus"))
            sys.exit(WorkerExit.USER_ERROR)
        if "STRAY" in os.environ:
            subprocess.run(["/bin/sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"], check=True)
        self.say(Ready(STANDBY, "warm", os.getpid(), time.monotonic() - began))
        while self.attempt == STANDBY:
            for each in self.hear(0.2):
                if isinstance(each, Promote):
                    self.attempt, self._folder = each.attempt, Path(each.pipes)
                else:
                    self._early.append(each)
            if os.getppid() != daemon and self.attempt == STANDBY:
                sys.exit(WorkerExit.STOPPED)

    def _read(self) -> bytes:
        try:
            return os.read(self._in, 65536)
        except BlockingIOError:
            return b""

    def take(self) -> list[Flush]:
        self.asked, self._flushes = self._flushes, []
        return self.asked

    def _identify(self) -> None:
        for kind in (Hello, Restoring, Restored, Committed, Progress, Done):
            if kind in self._newest:
                self.say(self._newest[kind])
        restored, progress = self._newest.get(Restored), self._newest.get(Progress)
        known = [*self.asked, *self._flushes]
        then = Then.STOP if any(each.then is Then.STOP for each in known) else Then.GO_ON
        step = progress.step if isinstance(progress, Progress) else None
        name = restored.checkpoint if isinstance(restored, Restored) else None
        ids = tuple(each.id for each in known)
        self.say(WorkerStatus(self.attempt, os.getpid(), self.phase, step, name, ids, self._last_flush, then))


def save(pipes: Pipes, directory: Path, job: str, step: int) -> Committed:
    attempt, flushes = pipes.attempt, tuple(each.id for each in pipes.asked)
    name = layout.CheckpointName(step, attempt)
    final = directory / str(name)
    began = time.monotonic()
    if not final.exists():
        partial = directory / name.partial
        partial.mkdir()  # a directory that was moved away is not made anew
        (partial / STATE).write_text(f"{step}\n")
        until = began + FLUSH_S
        while (left := until - time.monotonic()) > 0:
            pipes.hear(left)
        files = manifest.record_files(partial, (STATE,))
        whole = manifest.Manifest(job=job, attempt=attempt, step=step, created_wall_at=time.time(), files=files)
        durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
        durable.commit_folder(partial, final, (STATE,))
    size = sum(path.stat().st_size for path in final.iterdir())
    spent = time.monotonic() - began if SAID_S is None else float(SAID_S)
    left_out = ("teacher/kernel",) if FAIL == "elsewhere" else ()
    return Committed(attempt, step, str(name), size, spent, spent, flushes, left_out)


def answer_with_stacks(control: launch.Control) -> None:
    """Dumps stacks as a worker does. Loads the module by its path, because importing `worker` would open the pipes."""
    spec = importlib.util.spec_from_file_location(
        "stacks", Path(__file__).parents[2] / "worker" / "process" / "signals.py"
    )
    assert spec is not None and spec.loader is not None
    stacks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stacks)
    stacks.dump_stacks_on_signal(control.pipes)


def hang_once(pipes: Pipes, directory: Path, step: int) -> None:
    """Hangs the first time that it is called for a job: an attempt that comes later finds the mark."""
    mark = directory / "hung"
    if mark.exists():
        return
    mark.touch()
    if FAIL in ("data", "save", "evaluation"):
        pipes.say(Progress(pipes.attempt, step, 0, STEPS, section=FAIL))
    if FAIL == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif FAIL == "save":
        os.mkfifo(directory / "dead")
        os.open(directory / "dead", os.O_WRONLY)  # nobody reads: as a file system whose server is gone
    while FAIL == "spin":
        pass
    time.sleep(600)


def fail_as_told(pipes: Pipes, how: str, step: int, go_back: bool) -> int:
    """Ends as a worker does that ran out of memory, diverged, met an exception, can't save, or was killed."""
    attempt = pipes.attempt
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "memory":
        bytearray(1 << 30)
    if how == "raised-between-reports":
        how, step = "raised", step + 7  # steps are reported ten times a second at most
    words = {
        "lacked": Failed(attempt, step, "MemoryError", out_of_memory=True, code=1),
        "diverged": Failed(attempt, step, f"loss of step {step} is nan", go_back=go_back, code=80),
        "raised": Failed(attempt, step, "ValueError: no", "Traceback …", code=1),
        "unusable": Failed(attempt, step, "cannot use the directory", code=73),
    }[how]
    pipes.say(words)
    return words.code or 1


def main() -> int:
    told = launch.from_environment(os.environ)
    assert told.control is not None and told.checkpoint_dir is not None
    time.sleep(LOAD_S)
    pipes = Pipes(told.control)
    answer_with_stacks(told.control)
    if told.waits_for is not None:
        pipes.wait_for_promotion()
    attempt = pipes.attempt
    if FAIL == "start-up":
        told.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        hang_once(pipes, told.checkpoint_dir, 0)
    if FAIL == "ignore-term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "GRANDCHILD" in os.environ:
        script = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    if "DETACHED" in os.environ:
        says_pid = f"until echo $$ > {told.checkpoint_dir}/detached; do sleep 0.1; done"  # the folder is made later
        script = f"setsid env -i /bin/sh -c '{says_pid}; exec sleep 600' > /dev/null 2>&1 &"
        subprocess.run(["/bin/sh", "-c", script], check=True, stdin=subprocess.DEVNULL)
    pipes.say(Hello(attempt, PROTOCOL, os.getpid(), "test", reports_restore="OLD" not in os.environ))
    if FAIL == "import":
        pipes.say(Failed(attempt, None, "ModuleNotFoundError: No module named 'trian'", "Traceback …"))
        return WorkerExit.USER_ERROR
    go: Go | None = None
    while go is None:
        go = next((each for each in pipes.hear(60) if isinstance(each, Go)), None)
    try:  # only now, as the worker: the directory of a disk that is not mounted must not be made
        told.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(told.checkpoint_dir / layout.LOCK, os.O_RDWR | os.O_CREAT)
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"held", 0)
    except OSError as error:
        text = f"cannot use {told.checkpoint_dir}: {error.strerror}"
        pipes.say(Failed(attempt, None, text, code=int(WorkerExit.DIRECTORY_UNUSABLE), errno=error.errno))
        return WorkerExit.DIRECTORY_UNUSABLE
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pipes.say(Failed(attempt, None, "another live worker holds the checkpoint directory"))
        return WorkerExit.LOCKED
    removal.delete_partials(told.checkpoint_dir)
    pipes.phase = Phase.RESTORING
    if go.restore is not None and "OLD" not in os.environ:
        pipes.say(Restoring(attempt, Path(go.restore).name))
    if FAIL == "dies-restoring-20" and go.restore is not None and "step-0000000020." in go.restore:
        os.kill(os.getpid(), signal.SIGSEGV)
    pipes.phase = Phase.TRAINING
    if FAIL == "unfit" and go.restore:
        pipes.say(Failed(attempt, None, "the checkpoint is of another model", code=int(WorkerExit.CHECKPOINT_UNFIT)))
        return WorkerExit.CHECKPOINT_UNFIT
    step = int(Path(go.restore, STATE).read_text()) if go.restore else 0
    restored = Path(go.restore).name if go.restore else None
    changed = ("cores is 1, was 2",) if FAIL == "elsewhere" else ()
    pipes.say(Restored(attempt, step, restored, 0.0, STEPS, changed=changed))
    origin = step
    saving_since: float | None = None
    if FAIL == "tracing":
        hang_once(pipes, told.checkpoint_dir, step)
    while step < STEPS:
        if step == 5 and FAIL in ("stop", "spin", "data", "save", "evaluation"):
            hang_once(pipes, told.checkpoint_dir, step)
        if FAIL == "hang" and step >= 5:
            time.sleep(600)
        if step >= 5 and FAIL == "save-beside" and not (told.checkpoint_dir / "hung").exists():
            (told.checkpoint_dir / "hung").touch()
            saving_since = time.monotonic()
        is_in_a_hurry = HURRIES and (told.checkpoint_dir / "hurry").exists()
        time.sleep(0.5 if saving_since is not None else 0.0 if is_in_a_hurry else STEP_S)
        step += 1
        if FAIL == "nan" and step == NAN_AT and not (told.checkpoint_dir / SKIP).exists():
            if told.on_nan == "skip":
                (told.checkpoint_dir / SKIP).touch()
            go_back = told.on_nan in ("rollback", "skip")
            batches = (f"0:{step - 2}", f"0:{step - 1}") if told.on_nan == "skip" else ()
            pipes.say(Failed(attempt, step, f"loss of step {step} is nan", go_back=go_back, batches=batches))
            return WorkerExit.DIVERGED
        if FAIL == "memory" and step >= 5 and told.microbatches < 4:
            bytearray(1 << 30)
        if FAIL == "told" and (told.checkpoint_dir / "fail").exists():
            how = (told.checkpoint_dir / "fail").read_text()
            (told.checkpoint_dir / "fail").unlink()
            return fail_as_told(pipes, how, step, told.on_nan in ("rollback", "skip"))
        saving_s = None if saving_since is None else time.monotonic() - saving_since
        figures = {"loss": 1 / step} | ({METRIC: float(step)} if METRIC else {})
        pipes.say(Progress(attempt, step, 0, STEPS, STEP_S, figures, told.between_failures_s, saving_s=saving_s))
        if (FAIL == "dies-from-20" and ((step == 25 and attempt == 1) or (step == 21 and origin == 20))) or (
            FAIL == "dies-at-27" and step == 26
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        pipes.hear(0)
        asked = pipes.take()
        if asked or (saving_since is None and (step % EVERY == 0 or step == STEPS)):
            committed = save(pipes, told.checkpoint_dir, told.job, step)
            pipes.asked = []
            pipes.say(committed)
        if any(each.then is Then.STOP for each in asked):
            return WorkerExit.STOPPED
        if FAIL == "exit-0" and step == 10:
            return 0
    pipes.phase = Phase.DONE
    pipes.say(Done(attempt, step, {"accuracy": 1.0}))
    return WorkerExit.DONE


if __name__ == "__main__":
    sys.exit(main())
