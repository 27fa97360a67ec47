"""A daemon takes hold of memory of the job's own user, and of nothing else that a worker may name."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.host.memory_tier.held_memory import HeldMemory

pytestmark = pytest.mark.integration

OPENED = {
    "memory": "os.memfd_create('x')",
    "a file": "os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)",
    "a deleted file": "(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), os.unlink(sys.argv[1]))[0]",
    "a file that only root can read": "os.open('/etc/shadow', os.O_PATH)",
    "a device": "os.open('/dev/zero', os.O_RDWR)",
    "a pipe": "os.pipe()[0]",
    "a folder": "os.open('/', os.O_RDONLY)",
    "somebody else's memory": "os.open('/proc/%s/fd/%s' % tuple(sys.argv[2:]), os.O_PATH)",
}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., tuple[int, int]]]:
    """Starts a process that opens one of these; gives its pid and the descriptor."""
    started: list[subprocess.Popen[bytes]] = []

    def start(what: str, user: int | None = None, *arguments: object) -> tuple[int, int]:
        become = "" if user is None else f"os.setresuid({user}, {user}, {user}); "
        code = f"import os, sys; {become}print({OPENED[what]}, flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code, str(tmp_path / "file"), *map(str, arguments)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, **streams))  # type: ignore[call-overload]
        return started[-1].pid, int(started[-1].stdout.readline())  # type: ignore[union-attr]

    yield start
    for each in started:
        each.communicate()


def test_memory_stays_as_it_is_when_its_process_has_been_killed() -> None:
    code = "import os; f = os.memfd_create('x'); os.write(f, b'state'); print(f, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        held = HeldMemory(worker.pid, int(worker.stdout.readline()), None)
        worker.kill()
        worker.wait()

    assert (held.size_bytes, os.pread(held.descriptor, 99, 0)) == (5, b"state")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(held.descriptor, b"x")
    held.close()
    held.close()


@pytest.mark.parametrize("what", [name for name in OPENED if name not in ("memory", "somebody else's memory")])
def test_what_is_no_memory_is_refused_without_being_opened(process: Callable[..., tuple[int, int]], what: str) -> None:
    named = process(what)
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="not a file in memory of the job's user") as refused:
        HeldMemory(*named, None)

    assert refused.value.errno == errno.EPERM
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_gone_has_none(process: Callable[..., tuple[int, int]]) -> None:
    pid, descriptor = process("memory")

    with pytest.raises(FileNotFoundError):
        HeldMemory(pid, descriptor + 100, None)
    with pytest.raises(FileNotFoundError):
        HeldMemory(1 << 22, descriptor, None)


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_memory_of_another_user_is_refused_also_by_way_of_the_jobs_own_process(
    process: Callable[..., tuple[int, int]],
) -> None:
    roots = process("memory")
    with pytest.raises(OSError, match="of the job's user"):
        HeldMemory(*roots, 41001)

    with pytest.raises(OSError, match="of the job's user"):
        HeldMemory(*process("somebody else's memory", None, *roots), 41001)

    HeldMemory(*process("memory", 41001), 41001).close()
