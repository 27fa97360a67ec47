"""The site of the soak: small disks, the jobs' configuration, the daemon, and the processes of each job."""

import contextlib
import ctypes
import http.client
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.harness import ROOT
from bench.soak_hostile import HOSTILE_STEP, USER, Canaries, python_of_user, python_path
from supervisor.host.processes import marks
from supervisor.protocol.checkpoints import manifest, selection
from tests.reading import records
from tests.system.harness import TRAINER, Daemon, Refused, let_others_in

PR_SET_CHILD_SUBREAPER = 36
REAP_S = 0.1
START_S = 90.0  # of a daemon on a machine with ten times as much to do as it has cores
DISK_BYTES = 64 << 20  # of the file system of some checkpoints: an hour's rounds of the small job, 0.2 MB each, fit
STATE_BYTES = 128 << 20  # of the ledger's: there are hundreds of programs in an hour, each with 50 KB of metrics

SETTINGS = """notices=file
notice_dir={folder}/notices
runtime_dir={folder}/run
logfile_maxbytes=0
"""
NOISE = "import sys\nwhile True: sys.stdout.write('x' * 4096 + '\\n'); sys.stderr.write('y' * 300 + '\\n')"
FLOOD = f"""[program:flood]
command={sys.executable} -c "exec(open('{{folder}}/noise.py').read())"
autostart=false
autorestart=false
stdout_logfile={{folder}}/flood.log
stdout_logfile_maxbytes=1MB
stdout_logfile_backups=1
stderr_logfile=NONE
"""


@dataclass(frozen=True)
class Kind:
    """A kind of job. `script`: a part of its workers' command line; `keys`: its section's; `hangs`: it may be left
    hanging, for it starts so fast that a short limit is safe. `has_user`: it runs as another user, who is hostile.
    `has_mirror`: its checkpoints are mirrored.
    """

    name: str
    script: str
    keys: str
    environment: dict[str, str] = field(default_factory=dict)
    hangs: bool = True
    on_small_disk: bool = False
    has_user: bool = False
    has_mirror: bool = False


PYTHON_OF_USER = python_of_user()
HOSTILE = Kind(
    "other",
    TRAINER.name,
    f"command={PYTHON_OF_USER} {TRAINER}\nuser={USER}\nhang_timeout=6\nstartup_timeout=40\nflush_timeout=5\n"
    "stdout_logfile_backups=2",
    {"STEPS": "3000", "STEP_S": "0.01", "EVERY": "40", "FLUSH_S": "0.05", "PYTHONPATH": python_path()},
    has_user=True,
)
KINDS = (
    *([HOSTILE] if PYTHON_OF_USER else []),
    Kind(
        "count",
        TRAINER.name,
        f"command={sys.executable} {TRAINER}\nhang_timeout=6\nstartup_timeout=40\nflush_timeout=5",
        {"STEPS": "3000", "STEP_S": "0.01", "EVERY": "40", "FLUSH_S": "0.05"},
    ),
    Kind(
        "mirrored",
        TRAINER.name,
        f"command={sys.executable} {TRAINER}\nhang_timeout=6\nstartup_timeout=40\nflush_timeout=5\n"
        "mirror=file://%(here)s/store",
        {"STEPS": "3000", "STEP_S": "0.01", "EVERY": "40", "FLUSH_S": "0.02"},
        has_mirror=True,
    ),
    Kind(
        "family",
        TRAINER.name,
        f"command={sys.executable} {TRAINER}\nhang_timeout=6\nstartup_timeout=40\nflush_timeout=5\nstopwaitsecs=3",
        {"STEPS": "3000", "STEP_S": "0.01", "EVERY": "60", "FLUSH_S": "0.02", "GRANDCHILD": "1"},
    ),
    Kind(
        "plain",
        "plain.py",
        f"command={sys.executable} -u {ROOT}/examples/plain.py\ncheckpoint_interval=500 steps\n"
        "hang_timeout=30\nstartup_timeout=60",
        {"STEPS": "40000", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        on_small_disk=True,
    ),
    Kind(
        "faulty",
        "faulty.py",
        f"command={sys.executable} -u {ROOT}/tests/children/faulty.py\ncheckpoint_interval=40 steps\non_nan=rollback\n"
        "hang_timeout=8\nstartup_timeout=60\nstopwaitsecs=4\nmemory_limit=600MB\nstandby=warm",
        {"STEPS": "2000", "STEP_S": "0.01", "FAULT": "told", "MARKS": "%(here)s/marks/%(program_name)s"},
    ),
    Kind(
        "digits",
        "digits.py",
        f"command={sys.executable} -u {ROOT}/examples/digits.py\nreplicas=2\ndeterministic=true\n"
        "checkpoint_interval=100 steps\nhang_timeout=300\nstartup_timeout=240",
        hangs=False,
    ),
)


@dataclass(frozen=True)
class Running:
    """A worker that is alive: `began`: its start time, which tells it from a later process of its pid."""

    program: str
    attempt: int
    pid: int
    began: float


def send_signal(worker: Running, number: int) -> None:
    """Sends it, unless the worker is gone."""
    with contextlib.suppress(ProcessLookupError, psutil.Error):
        if psutil.Process(worker.pid).create_time() == worker.began:
            os.kill(worker.pid, number)


class Site:
    """A folder with a daemon and jobs; the jobs run in rounds, each a program of its own."""

    def __init__(self, folder: Path, kinds: tuple[Kind, ...]) -> None:
        self.folder = folder
        self.kinds = kinds
        self.rounds: dict[str, int] = {}
        self._sections: dict[str, str] = {"": FLOOD.format(folder=folder)}
        for name in ("notices", "jobs", "small", "state", "users", "users/logs", "store", "store/any"):
            (folder / name).mkdir()
        self.canaries = Canaries(folder / "roots")
        self.canaries.plant()
        if PYTHON_OF_USER:
            let_others_in(folder)
            for name in ("users", "users/logs"):
                shutil.chown(folder / name, USER)
        (folder / "notices").chmod(0o755)
        (folder / "noise.py").write_text(NOISE)
        sizes = {"small": DISK_BYTES, "state": STATE_BYTES}
        self.mounted = [name for name, size in sizes.items() if _mount(folder / name, size)]
        self.daemon = Daemon(folder, "", SETTINGS.format(folder=folder), {"PYTHONPATH": str(ROOT)}, scripts_have=None)
        self._reaping = threading.Event()

    def directory(self, program: str) -> Path:
        """The folder of the program's checkpoints."""
        kind = self.kind(program)
        return self.folder / ("small" if kind.on_small_disk else "users" if kind.has_user else "jobs") / program

    def log(self, program: str) -> Path:
        """The log of the program, in its user's folder where it has one."""
        return self.folder / ("users/logs" if self.kind(program).has_user else "") / f"{program}.log"

    def kind(self, program: str) -> Kind:
        return next(kind for kind in self.kinds if program.rpartition("-")[0] == kind.name)

    def add(self, kind: Kind) -> str:
        """Adds a program for one more round of a kind of job. The update starts it."""
        number = self.rounds[kind.name] = self.rounds.get(kind.name, 0) + 1
        program = f"{kind.name}-{number}"
        (self.folder / "marks" / program).mkdir(parents=True)
        environment = ",".join(f'{key}="{value}"' for key, value in kind.environment.items())
        self._sections[program] = (
            f"[program:{program}]\n{kind.keys}\ndirectory={ROOT}\ncheckpoint_dir={self.directory(program)}\n"
            f"checkpoint_keep=3\nenvironment={environment}\nstartretries=1000000\n"
            f"stdout_logfile={self.log(program)}\nredirect_stderr=true\nstdout_logfile_maxbytes=5MB\n"
        )
        self.daemon.write("".join(self._sections.values()))
        self.call("update")
        return program

    def call(self, command: str, patience_s: float = 90.0, **arguments: Any) -> dict[str, Any]:
        """Calls the daemon. Repeats the call while there is no daemon, because another fault may have killed it."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self.daemon.call(command, **arguments)
            except (OSError, ValueError, http.client.HTTPException):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def status(self, program: str) -> dict[str, Any]:
        programs = self.call("status")["programs"]
        return next(entry for entry in programs if entry["name"] == program)

    def try_call(self, command: str, **arguments: Any) -> None:
        """Asks, and takes a refusal for an answer: programs end meanwhile."""
        with contextlib.suppress(Refused, OSError, ValueError, http.client.HTTPException):
            self.daemon.call(command, **arguments)

    def workers(self) -> list[Running]:
        """All workers that are alive, not counting what they started, nor standbys, but one that trains by now."""
        return [process for process in self._processes() if process.attempt or self._trains(process)]

    def standbys(self, program: str) -> list[psutil.Process]:
        """The standby of the job, if there is one."""
        processes = [process for process in self._processes() if process.program == program]
        waiting = [process for process in processes if not process.attempt and not self._trains(process)]
        return [psutil.Process(process.pid) for process in waiting if psutil.pid_exists(process.pid)]

    def _trains(self, standby: Running) -> bool:
        try:
            programs = self.daemon.call("status")["programs"]
        except (OSError, ValueError, http.client.HTTPException, Refused):
            return False
        return any(program["name"] == standby.program and program["pid"] == standby.pid for program in programs)

    def _processes(self) -> list[Running]:
        running = []
        for mark, processes in marks.processes_of_daemon(self.folder / "state").items():
            program = marks.program_of(mark)
            if program not in self._sections:
                continue
            script = self.kind(program).script
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    line = process.cmdline()
                    if process.status() != psutil.STATUS_ZOMBIE and any(argument.endswith(script) for argument in line):
                        began = process.create_time()
                        running.append(Running(program, marks.attempt_of(mark), process.pid, began))
        return running

    def worker(self, program: str) -> Running | None:
        return next((worker for worker in self.workers() if worker.program == program), None)

    def final(self, program: str) -> tuple[int, dict[str, str]]:
        """The step and the hashes of the last checkpoint."""
        names = selection.committed_checkpoints(self.directory(program))
        newest = next(name for name in names if name.step < HOSTILE_STEP)
        files = manifest.verify_checkpoint(self.directory(program) / str(newest)).files
        return newest.step, {file.name: file.hash for file in files}

    def strays(self) -> list[str]:
        """The processes that still carry a mark of this site."""
        marked = marks.processes_of_daemon(self.folder / "state")
        return [
            f"{mark.rpartition('/')[2]} pid {process.pid}"
            for mark, processes in marked.items()
            for process in processes
        ]

    def is_ready(self) -> bool:
        """Whether the daemon has taken over, or started, all its programs."""
        assert self.daemon.process is not None
        ready = [record for record in records(self.folder / "daemon.log") if record["event"] == "daemon.ready"]
        return bool(ready) and ready[-1]["pid"] == self.daemon.process.pid

    @contextlib.contextmanager
    def read_only(self, name: str) -> Iterator[None]:
        """Makes one of the small disks read-only for the duration of the context."""
        remount = ["mount", "-o", "remount,{},size=" + str(DISK_BYTES), str(self.folder / name)]
        done = subprocess.run([word.format("ro") for word in remount], capture_output=True, check=False)
        try:
            yield
        finally:
            if done.returncode == 0:  # it is refused while a file there is open for writing
                subprocess.run([word.format("rw") for word in remount], capture_output=True, check=True)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """With a daemon; in the end nothing of it is left, whatever happened."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        reaper = threading.Thread(target=self._reap, daemon=True)
        reaper.start()
        try:
            self.daemon.start()
            yield
        finally:
            with contextlib.suppress(Exception):
                self.daemon.stop()
            for processes in marks.processes_of_daemon(self.folder / "state").values():
                for process in processes:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            self._reaping.set()
            reaper.join()

    def close(self) -> None:
        """Unmounts; the logger may take a moment to leave."""
        for name in self.mounted:
            subprocess.run(["umount", "-l", str(self.folder / name)], check=False)

    def _reap(self) -> None:
        """As the first process of a host does: orphans come to us."""
        while not self._reaping.wait(REAP_S):
            own = self.daemon.process.pid if self.daemon.process is not None else 0
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error, ChildProcessError):
                    started_by_us = child.pid == own or child.name() in ("mount", "umount")
                    if child.status() == psutil.STATUS_ZOMBIE and not started_by_us:
                        os.waitpid(child.pid, os.WNOHANG)


def _mount(folder: Path, size: int) -> bool:
    """A small file system there, if this user may."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "stepkeeper-soak", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
