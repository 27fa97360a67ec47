"""Lines of the helper: whatever comes, it is a message within its limits or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gpus.guard import Guard
from supervisor.core.gpus.health import MAX_GPUS, MAX_PIDS, GpuHealth
from supervisor.core.gpus.xid import XidLine
from supervisor.host.gpu_guard import messages
from supervisor.protocol.wire.codec import ProtocolError, fit_record
from supervisor.protocol.wire.lines import MAX_LINE_BYTES
from tests.fuzzing import cases, contents

FULL = GpuHealth(
    31, "GPU-" + "a" * 92, "0000:c5:00.0", "N" * 96, 15, "e" * 200, 1, *(1 << 62,) * 2, True, True, *(1 << 62,) * 2
)
SAMPLES = (
    messages.GpuList(7, (GpuHealth(0, "GPU-a", "0000:c5:00.0", recovery=0, pids=(1, 2)),), 0, "why"),
    messages.XidSeen(79, "0000:c5:00.0", "NVRM: Xid", 0.5, 12, 2, True, 99, 3),
    messages.NameSeen("0000:c5:00.0", "GPU-a"),
    messages.MemoryHeld(3, {"12": 5}),
    messages.Sources("cannot read", "none"),
    messages.DriverHangs("nvmlInit", 10.0),
    messages.CaughtUp(4),
)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: messages.Message) -> None:
    assert messages.LINES.decode(messages.LINES.encode(message)) == message


def test_the_largest_host_fits_into_a_line() -> None:
    gpu = fit_record(
        GpuHealth(**{**{name: getattr(FULL, name) for name in FULL.__slots__}, "pids": ((1 << 31) - 1,) * MAX_PIDS})
    )
    line = messages.LINES.encode(messages.GpuList(1, (gpu,) * MAX_GPUS, 0, "w" * 300))

    assert len(line) < MAX_LINE_BYTES
    held = messages.MemoryHeld(1, {str(pid): 1 << 62 for pid in range(1 << 30, (1 << 30) + messages.MAX_HOLDERS)})
    assert len(messages.LINES.encode(held)) < MAX_LINE_BYTES


@pytest.mark.fuzz
@cases(500)
@given(st.sampled_from(SAMPLES).map(messages.LINES.encode).flatmap(contents))
def test_whatever_a_helper_writes_is_bounded_or_refused(line: bytes) -> None:
    try:
        message = messages.LINES.decode(line)
    except ProtocolError:
        return
    guard = Guard()
    match message:
        case messages.GpuList():
            assert len(message.gpus) <= MAX_GPUS and all(len(gpu.uuid) <= 96 for gpu in message.gpus)
            guard.on_health(message.gpus, [], 1e9)
        case messages.XidSeen():
            assert len(message.text) <= 300 and len(message.address) <= 32
            guard.on_line(XidLine(message.number, message.address, message.pid, message.recovery), [], 1e9)
        case messages.NameSeen():
            guard.records.on_named(message.address, message.uuid)
