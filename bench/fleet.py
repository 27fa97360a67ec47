"""Measures one daemon with many programs, compared with PyPI's Supervisor and Circus.

Run with `python -m bench.fleet [--programs 1 100 400 1000]`. Prints a table for each number and writes
bench/results/fleet.json. Every program is `sleep`, so that only the supervisor is measured. Figures:

start     seconds from the daemon's start to the existence of the last program's process
stop      seconds from SIGTERM to the daemon's end, with all programs gone
respawn   milliseconds from SIGKILL of one program to its next process, median of the kills
answer    milliseconds to the last byte of one answer with every program's state: XML-RPC getAllProcessInfo (circus has
          no such call; its command line is compared instead)
list      the same with Python's xmlrpc.client reading it, which takes as long whoever answers
status    milliseconds of the command line's `status`, start of its interpreter included
memory    MiB of the daemon and its own helpers, programs not counted (PSS, so shared pages are counted once)
files     open descriptors of the same processes
idle CPU  percent of one core over the idle time
"""

import argparse
import contextlib
import http.client
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench import harness, peer

PATIENCE_S = 300.0
RESPAWN_LOOK_S = 0.0005  # how exact `respawn` is
LOOK_S = 0.02  # no oftener: the kernel forks nothing while it lists a process' children
PROGRAM = "/bin/sleep 100000"
ASK = xmlrpc.client.dumps((), "supervisor.getAllProcessInfo")
OURS = """[supervisord]
nodaemon = true
minfds = 1024
{extra}
[unix_http_server]
file = {folder}/s.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl = unix://{folder}/s.sock
[program:p]
command = {program}
numprocs = {count}
process_name = %(program_name)s_%(process_num)04d
startsecs = 1
stdout_logfile = NONE
stderr_logfile = NONE
"""
THEIRS = OURS.replace("minfds = 1024", "minfds = 8192\nlogfile = {folder}/d.log\npidfile = {folder}/d.pid")
CIRCUS = """[circus]
endpoint = ipc://{folder}/endpoint
pubsub_endpoint = ipc://{folder}/pubsub
stats_endpoint = ipc://{folder}/stats
[watcher:p]
cmd = {program}
numprocesses = {count}
"""


@dataclass(frozen=True)
class System:
    """A daemon: its configuration, how it is started, and its status command."""

    name: str
    configuration: str
    command: Callable[[Path], list[str]]
    status: Callable[[Path], list[str]]
    has_rpc: bool = True


@dataclass
class Figures:
    """The measured values, one for each round."""

    start_s: list[float] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    respawn_ms: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    list_ms: list[float] = field(default_factory=list)
    status_ms: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    files: list[float] = field(default_factory=list)
    idle_cpu_percent: list[float] = field(default_factory=list)


def systems() -> list[System]:
    """stepkeeper and the peers, which are installed on first use."""
    theirs, circus = peer.binaries(), peer.binaries(peer.CIRCUS)
    return [
        System(
            "stepkeeper",
            OURS,
            lambda conf: [sys.executable, "-m", "supervisor.daemon", "-c", str(conf)],
            lambda conf: [sys.executable, "-m", "supervisor.ctl.main", "-c", str(conf), "status"],
        ),
        System(
            peer.SUPERVISOR.name,
            THEIRS,
            lambda conf: [str(theirs / "supervisord"), "-n", "-c", str(conf)],
            lambda conf: [str(theirs / "supervisorctl"), "-c", str(conf), "status"],
        ),
        System(
            peer.CIRCUS.name,
            CIRCUS,
            lambda conf: [str(circus / "circusd"), str(conf)],
            lambda conf: [str(circus / "circusctl"), "--endpoint", f"ipc://{conf.parent}/endpoint", "list", "p"],
            has_rpc=False,
        ),
    ]


def measure(system: System, count: int, figures: Figures, options: argparse.Namespace) -> None:
    """One round of one daemon with `count` programs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conf = folder / "bench.conf"
        extra = f"state_dir = {folder}/state" if system.name == "stepkeeper" else ""
        conf.write_text(system.configuration.format(folder=folder, program=PROGRAM, count=count, extra=extra))
        with _running(system.command(conf), folder) as daemon:
            began = time.perf_counter()
            _until(
                lambda: len(_children(daemon)) >= count and len(programs(daemon)) >= count,
                f"{system.name} runs {count} programs",
            )
            figures.start_s.append(time.perf_counter() - began)
            time.sleep(options.settle)
            _measure_idle(daemon, figures, options.idle)
            _measure_answers(system, conf, figures, options.repeats)
            for _ in range(options.kills):
                figures.respawn_ms.append(1000 * _respawn(daemon))
                time.sleep(options.settle)
            began = time.perf_counter()
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(PATIENCE_S)
            figures.stop_s.append(time.perf_counter() - began)


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator[psutil.Popen]:
    with (folder / "daemon.out").open("wb") as out:
        daemon = psutil.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        yield daemon
    finally:
        if daemon.is_running():
            for child in [*daemon.children(recursive=True), daemon]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            daemon.wait(PATIENCE_S)


def programs(daemon: psutil.Process) -> set[int]:
    """Pids of the supervised processes: the daemon's children that have become `sleep`."""
    return set(filter(_is_program, _children(daemon)))


def _is_program(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    return False


def _children(daemon: psutil.Process) -> set[int]:
    """The pids of all supervised processes, found cheaply: the search takes processor time from the daemon."""
    threads = Path(f"/proc/{daemon.pid}/task").iterdir()
    return {int(pid) for thread in threads for pid in (thread / "children").read_text().split()}


def _respawn(daemon: psutil.Process) -> float:
    """Seconds until there is a program that was not there before. A daemon may have other children too."""
    before, victim = _children(daemon), min(programs(daemon))
    began = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    while not any(map(_is_program, _children(daemon) - before)):
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit(f"waited {PATIENCE_S:g} s in vain for the next process")
        time.sleep(RESPAWN_LOOK_S)
    return time.perf_counter() - began


def _measure_idle(daemon: psutil.Process, figures: Figures, idle_s: float) -> None:
    own = [daemon, *(child for child in daemon.children(recursive=True) if child.name() != "sleep")]
    before = sum(sum(process.cpu_times()[:2]) for process in own)
    time.sleep(idle_s)
    figures.idle_cpu_percent.append(100 * (sum(sum(process.cpu_times()[:2]) for process in own) - before) / idle_s)
    figures.memory_mib.append(sum(process.memory_full_info().pss for process in own) / 2**20)
    figures.files.append(sum(process.num_fds() for process in own))


def _measure_answers(system: System, conf: Path, figures: Figures, repeats: int) -> None:
    for _ in range(repeats):
        if system.has_rpc:
            figures.answer_ms.append(1000 * _answer(conf.parent / "s.sock"))
            began = time.perf_counter()
            with xmlrpc.client.ServerProxy("http://localhost/RPC2", _Unix(conf.parent / "s.sock")) as server:
                server.supervisor.getAllProcessInfo()
            figures.list_ms.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        subprocess.run(system.status(conf), cwd=conf.parent, capture_output=True, timeout=PATIENCE_S, check=False)
        figures.status_ms.append(1000 * (time.perf_counter() - began))


def _answer(path: Path) -> float:
    """Seconds."""
    connection = _Unix(path).make_connection(None)
    began = time.perf_counter()
    connection.request("POST", "/RPC2", ASK, {"Content-Type": "text/xml"})
    content = connection.getresponse().read()
    took_s = time.perf_counter() - began
    connection.close()
    assert b"<fault>" not in content
    return took_s


class _Unix(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(str(self._path))
        return connection


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_S:g} s in vain until {what}")
        time.sleep(LOOK_S)


LABELS = {
    "start_s": "start all, s",
    "stop_s": "stop all, s",
    "respawn_ms": "respawn, ms",
    "answer_ms": "answer, ms",
    "list_ms": "list, ms",
    "status_ms": "status, ms",
    "memory_mib": "memory, MiB",
    "files": "open files",
    "idle_cpu_percent": "idle CPU, %",
}


def show(count: int, results: dict[str, Figures]) -> None:
    """A table of medians with their ranges, and stepkeeper's median as a ratio of each peer's."""
    ours, *others = results
    table = Table(f"{count} programs", *results, *(f"ratio to {name}" for name in others))
    for key, label in LABELS.items():
        medians = {name: _median(getattr(figures, key)) for name, figures in results.items()}
        ratios = [_ratio(medians[ours], medians[name]) for name in others]
        table.add_row(label, *(_spread(getattr(figures, key)) for figures in results.values()), *ratios)
    Console(width=140).print(table)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _ratio(mine: float | None, theirs: float | None) -> str:
    return f"{mine / theirs:.2g}" if mine is not None and theirs else "-"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})" if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, nargs="+", default=[1, 100, 400, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="requests per round")
    parser.add_argument("--kills", type=int, default=3, help="kills per round")
    parser.add_argument("--idle", type=float, default=10.0, help="idle seconds per round")
    parser.add_argument("--settle", type=float, default=2.5, help="seconds after which a program counts as started")
    options = parser.parse_args()
    harness.compiled()
    fleets: dict[int, dict[str, Figures]] = {}
    for count in options.programs:
        results = {system: Figures() for system in systems()}
        for _ in range(options.rounds):
            for system, figures in results.items():
                measure(system, count, figures, options)
        fleets[count] = {system.name: figures for system, figures in results.items()}
        show(count, fleets[count])
    measured = {count: {name: vars(result) for name, result in results.items()} for count, results in fleets.items()}
    harness.write("fleet", {"programs": measured})


if __name__ == "__main__":
    main()
