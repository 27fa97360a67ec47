"""A disk that hangs holds up nobody else, and not the end of the process."""

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from supervisor.host import blocking_calls
from supervisor.host.blocking_calls import BlockingCalls, run_within
from tests.waiting import wait_until

HANGS = """
import asyncio, threading
from pathlib import Path
from supervisor.host.blocking_calls import BlockingCalls

async def main():
    begun = threading.Event()

    def hang():
        begun.set()
        threading.Event().wait()

    task = asyncio.create_task(BlockingCalls().run(Path("/dead/log"), hang))
    await asyncio.sleep(0)
    assert begun.wait(60)
    task.cancel()

asyncio.run(main())
print("left")
"""


@pytest.mark.integration
def test_a_call_that_never_returns_does_not_keep_the_process(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout == "left\n"


async def test_a_folder_that_hangs_holds_up_no_other():
    disks, released = BlockingCalls(), threading.Event()
    stuck = asyncio.create_task(disks.run(Path("/dead/log"), released.wait))

    assert await asyncio.wait_for(disks.run(Path("/well/log"), lambda: 7), 20) == 7

    assert not stuck.done()
    released.set()
    assert await asyncio.wait_for(stuck, 20)


async def test_error_of_a_blocking_call_is_raised_to_its_caller():
    disks = BlockingCalls()

    with pytest.raises(FileNotFoundError):
        await disks.run(Path("/x/y"), Path("/nonexistent/file").stat)

    assert await disks.run(Path("/x/y"), str, 5) == "5"


def test_a_call_that_hangs_is_waited_for_once() -> None:
    is_over = threading.Event()
    began = time.monotonic()

    for _ in range(3):
        with pytest.raises(TimeoutError):
            run_within(0.2, "alice", is_over.wait)
    took_s = time.monotonic() - began
    others = run_within(5.0, "bob", lambda: "answered")
    is_over.set()

    assert took_s < 0.5
    assert others == "answered"
    wait_until(lambda: not blocking_calls._late["alice"].is_alive(), "it has come back")
    with pytest.raises(ZeroDivisionError):
        run_within(5.0, "alice", lambda: 1 // 0)
