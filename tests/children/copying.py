"""Has processes that copy their state die in the third copy, and prints which steps are proven then, as JSON.

`instructions MANY`: a list for a death before each instruction of the code that copies, until MANY in a row came too
late; each holds the steps that are proven, newest first. `moments COUNT`: the same for kills at moments that nobody
chose. A process of its own, as a fork of one that has run other tests takes longer than the copies.
"""

import itertools
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.protocol.memory_tier import layout
from supervisor.protocol.memory_tier.layout import Description, FilePlace, NoCopy
from worker.saving.memory_file import MemoryFile

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


def at_instructions(many: int) -> list[list[int]]:
    copier, outcomes = Copier(10_000), []
    for number in itertools.count(1):
        outcomes.append(copier.die_at_instruction(number))
        if outcomes[-many:] == [[12, 11]] * many:
            break
    return outcomes


def at_moments(count: int) -> list[list[int]]:
    copier, moments = Copier(30_000_000), random.Random(5)
    return [copier.die_at_moment(moments.uniform(0.0, 0.1)) for _ in range(count)]


if __name__ == "__main__":
    print(json.dumps({"instructions": at_instructions, "moments": at_moments}[sys.argv[1]](int(sys.argv[2]))))
