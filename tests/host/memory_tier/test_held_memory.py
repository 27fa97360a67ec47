"""A daemon takes hold of memory of the job's own user, and of nothing else that a worker may name."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from supervisor.host.memory_tier.held_memory import MOST_NAMED, HeldMemory
from tests.reading import descriptors
from tests.silent_mount import SilentMount
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

MAKE = """
import fcntl, os, signal, sys, time
def memory(size=4096, written=None, seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, name="x"):
    descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, size)
    os.pwrite(descriptor, b"state".ljust(size if written is None else written), 0)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
def lease(descriptor):
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    leased = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    os.close(descriptor)
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return leased
"""
OPENED = {
    "memory": "memory()",
    "memory with holes": "memory(1 << 40, 4096)",
    "memory with a lease": "lease(memory())",
    "memory that can shrink": "memory(seals=fcntl.F_SEAL_GROW)",
    "memory that can grow": "memory(seals=fcntl.F_SEAL_SHRINK)",
    "memory that is about to be replaced": "(memory(name='stepkeeper-state'), time.sleep(0.05), "
    "os.pwrite(memory(name='stepkeeper-state'), b'empty', 0))[0]",
    "much memory of that name": "[memory(name='stepkeeper-state') for _ in range(500)][0]",
    "memory of a worker that can grow": "memory(seals=fcntl.F_SEAL_SHRINK, name='stepkeeper-state')",
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
        code = f"{MAKE}\n{become}print({OPENED[what]}, flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", code, str(tmp_path / "file"), *map(str, arguments)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(command, **streams))  # type: ignore[call-overload]
        return started[-1].pid, int(started[-1].stdout.readline())  # type: ignore[union-attr]

    yield start
    for each in started:
        each.communicate()


def test_memory_stays_as_it_is_when_its_process_has_been_killed() -> None:
    code = f"{MAKE}\nprint(memory(5), flush=True); input()"
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


def make_memory(size: int) -> int:
    descriptor = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.truncate(descriptor, size)
    os.posix_fallocate(descriptor, 0, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def test_who_lets_go_of_much_memory_does_not_wait_until_the_kernel_has_freed_it() -> None:
    """Which takes some 0.2 s for a gigabyte: the event loop lets go of what dead workers left."""
    descriptor = make_memory(256 << 20)
    freeing_s = -time.monotonic()
    os.close(descriptor)
    freeing_s += time.monotonic()
    descriptor = make_memory(256 << 20)
    held = HeldMemory(os.getpid(), descriptor, None)
    number = held.descriptor
    os.close(descriptor)

    letting_go_s = -time.monotonic()
    held.close()
    letting_go_s += time.monotonic()

    assert letting_go_s < freeing_s / 4
    wait_until(lambda: not Path(f"/proc/self/fd/{number}").is_symlink(), "it is freed")


@pytest.mark.parametrize("what", [name for name in OPENED if "memory" not in name])
def test_what_is_no_memory_is_refused_without_being_opened(process: Callable[..., tuple[int, int]], what: str) -> None:
    named = process(what)
    before = descriptors()

    with pytest.raises(OSError, match="not a file in memory of the job's user") as refused:
        HeldMemory(*named, None)

    assert refused.value.errno == errno.EPERM
    assert descriptors() == before


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("memory with holes", "it has holes"),
        ("memory that can shrink", "not sealed"),
        ("memory that can grow", "not sealed"),
    ],
)
def test_memory_that_would_cost_its_reader_is_refused(process: Callable[..., tuple[int, int]], what: str, why: str):
    named = process(what)
    before = descriptors()

    with pytest.raises(OSError, match=why):
        HeldMemory(*named, None)

    assert descriptors() == before


@pytest.mark.hostile
def test_a_lease_on_memory_holds_nobody_up(process: Callable[..., tuple[int, int]]) -> None:
    """Opening it would wait for /proc/sys/fs/lease-break-time, 45 s, in the event loop."""
    named = process("memory with a lease")
    before = descriptors()
    refusal: Future[None] = Future()
    threading.Thread(target=try_to_hold, args=(*named, refusal), daemon=True).start()

    with pytest.raises(BlockingIOError):
        refusal.result(5.0)
    assert descriptors() == before


def try_to_hold(pid: int, descriptor: int, refusal: "Future[None]") -> None:
    try:
        HeldMemory(pid, descriptor, None)
    except OSError as error:
        refusal.set_exception(error)


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.parametrize("name", ["file", "memfd:state"])
def test_a_file_on_a_disk_that_does_not_answer_is_not_looked_at(tmp_path: Path, name: str) -> None:
    """Nor one that is called as memory is, once its disk is unmounted: whoever may mount in user space can do that."""
    code = "import os, sys; print(os.open(sys.argv[1], os.O_RDONLY), flush=True); sys.stdin.read()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    refusal: Future[None] = Future()

    with (
        SilentMount(tmp_path / "mount", name=name) as mount,
        subprocess.Popen([sys.executable, "-c", code, mount.file], **streams) as worker,  # type: ignore[call-overload]
    ):
        descriptor = int(worker.stdout.readline())
        mount.answers_attributes = False
        if name != "file":
            subprocess.run(["umount", "-l", mount.at], check=True)
            assert Path(f"/proc/{worker.pid}/fd/{descriptor}").readlink() == Path("/memfd:state")
        threading.Thread(target=try_to_hold, args=(worker.pid, descriptor, refusal), daemon=True).start()
        try:
            with pytest.raises(OSError, match="not a file in memory"):
                refusal.result(5.0)
        finally:
            worker.kill()


def test_a_process_that_is_gone_has_none(process: Callable[..., tuple[int, int]]) -> None:
    pid, descriptor = process("memory")

    with pytest.raises(FileNotFoundError):
        HeldMemory(pid, descriptor + 100, None)
    with pytest.raises(FileNotFoundError):
        HeldMemory(1 << 22, descriptor, None)


def test_what_workers_call_so_is_found_without_their_word(process: Callable[..., tuple[int, int]]) -> None:
    """Of two the older one: the other has no copy yet."""
    other, _ = process("a file")
    pid, _ = process("memory that is about to be replaced")
    held = HeldMemory.find([other, 1 << 22, pid], None)

    assert held is not None
    assert os.pread(held.descriptor, 5, 0) == b"state"
    held.close()
    assert HeldMemory.find([other], None) is None
    with pytest.raises(OSError, match="its size is not sealed"):
        HeldMemory.find([process("memory of a worker that can grow")[0]], None)


@pytest.mark.hostile
def test_a_process_with_many_of_that_name_costs_few_descriptors(process: Callable[..., tuple[int, int]]) -> None:
    """Without one to spare, the daemon could not reach the workers of others, which it would end."""
    pid, _ = process("much memory of that name")
    before = descriptors()
    seen: list[int] = []

    class Counted(HeldMemory):
        def __init__(self, pid: int, descriptor: int, owner: int | None) -> None:
            super().__init__(pid, descriptor, owner)
            seen.append(descriptors() - before)

    held = Counted.find([pid], None)

    assert held is not None
    assert max(seen) <= MOST_NAMED + 2
    held.close()


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
