"""A process that copies its state dies at any point of that: what is proven afterwards is the whole state of one step.

Real processes: each makes two copies and dies in the third one, at another instruction of the code that copies, or at a
moment that nobody chose.
"""

import itertools
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.protocol.memory_tier import layout
from supervisor.protocol.memory_tier.layout import Description, FilePlace, NoCopy
from worker.saving.memory_file import MemoryFile

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MANY = 30  # instructions after which it is over
COPYING = ("worker/saving/memory_file.py", "protocol/memory_tier/layout.py")


class Copier:
    """A process with a state of `size` bytes that `dies` when it has made two copies and begins the third.

    Step 10 is copied first, then 11, then 12. Every byte of the state of a step is the step's number.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def die_at_instruction(self, number: int) -> list[int]:
        """The steps that are proven after a death at this instruction of the third copy, newest first."""
        return self._proven_after(lambda: _die_at(number), 12)

    def die_at_moment(self, after_s: float) -> list[int]:
        """The steps that are proven after a kill from outside, while it makes one copy after the other."""
        return self._proven_after(lambda: None, None, after_s)

    def _proven_after(self, arm: Callable[[], object], last: int | None, after_s: float | None = None) -> list[int]:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._copy_until_death(theirs, arm, last)
        theirs.close()
        held = HeldMemory(pid, int(ours.recv(20)), None)
        ours.close()  # it goes on
        if after_s is not None:
            time.sleep(after_s)  # the moment itself
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        try:
            assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed"
            with open(held.descriptor, "rb", closefd=False) as file:
                return self._steps_in(memoryview(file.read()))
        finally:
            held.close()

    def _steps_in(self, memory: memoryview) -> list[int]:
        steps = []
        for half in layout.newest_first(memory):
            try:
                description = layout.prove(half)
            except NoCopy:
                continue
            place = description.files[0]
            assert half[place.offset : place.offset + place.size] == bytes([description.step % 256]) * self._size
            steps.append(description.step)
        return steps

    def _copy_until_death(self, asks: socket.socket, arm: Callable[[], object], last: int | None) -> None:
        try:
            file = MemoryFile(layout.half_bytes(self._size + (1 << 16)))
            for step in (10, 11):
                self._copy(file, step)
            asks.send(str(file.descriptor).encode())
            asks.recv(1)  # nothing comes: it ends when the other side has opened the file
            arm()
            for step in itertools.count(12):
                self._copy(file, step)
                if step == last:
                    os._exit(0)
        finally:
            os._exit(1)  # the test must not go on in the fork

    def _copy(self, file: MemoryFile, step: int) -> None:
        room = file.begin()
        offset, memory = room.take(self._size)
        memory[:] = bytes([step % 256]) * self._size
        room.seal(Description("digits", 3, step, 1.5, (), (FilePlace("state", offset, self._size),)))


def _die_at(number: int) -> None:
    """Has this process kill itself before the `number`th instruction of the code that copies."""
    left = number

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(COPYING):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_instruction

    def on_instruction(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return on_instruction

    sys.settrace(on_call)


def test_before_any_instruction_of_the_copying_code_the_copy_before_is_whole_or_the_new_one() -> None:
    copier, outcomes = Copier(10_000), []

    for number in itertools.count(1):
        outcomes.append(copier.die_at_instruction(number))
        if outcomes[-MANY:] == [[12, 11]] * MANY:
            break

    assert outcomes[0] == [11, 10], "nothing is overwritten yet"
    assert [steps for steps, _ in itertools.groupby(outcomes)] == [[11, 10], [11], [12, 11]]
    assert len(outcomes) > 5 * MANY


def test_a_kill_at_any_moment_leaves_a_whole_copy_of_one_step() -> None:
    copier, moments = Copier(30_000_000), random.Random(5)

    for _ in range(30):
        steps = copier.die_at_moment(moments.uniform(0.0, 0.1))

        assert steps
        assert steps[0] >= 11
        assert steps in ([steps[0]], [steps[0], steps[0] - 1])
