"""Lines of NVIDIA's driver, as they were seen, and as nobody should write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gpus.faults import Follows, Remedy, xid_fault
from supervisor.core.gpus.xid import MAX_TEXT, GpuNamed, XidLine, XidReader, normal_address
from tests.fuzzing import cases

ADDRESS = "0000:c5:00.0"


def read(line: str) -> XidLine | GpuNamed | None:
    return XidReader().read(line)


@pytest.mark.parametrize(
    ("line", "number", "address", "pid"),
    [
        ("NVRM: Xid (PCI:0000:c5:00): 31, pid=2512, name=python3.10, Ch 00000008, intr 00000000.", 31, ADDRESS, 2512),
        ("NVRM: Xid (0000:03:00): 13, 0001 00000000", 13, "0000:03:00.0", None),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE", 94, "0000:01:00.0", 7194),
        ("NVRM: Xid (PCI:0000:c5:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off", 79, ADDRESS, None),
        ("NVRM: Xid (PCI:0008:01:00): 74, NVLink: fatal error", 74, "0008:01:00.0", None),
        ("NVRM: Xid (PCI:0000:C5:00.0): 45, pid=1, name=x", 45, ADDRESS, 1),
        ("[12.5] NVRM: Xid (PCI:0000:c5:00): 185, pid=0", 185, ADDRESS, None),
    ],
)  # fmt: skip
def test_the_ways_in_which_drivers_write_an_xid(line: str, number: int, address: str, pid: int | None) -> None:
    seen = read(line)

    assert isinstance(seen, XidLine)
    assert (seen.number, seen.address, seen.pid) == (number, address, pid)


@pytest.mark.parametrize(
    ("words", "action"),
    [
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", 2),
        ("from 0x0 (None) to 0x1 (PF FLR)", 1),
        ("from 0x1 (GPU Reset Required) to 0x0 (None)", 0),
        ("from 0x0 (None) to 0xF (New)", 15),
    ],
)
def test_a_recovery_action_is_read_from_its_number(words: str, action: int) -> None:
    seen = read(f"NVRM: Xid (PCI:0000:c5:00): 154, GPU recovery action changed {words}")

    assert isinstance(seen, XidLine)
    assert seen.recovery == action


@pytest.mark.parametrize(
    ("word", "follows"), [("Fatal", Follows.LEAVE_OUT), ("Nonfatal", Follows.NOTE), ("", Follows.NOTE)]
)
def test_an_nvlink_error_is_as_bad_as_it_says(word: str, follows: Follows) -> None:
    seen = read(f"NVRM: Xid (PCI:0000:c5:00): 145, RLW_SRC_TRACK {word} XC1 i0 Link 17 (0x0 0x0)")

    assert isinstance(seen, XidLine)
    fault = xid_fault(seen)
    assert fault is not None and fault.follows is follows


@pytest.mark.parametrize(
    "lines",
    [
        ["NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus."],
        ["NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330) has fallen off the bus and is not responding"],
        [
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:2330) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
    ],
)  # fmt: skip
def test_a_gpu_that_vanishes_without_an_xid_counts_as_79(lines: list[str]) -> None:
    reader = XidReader()
    *_, last = [reader.read(line) for line in lines]

    assert isinstance(last, XidLine)
    assert (last.number, last.address) == (79, "0000:b3:00.0")


def test_the_driver_says_which_gpu_is_at_an_address() -> None:
    line = "NVRM: GPU at PCI:0000:00:05: GPU-6f2e3dd8-7c0a-f3d4-0b0a-3a5c2f0a1b2c"

    assert read(line) == GpuNamed("0000:00:05.0", "GPU-6f2e3dd8-7c0a-f3d4-0b0a-3a5c2f0a1b2c")


@pytest.mark.parametrize(
    "line",
    [
        "usb 1-1: new high-speed USB device",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.148",
        "NVRM: Xid (PCI:0000:c5:00): , pid=1",
        "NVRM: Xid (PCI:zz): 79",
        "NVRM: fallen off the bus",  # which?
    ],
)
def test_what_says_nothing_of_a_gpu_is_nothing(line: str) -> None:
    assert read(line) is None


CRASH = "[4711]: segfault at 0 ip 00007f3a sp 00007ffd error 14 in "


@pytest.mark.hostile
@pytest.mark.parametrize(
    "line",
    [
        f"x{CRASH}NVRM: Xid (PCI:0000:c5:00): 79, pid=1, GPU has fallen off the bus.[400000+1000]",
        f"x{CRASH}NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.[400000+1000]",
        f"x{CRASH}NVRM: GPU at PCI:0000:00:05: GPU-6f2e3dd8-7c0a-f3d4-0b0a-3a5c2f0a1b2c[400000+1000]",
        f"NVRM: GPU 01:00{CRASH}fallen off the bus[400000+1000]",  # 15 characters
        f"NVRM: Xid (PCI:{CRASH}0000:c5:00): 79, pid=1[400000+1000]",
        "NVRM: GPU 01:00: page allocation failure: order:5, nodemask=(null),cpuset=fallen off the bus,mems_allowed=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/u/NVRM: Xid (PCI:0000:c5:00): 79, pid=1,task=x,pid=2,uid=3",
    ],
)
def test_what_a_user_calls_a_process_a_file_or_a_group_breaks_no_gpu(line: str) -> None:
    reader = XidReader()
    reader.read("NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:2330)")

    assert reader.read(line) is None


@pytest.mark.hostile
def test_the_name_of_a_process_makes_no_nvlink_error_worse() -> None:
    seen = read("NVRM: Xid (PCI:0000:c5:00): 145, pid=7, name=x Fatal, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x0 0x0)")

    assert isinstance(seen, XidLine)
    assert seen.is_fatal is False


def test_addresses_of_nvml_and_of_the_kernel_are_the_same() -> None:
    assert normal_address("00000000:C5:00.0") == normal_address("0000:c5:00") == normal_address("c5:00") == ADDRESS


WORDS = "NVRM: |Xid |(PCI:|0000:c5:00|): |154|79|, |pid=|ffffffffffff| (x)|GPU-|Fatal|\0|é|99999|fallen off the bus"
PIECES = st.sampled_from([*WORDS.split("|"), "GPU recovery action changed from 0x0 (None) to 0x", "GPU at PCI:"])


@pytest.mark.fuzz
@cases(500)
@given(st.lists(st.lists(PIECES | st.text(max_size=8), max_size=14).map("".join), max_size=6))
def test_no_line_is_an_error_and_what_is_read_is_bounded(lines: list[str]) -> None:
    reader = XidReader()
    for line in lines:
        seen = reader.read(line)
        if isinstance(seen, XidLine):
            xid_fault(seen)
            assert 0 <= seen.number < 100_000 and len(seen.text) <= MAX_TEXT and len(seen.address) <= 16
            assert seen.pid is None or 0 < seen.pid < 1 << 31
            assert seen.recovery is None or 0 <= seen.recovery < 1 << 32


def test_unknown_numbers_are_noted_and_new_actions_leave_the_gpu_out() -> None:
    unknown = xid_fault(XidLine(51, ADDRESS))
    newer = xid_fault(XidLine(154, ADDRESS, recovery=9))

    assert unknown is not None and unknown.follows is Follows.NOTE
    assert newer is not None and (newer.follows, newer.remedy) == (Follows.LEAVE_OUT, Remedy.INSPECT)
    assert xid_fault(XidLine(154, ADDRESS, recovery=0)) is None
