"""What a dead worker left in memory gets to the next one, and to nobody else. Real sockets, memory and processes."""

import asyncio
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.memory_tier.memory_socket import MOST_CLOSING, MemorySocket
from supervisor.host.peers import SO_PASSRIGHTS
from tests.host.slow_to_close import freed_late, slow_to_close
from tests.reading import descriptors
from tests.waiting import turn_loop

pytestmark = pytest.mark.integration

RECEIVE = """
import os, socket, sys
if len(sys.argv) > 2:
    os.setuid(int(sys.argv[2]))
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect("\\0" + sys.argv[1])
_, descriptors, _, _ = socket.recv_fds(connection, 100, 1)
print(*[os.pread(descriptor, 100, 0).decode() for descriptor in descriptors])
try:
    os.write(descriptors[0], b"x")
except (OSError, IndexError) as error:
    print(type(error).__name__)
"""


@pytest.fixture
def held() -> Iterator[HeldMemory]:
    descriptor = os.memfd_create("state", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"step 10")
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    it = HeldMemory(os.getpid(), descriptor, None)
    os.close(descriptor)
    yield it
    it.close()


async def receive(name: str, user: int | None = None) -> list[str]:
    """What a process of that user gets there."""
    command = [sys.executable, "-I", "-c", RECEIVE, name, *([] if user is None else [str(user)])]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True, timeout=30)
    return str(ran.stdout).splitlines()


async def test_it_is_handed_over_for_reading_as_often_as_it_is_asked_for(held: HeldMemory) -> None:
    offered = MemorySocket(held)
    try:
        assert await receive(offered.name) == ["step 10", "OSError"]
        assert await receive(offered.name) == ["step 10", "OSError"]
    finally:
        offered.close()


async def test_once_it_is_closed_nobody_finds_it(held: HeldMemory) -> None:
    offered = MemorySocket(held)
    offered.close()
    offered.close()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, pytest.raises(ConnectionRefusedError):
        connection.connect(f"\0{offered.name}")


@pytest.mark.hostile
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_gets_nothing(held: HeldMemory) -> None:
    offered = MemorySocket(held)
    try:
        assert await receive(offered.name, user=65534) == ["", "IndexError"]
    finally:
        offered.close()


@pytest.mark.hostile
@pytest.mark.parametrize("when", ["let in", "waiting"])
async def test_what_a_stranger_attaches_holds_nobody_up(held: HeldMemory, when: str) -> None:
    offered = MemorySocket(held)
    with contextlib.suppress(OSError):  # as before Linux 6.16, where it can't be refused
        offered._socket.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
    ours, theirs = slow_to_close(limit_s=120)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(f"\0{offered.name}")
        socket.send_fds(stranger, [b"x"], [ours.fileno()])
        ours.close()

        with freed_late(theirs) as was_held:
            if when == "let in":
                await turn_loop()
                assert await receive(offered.name) == ["step 10", "OSError"]
            offered.close()

    assert not was_held.is_set()


@pytest.mark.hostile
async def test_strangers_who_keep_many_from_being_closed_cost_few_descriptors(held: HeldMemory) -> None:
    offered = MemorySocket(held)
    with contextlib.suppress(OSError):
        offered._socket.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
    ours, theirs = slow_to_close(limit_s=120)
    with contextlib.ExitStack() as connected:
        for number in range(3 * MOST_CLOSING):
            stranger = connected.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            stranger.connect(f"\0{offered.name}")
            if number == 0:
                socket.send_fds(stranger, [b"x"], [ours.fileno()])
        ours.close()
        before = descriptors()
        await turn_loop(4 * MOST_CLOSING)
        let_in = descriptors() - before
        theirs.close()
    offered.close()

    assert 1 <= let_in <= MOST_CLOSING
