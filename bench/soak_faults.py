"""The faults of the soak. When a function returns, its fault is over or the daemon has to handle it."""

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable

import psutil

from bench import soak_hostile
from bench.soak_site import START_S, Running, Site, send_signal
from bench.soak_storage import (
    disk_full,
    disk_read_only,
    folder_away,
    folder_gone,
    lock_deleted,
    other_jobs_checkpoint,
    state_disk_full,
    stopped_while_ledger_full,
)
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import selection
from tests.system.harness import Refused
from tests.system.killing import Damage, spoil

ANSWER_S = 10.0  # of a daemon that is not held up, on a busy machine
PAUSE_S = 2.0  # at most: of what is taken away and given back
GARBAGE = (
    b"\x00\xff\xfe" * 100 + b"\n",
    b"{" * 3000 + b"\n",
    b'{"type":"progress"}\n',
    b'{"type":"done","attempt":0,"step":1,"metrics":{}}\n',
    b'{"type":"committed","attempt":999999,"step":-5,"checkpoint":"../../etc","flushes":"no"}\n',
    b'{"type":"progress","attempt":1,"step":"many","epoch":null}\n',
    b"[1,2,3]\n",
    b'{"type":"no such thing","attempt":1}\n',
)


def kill(site: Site, worker: Running, chance: random.Random) -> None:
    send_signal(worker, signal.SIGKILL)


def segfault(site: Site, worker: Running, chance: random.Random) -> None:
    send_signal(worker, signal.SIGSEGV)


def terminate(site: Site, worker: Running, chance: random.Random) -> None:
    """Sends SIGTERM, like the `kill` of an operator who does not know what the process is."""
    send_signal(worker, signal.SIGTERM)


def pause(site: Site, worker: Running, chance: random.Random) -> None:
    send_signal(worker, signal.SIGSTOP)
    time.sleep(chance.uniform(0, PAUSE_S))
    send_signal(worker, signal.SIGCONT)


def hang(site: Site, worker: Running, chance: random.Random) -> None:
    """Stops the worker for good, which the daemon has to notice."""
    if site.kind(worker.program).hangs:
        send_signal(worker, signal.SIGSTOP)
    else:
        pause(site, worker, chance)


def from_inside(site: Site, worker: Running, chance: random.Random) -> None:
    """A fault in the worker's own code, at its next step."""
    marks = site.folder / "marks" / worker.program
    words = dict.fromkeys(("raise", "exit-0", "exit-in-save", "hang-in-save", "family", "close-pipes", "eat"), 1)
    if not (marks / "diverged").exists():  # again and again without a better checkpoint it would be given up, rightly
        words["nan"] = 3
    (word,) = chance.choices(list(words), list(words.values()))
    if word == "nan":
        (marks / "diverged").touch()
    (marks / "new").write_text(word)
    (marks / "new").rename(marks / "told")


def standby_killed(site: Site, worker: Running, chance: random.Random) -> None:
    """Kills the standby; sometimes it is needed at the same moment."""
    for standby in site.standbys(worker.program):
        with contextlib.suppress(psutil.Error):
            standby.kill()
    if chance.random() < 0.5:
        send_signal(worker, signal.SIGKILL)


def damage(site: Site, worker: Running, chance: random.Random) -> None:
    """The newest checkpoint, while the worker can't write another; then it dies."""
    send_signal(worker, signal.SIGSTOP)
    names = selection.committed_checkpoints(site.directory(worker.program))
    if len(names) > 1:
        spoil(site.directory(worker.program) / str(names[0]), chance.choice(list(Damage)))
    send_signal(worker, signal.SIGKILL)


def garbage(site: Site, worker: Running, chance: random.Random) -> None:
    """Writes invalid lines into the pipe from the worker."""
    pipe = site.folder / "run" / worker.program / f"a{worker.attempt}" / layout.FROM_WORKER
    with contextlib.suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            for _ in range(chance.choice((1, 10, 300))):
                os.write(descriptor, chance.choice(GARBAGE))
        finally:
            os.close(descriptor)


def stop_and_start(site: Site, worker: Running, chance: random.Random) -> None:
    with contextlib.suppress(Refused):  # it may have come to its end
        site.call("stop", name=worker.program, wait=chance.random() < 0.5)
    time.sleep(chance.uniform(0, PAUSE_S))
    site.call("start", name=worker.program, wait=False)


def restart(site: Site, worker: Running, chance: random.Random) -> None:
    site.try_call("restart", name=worker.program, wait=False)


def flush(site: Site, worker: Running, chance: random.Random) -> None:
    site.try_call("checkpoint", name=worker.program, wait=False)


def daemon_killed(site: Site, worker: Running, chance: random.Random) -> None:
    """kill -9, and another one at once or after a moment; with luck a worker dies meanwhile."""
    site.daemon.stop(signal.SIGKILL)
    if chance.random() < 0.3:
        send_signal(worker, signal.SIGKILL)
    time.sleep(chance.choice((0.0, chance.uniform(0, PAUSE_S))))
    site.daemon.start(START_S)


def daemon_reloaded(site: Site, worker: Running, chance: random.Random) -> None:
    site.try_call("reload")


def keeper_killed(site: Site, worker: Running, chance: random.Random) -> None:
    """Kills the process that reads program output."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(site.folder / "state") in line and any("supervisor.host.logs.logger" in argument for argument in line):
            with contextlib.suppress(psutil.Error):
                process.kill()


def flood(site: Site, worker: Running, chance: random.Random) -> None:
    """Starts a program that prints as fast as it can."""
    site.try_call("start", name="flood", wait=False)
    time.sleep(chance.uniform(0, PAUSE_S))
    site.call("stop", name="flood", wait=False)


def notice(site: Site, worker: Running, chance: random.Random) -> None:
    """Posts a notice and withdraws it. Its deadline is far away, or so near that jobs save and stop."""
    deadline_s = chance.choice((3.0, 20.0, 300.0))
    path = site.folder / "notices" / "soak.json"
    path.write_text(json.dumps({"version": 1, "kind": "preemption", "in_s": deadline_s, "reason": "soak"}))
    time.sleep(chance.uniform(0, 2 * PAUSE_S))
    path.unlink()


def clients(site: Site, worker: Running, chance: random.Random) -> None:
    """Opens connections that send nothing, or an incomplete request, and closes them."""
    opened = []
    for _ in range(20):
        with contextlib.suppress(OSError):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            opened.append(connection)
            connection.connect(str(site.daemon.socket))
            connection.sendall(chance.choice((b"", b"POST /api/v1/sta", b"\x16\x03\x01 nonsense\r\n\r\n")))
    with contextlib.suppress(OSError):
        site.daemon.follow_and_leave(worker.program)
    time.sleep(chance.uniform(0, PAUSE_S))
    for connection in opened:
        connection.close()


def hostile_files(site: Site, worker: Running, chance: random.Random) -> None:
    """The job's user plants links, trees, pipes or costly content; nobody else waits for that."""
    other = next((candidate for candidate in site.workers() if site.kind(candidate.program).has_user), None)
    if other is None:
        return
    pipes = site.folder / "run" / other.program / f"a{other.attempt}"
    log, directory = site.log(other.program), site.directory(other.program)
    script, stdin = soak_hostile.script_of(chance, site.canaries.folder, log, pipes)
    planting = threading.Thread(target=soak_hostile.shell, args=(directory, script, stdin))
    planting.start()
    while planting.is_alive():
        _answers_soon(site)
        time.sleep(0.1)
    if chance.random() < 0.5:
        send_signal(other, signal.SIGKILL)
        _answers_soon(site)


def _answers_soon(site: Site) -> None:
    began = time.monotonic()
    site.call("status")
    took_s = time.monotonic() - began
    assert took_s < ANSWER_S, f"the daemon answered after {took_s:.1f} s"


def forged_marks(site: Site, worker: Running, chance: random.Random) -> None:
    """Other users' processes claim to be the worker; with luck the daemon is replaced while they live."""
    if soak_hostile.python_of_user() is None:
        return
    soak_hostile.forge(worker.pid, chance)
    if chance.random() < 0.5:
        daemon_killed(site, worker, chance)


Fault = Callable[[Site, Running, random.Random], None]
FAULTS: dict[Fault, int] = {
    kill: 6, segfault: 2, terminate: 2, pause: 2, hang: 2, damage: 4, garbage: 3, stop_and_start: 3, restart: 2,
    flush: 2, daemon_killed: 4, daemon_reloaded: 2, keeper_killed: 2, flood: 2, notice: 3, clients: 2, disk_full: 2,
    from_inside: 10, hostile_files: 8, forged_marks: 2, standby_killed: 2, disk_read_only: 2, state_disk_full: 2,
    folder_gone: 1, folder_away: 3, other_jobs_checkpoint: 2, stopped_while_ledger_full: 2, lock_deleted: 2,
}  # fmt: skip
"""Each with its weight."""
