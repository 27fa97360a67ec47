"""A worker that does not outlive its daemon: it waits for the next one, and leaves if none comes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from supervisor.host.processes.process_status import read_start_time
from supervisor.protocol.wire.launch import DaemonIdentity
from tests.waiting import TIMEOUT_S, stays

pytestmark = pytest.mark.integration


WORKER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
opened = [open("/dev/null") for _ in range(int(sys.argv[1]))]
from supervisor.protocol.wire.launch import DaemonIdentity
from worker.process.orphan_watch import OrphanWatch
from worker.process.requests import PendingRequests
daemon = lambda: DaemonIdentity(*map(int, sys.stdin.readline().split()))
watch = OrphanWatch(daemon(), PendingRequests(), orphaned_s=0.5, save_s=0.0)
watch.start()
while True:
    print("follows", flush=True)
    watch.on_adopted(daemon())
"""


class Worker:
    """A process that waits, under a daemon of its own, with so many files open."""

    def __init__(self, daemon: DaemonIdentity, files: int = 0) -> None:
        command = [sys.executable, "-c", WORKER, str(files)]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True)
        self.adopt(daemon)

    def adopt(self, daemon: DaemonIdentity) -> None:
        """Tells it of its daemon; it follows that one then."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{daemon.pid} {daemon.start_time}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "follows\n"

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> tuple[int, str]:
        """Waits until it has left: its exit status, and what it said."""
        assert self.process.stderr is not None
        return self.process.wait(TIMEOUT_S), self.process.stderr.read()


Follow = Callable[..., Worker]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Makes a worker."""
    workers: list[Worker] = []

    def begin(daemon: DaemonIdentity, files: int = 0) -> Worker:
        workers.append(Worker(daemon, files))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.process.kill()
        worker.process.communicate()


@pytest.fixture
def daemons() -> Iterator[list["subprocess.Popen[bytes]"]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def identity(process: "subprocess.Popen[bytes]") -> DaemonIdentity:
    return DaemonIdentity(process.pid, read_start_time(process.pid) or 0)


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def test_it_saves_and_leaves_when_no_other_daemon_comes(
    daemons: list["subprocess.Popen[bytes]"], follow: Follow
) -> None:
    worker = follow(identity(daemons[0]))
    stays(worker.is_alive, "it trains on", 1.0)

    end(daemons[0])

    status, said = worker.end()
    assert status == 143 and "no other came within 0.5 s; saves and leaves" in said


def test_the_next_daemon_takes_it_over_and_is_watched_too(
    daemons: list["subprocess.Popen[bytes]"], follow: Follow
) -> None:
    worker = follow(identity(daemons[0]))
    worker.adopt(identity(daemons[1]))
    end(daemons[0])
    stays(worker.is_alive, "it trains on", 1.0)

    end(daemons[1])

    assert worker.end()[0] == 143


def test_a_pid_that_was_used_again_is_no_daemon(daemons: list["subprocess.Popen[bytes]"], follow: Follow) -> None:
    assert follow(DaemonIdentity(daemons[0].pid, 1)).end()[0] == 143


def test_a_worker_with_many_open_files_leaves_too(daemons: list["subprocess.Popen[bytes]"], follow: Follow) -> None:
    worker = follow(identity(daemons[0]), files=1100)  # beyond what select(2) can look at

    end(daemons[0])

    assert worker.end()[0] == 143


HIDDEN = """
import os
from supervisor.protocol.wire.launch import DaemonIdentity
from worker.process.daemon_process import wait_for_end
from worker.process.standby import open_daemon_pidfd
from pathlib import Path
daemon = DaemonIdentity(os.getpid(), int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]))
if os.fork() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os.close(open_daemon_pidfd(daemon))
    print("gone" if wait_for_end(daemon, 0) else "alive", flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_daemon_that_may_not_be_looked_at_is_alive(hidepid: int) -> None:
    mount = f'mount -t proc -o hidepid={hidepid} proc /proc && "$@"'
    hide = ["unshare", "--pid", "--fork", "--mount", "sh", "-c", mount, "sh"]
    if os.geteuid() != 0 or subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can make a /proc that hides processes")

    done = subprocess.run([*hide, sys.executable, "-c", HIDDEN], check=False, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("alive\n", "")
