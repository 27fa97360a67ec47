"""This process takes part in a proof of exactness: it records each step, kills itself where planned, ends where told.

`supervisor/protocol/proof_plan.py` describes the files. Of processes that train together, the first one records and
kills itself; the others save and end at the same steps as it does.
"""

import hashlib
import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

from supervisor.protocol import layout
from supervisor.protocol.proof import KillPlace
from supervisor.protocol.proof_plan import (
    END,
    RECORD,
    Begun,
    Killed,
    Line,
    Named,
    PlannedKill,
    ReachedValues,
    StepDone,
    WorkerPlan,
    damage_newest,
    decode_line,
    encode_line,
)

SHORTEST_S = 0.0005  # of a kill in the middle of a step: there is no step to measure before the second one
_PACKAGE = Path(__file__).parent.parent.parent


class ProofMode:
    """What this process does for a proof. A step is counted over all runs that the script makes one after the other."""

    def __init__(self, folder: Path, checkpoint_dir: Path | None, is_first: bool) -> None:
        """`is_first`: of the processes that train together. Raises OSError; ProtocolError if the plan can't be read."""
        self._folder = folder
        self._directory = checkpoint_dir
        self._is_first = is_first
        self._plan = WorkerPlan.read(folder)
        self._end = self._plan.end
        self._kill, self._number = self._next_kill()
        self._record = _open_record(folder / RECORD) if is_first else None
        self._attempt = 0
        self._step = 0
        self._before = 0  # steps of the script's runs that have ended
        self._stepped_at: float | None = None
        self._step_s: float | None = None  # of the last step
        self._is_first_step = True
        self._is_armed = False  # a timer is about to kill this process
        self._damaged: str | None = None  # the checkpoint that was damaged for it
        self._left_out: tuple[str, ...] = ()  # names in leave_out
        self._dying = threading.Lock()
        if self._kill is not None and self._kill.place is KillPlace.SAVE and is_first:
            sys.addaudithook(self._on_audit_event)

    def _next_kill(self) -> tuple[PlannedKill | None, int]:
        """The planned kill of this attempt, with its number: the first one that has not happened."""
        try:
            lines = (self._folder / RECORD).read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        number = sum(isinstance(decode_line(line), Killed) for line in lines if line.startswith(b'{"killed"'))
        return (self._plan.kills[number], number) if number < len(self._plan.kills) else (None, number)

    def begin_run(self, attempt: int, step: int, kind: str) -> None:
        """A run was entered, and has restored `step`."""
        self._before += self._step
        self._step, self._attempt, self._stepped_at = step, attempt, None
        self._is_first_step = True
        self._write(Begun(attempt, self._before + step, kind, sys.executable, _files_of_script()))

    def without_left_out(self, left_out: Sequence[Any]) -> tuple[Any, ...]:
        """What the checks may leave out in a proof: nothing, so that it names all. `left_out`: what the script says."""
        self._left_out = tuple(name for name in left_out if isinstance(name, str))
        return ()

    def name_findings(self, named: Iterable[tuple[str, str]]) -> None:
        """Records what the checks found, as name and remedy."""
        for name, remedy in named:
            self._write(Named(self._attempt, name, remedy, any(_is_named(word, name) for word in self._left_out)))

    def watches_begin(self) -> bool:
        """Whether to record the values that the loop reaches where this attempt begins."""
        return self._plan.watches_restarts and self._is_first and self._before + self._step > 0

    def record_values(self, values: Mapping[str, str], *, is_begin: bool) -> None:
        """Records the values that the loop reaches."""
        self._write(ReachedValues(self._attempt, self._before + self._step, is_begin, values))

    def record_step(
        self,
        step: int,
        position: tuple[int, int, int | None],
        metrics: Mapping[str, Any],
        reach: Callable[[], Mapping[str, str]],
    ) -> None:
        """Records a step that is done. `position`: epoch, batches and examples. `reach`: gives the values that the loop
        reaches."""
        now, before = time.monotonic(), self._stepped_at
        self._stepped_at, self._step = now, step
        self._step_s = None if before is None else now - before
        if self._is_first:
            bits = {name: _bits_of(value) for name, value in metrics.items()}
            self._write(StepDone(self._attempt, self._before + step, now, *position, metrics=bits))
            if self._before + step in self._plan.watched or (self._is_first_step and self._plan.watches_restarts):
                self.record_values(reach(), is_begin=False)
            self._is_first_step = False
        if self._is_armed:
            self._die(self._before + step, self._damaged)  # the step was shorter than half of the one before

    def follow_plan(self, save: Callable[[], object], settle: Callable[[], object]) -> bool:
        """Kills this process if that is planned at this step boundary. Returns whether training ends as complete.

        `save`: commits a checkpoint of this step, and waits for it; `settle`: waits for the save in flight.
        """
        step, kill = self._before + self._step, self._kill
        if kill is not None and kill.place is not KillPlace.SAVE and step >= kill.step:
            self._kill = None
            if kill.saves:
                save()
            else:
                settle()  # a kill in a save is another one; this one has a checkpoint to begin from
            if self._is_first:
                self._kill_here(kill, step)
        return self._ends_at(step)

    def _kill_here(self, kill: PlannedKill, step: int) -> None:
        self._damaged = damaged = self._damage_newest() if kill.damages else None
        if kill.place is KillPlace.EPOCH_EDGE:
            self._die(step, damaged)
        self._is_armed = True
        timer = threading.Timer(max(SHORTEST_S, (self._step_s or 0.0) / 2), self._die, (step, damaged))
        timer.daemon = True
        timer.start()

    def _ends_at(self, step: int) -> bool:
        if self._end is None and (self._folder / END).exists():
            self._end = int((self._folder / END).read_text())
        return self._end is not None and step >= self._end

    def _on_audit_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Kills this process when a checkpoint is about to be committed: all of its files are written."""
        if event != "os.rename" or self._kill is None:
            return
        name = layout.checkpoint_name_in(Path(os.fsdecode(arguments[0])).name)
        if name is None or not os.fsdecode(arguments[0]).endswith(layout.PARTIAL):
            return
        if self._before + name.step >= self._kill.step:
            damaged = self._damage_newest() if self._kill.damages else None
            self._die(self._before + name.step, damaged)

    def _damage_newest(self) -> str | None:
        return None if self._directory is None else damage_newest(self._directory)

    def _die(self, step: int, damaged: str | None = None) -> NoReturn:
        with self._dying:  # a timer and the loop may come here at the same time; the lock is never released
            self._write(Killed(self._attempt, self._number, step, damaged))
            os.kill(os.getpid(), signal.SIGKILL)
            while True:  # until the signal arrives
                time.sleep(1.0)

    def _write(self, line: Line) -> None:
        if self._record is not None:
            self._record.write(encode_line(line))


def _open_record(path: Path) -> FileIO:
    """To be appended to, behind a line that the attempt before may have been killed in."""
    record = path.open("ab+", buffering=0)
    size = record.seek(0, os.SEEK_END)
    if size and os.pread(record.fileno(), 1, size - 1) != b"\n":
        record.write(b"\n")
    return record


def _is_named(word: str, finding: str) -> bool:
    """Whether a finding is about what a script calls `word`."""
    return word in finding.replace(" ", ".").replace("[", ".").replace("(", ".").split(".") or finding.startswith(word)


def _bits_of(value: Any) -> tuple[str, ...]:
    """The exact bits of a metric, of each replica."""
    return tuple(_bits_of_one(part) for part in getattr(value, "values", (value,)))


def _bits_of_one(value: Any) -> str:
    try:
        return float(value).hex()
    except (TypeError, ValueError):
        numpy = sys.modules.get("numpy")
        content = repr(value).encode() if numpy is None else numpy.asarray(value).tobytes()
        return f"sha256:{hashlib.sha256(content).hexdigest()[:16]}"


def _files_of_script() -> tuple[str, ...]:
    """The script's own modules that are loaded: neither installed packages nor Python's."""
    elsewhere = [_PACKAGE / "worker", _PACKAGE / "supervisor"]
    elsewhere += [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]
    paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {Path(path).absolute() for path in paths if isinstance(path, str) and path.endswith(".py")}
    own = (path for path in files if not any(path.is_relative_to(place) for place in elsewhere))
    return tuple(sorted(str(path) for path in own if "site-packages" not in path.parts))
