"""The helper for GPUs as the daemon sees it: a real process, real nvidia-ml-py, and a driver that may hang."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from supervisor.core.failures.gpu_activity import GpuLoad
from supervisor.host.gpu_guard import messages
from supervisor.host.gpu_guard.client import GpuHelper, GuardClient, HelperHangs
from tests.gpu_host import UUIDS, GpuHost
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

CALLS = (
    "nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetName", "nvmlDeviceGetFieldValues", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetComputeRunningProcesses",
)  # fmt: skip
WITHIN_S = 1.0


class Heard:
    """A client and what its helper says by itself."""

    def __init__(self, helper: GpuHelper, folder: Path) -> None:
        self.news: list[messages.News] = []
        self.client = GuardClient(helper, folder / "lock", lambda: None, self.news.append)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.news if isinstance(message, kind)]

    async def until(self, look: Any, what: str) -> None:
        await asyncio.to_thread(wait_until, look, what, 20.0)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GpuHost]:
    with GpuHost(tmp_path) as made:
        yield made


@pytest.fixture
async def heard(host: GpuHost, tmp_path: Path) -> AsyncIterator[Heard]:
    made = Heard(host.helper(poll_s=0.5, within_s=10 * WITHIN_S), tmp_path)
    made.client.start()
    yield made
    made.client.close()


async def test_links_that_come_up_after_the_first_look_are_read(host: GpuHost, heard: Heard) -> None:
    host.are("links=0")
    assert (await heard.client.list_gpus()).gpus[0].nvlink_errors is None

    host.are("links=2 link_errors=3")

    assert (await heard.client.list_gpus()).gpus[0].nvlink_errors == 2 * 4 * 3


async def test_it_tells_how_each_gpu_is_and_who_holds_its_memory(host: GpuHost, heard: Heard) -> None:
    host.are("pids=7,9 recovery=0 ecc_c=5 ecc_u=1 pending=1 failed=0 slow=0x48 links=2 link_errors=3", "error=15")

    first, second = (await heard.client.list_gpus()).gpus

    assert (first.uuid, first.address, first.name, first.pids) == (UUIDS[0], "0000:1a:00.0", "Stand-in", (7, 9))
    assert (first.recovery, first.ecc_corrected, first.ecc_uncorrected, first.slow_bits) == (0, 5, 1, 0x48)
    assert (first.remap_pending, first.remap_failed, first.nvlink_errors) == (True, False, 2 * 4 * 3)
    assert (second.uuid, second.error, second.error_text) == (UUIDS[1], 15, "GPU is lost")
    held = await heard.client.memory_held(5.0)
    assert held.by_pid is None or held.by_pid == {"7": 1 << 20, "9": 1 << 20}


async def test_lists_of_processes_are_made_only_where_somebody_asks(host: GpuHost, heard: Heard) -> None:
    host.are("pids=7 recovery=0")
    await heard.client.list_gpus()
    heard.news.clear()

    await heard.until(lambda: len(heard.of(messages.GpuList)) >= 2, "it has asked by itself")

    assert all(not gpu.pids for listed in heard.of(messages.GpuList) for gpu in listed.gpus)


async def test_what_is_not_supported_is_not_known(host: GpuHost, heard: Heard) -> None:
    host.are("plain=1")

    gpu = (await heard.client.list_gpus()).gpus[0]

    known = (gpu.recovery, gpu.ecc_corrected, gpu.remap_failed, gpu.slow_bits, gpu.nvlink_errors)
    assert known == (None,) * 5 and gpu.error == 0


async def test_a_driver_of_another_version_is_told_with_its_number(host: GpuHost, tmp_path: Path) -> None:
    host.are(init=18)
    heard = Heard(host.helper(within_s=5.0), tmp_path)
    heard.client.start()

    listed = await heard.client.list_gpus()

    assert (listed.error, listed.is_from_nvml) == (18, False)
    heard.client.close()


@pytest.mark.parametrize("call", CALLS)
async def test_a_driver_that_hangs_in_a_call_holds_nobody_and_the_log_is_heard(
    host: GpuHost, tmp_path: Path, call: str
) -> None:
    host.are("links=1", hangs=call)
    heard = Heard(host.helper(poll_s=0.5, within_s=WITHIN_S), tmp_path)
    heard.client.start()

    began = time.monotonic()
    with pytest.raises(HelperHangs, match="has not answered"):
        await heard.client.list_gpus()
    took_s = time.monotonic() - began
    with pytest.raises(HelperHangs):
        await heard.client.list_gpus()
    again_s = time.monotonic() - began - took_s

    assert took_s < WITHIN_S + 2.0 and again_s < 0.2, "one that is known to hang is not waited for"
    host.xid(79)
    await heard.until(lambda: heard.of(messages.XidSeen), "the kernel's log is heard")
    pid = heard.client.pid
    assert pid is not None and psutil.pid_exists(pid), "it is left alone"
    heard.client.close()


@pytest.mark.slow  # the helper looks at itself for ten seconds
async def test_the_call_that_hangs_is_named_and_its_return_too(host: GpuHost, heard: Heard) -> None:
    await heard.client.list_gpus()
    host.are(hangs="nvmlDeviceGetRemappedRows")

    await heard.until(lambda: heard.of(messages.DriverHangs), "it says that it hangs")

    assert heard.of(messages.DriverHangs)[0].call == "nvmlDeviceGetRemappedRows"
    assert "nvmlDeviceGetRemappedRows" in (heard.client.hangs or "")


async def test_a_helper_that_dies_is_replaced(host: GpuHost, heard: Heard) -> None:
    await heard.client.list_gpus()
    first = heard.client.pid
    assert first is not None

    os.kill(first, signal.SIGKILL)

    await heard.until(lambda: heard.client.pid not in (None, first), "there is another")
    for _ in range(5):
        try:
            assert (await heard.client.list_gpus()).gpus
            break
        except HelperHangs:
            continue
    else:
        pytest.fail("the other one does not answer")


async def test_there_is_no_second_one_while_the_first_lives(host: GpuHost, tmp_path: Path) -> None:
    first, second = (Heard(host.helper(within_s=10.0), tmp_path) for _ in range(2))
    first.client.start()
    await first.client.list_gpus()

    second.client.start()
    await second.until(lambda: second.client.hangs, "the second is told")

    assert second.client.hangs == "an earlier helper hangs in NVIDIA's driver"
    assert second.of(messages.GpuList) == []
    for each in (first, second):
        each.client.close()


async def test_it_ends_with_its_daemon(host: GpuHost, tmp_path: Path) -> None:
    host.are(hangs="nvmlDeviceGetCount")
    heard = Heard(host.helper(within_s=WITHIN_S), tmp_path)
    heard.client.start()
    await heard.until(lambda: heard.client.pid, "it runs")
    process = heard.client._process
    assert process is not None and process.stdin is not None
    pid = process.pid

    process.stdin.close()

    await heard.until(lambda: heard.client.pid != pid, "it is gone")
    heard.client.close()


@pytest.mark.parametrize(
    "printed",
    [
        "nonsense",
        '{"type":"GpuList","gpus":[{"index":-1}]}',
        '{"type":"XidSeen","number":79,"address":"0000:c5:00.0","text":"' + "x" * 301 + '"}',
        '{"type":"GpuList","gpus":[' + ",".join(['{"index":1}'] * 33) + "]}",
        '{"type":"Pwned"}',
        '{"type":"XidSeen","number":"79","address":"a","text":"b"}',
        "x" * 70_000,
    ],
)
async def test_a_helper_that_says_what_nobody_expects_is_ended(tmp_path: Path, printed: str) -> None:
    said = f"sys.stdout.write({printed!r} + chr(10)); sys.stdout.flush()"
    code = f"import sys, time; time.sleep(0.5); {said}; time.sleep(600)"  # for long enough to be seen running
    heard = Heard(GpuHelper((sys.executable, "-c", code), tmp_path, answers_within_s=WITHIN_S), tmp_path)
    heard.client.start()
    await heard.until(lambda: heard.client.pid, "it runs")
    pid = heard.client.pid

    await heard.until(lambda: heard.client.pid != pid, "it was ended")

    assert heard.news == []
    heard.client.close()


async def test_what_it_can_not_start_is_no_error(tmp_path: Path) -> None:
    heard = Heard(GpuHelper(("/nonexistent/helper",), tmp_path, answers_within_s=WITHIN_S), tmp_path)
    heard.client.start()

    with pytest.raises(HelperHangs):
        await heard.client.list_gpus()

    heard.client.close()


async def test_lines_of_a_storm_are_told_seldom_and_counted(host: GpuHost, heard: Heard) -> None:
    await heard.client.list_gpus()
    for _ in range(500):
        host.xid(95)
    host.xid(31, pid=5)
    await heard.client.catch_up()
    await heard.until(lambda: len(heard.of(messages.XidSeen)) >= 2, "both are told")

    assert [(seen.number, seen.pid) for seen in heard.of(messages.XidSeen)] == [(95, None), (31, 5)]


async def test_all_that_the_log_has_is_told_before_it_has_caught_up(host: GpuHost, heard: Heard) -> None:
    await heard.client.list_gpus()
    for pid in range(1, 101):
        host.xid(31, pid=pid)

    await heard.client.catch_up()

    assert [seen.pid for seen in heard.of(messages.XidSeen)] == list(range(1, 101))


async def test_loads_are_those_of_all_gpus_that_tell_them(host: GpuHost, heard: Heard) -> None:
    host.are("busy=97 memory_busy=41 power=298000", "busy=0 memory_busy=0", "error=15", "recovery=0", count=4)

    loads = (await heard.client.loads(5.0)).loads

    assert loads == (GpuLoad(UUIDS[0], 97, 41, 298_000), GpuLoad(UUIDS[1], 0, 0, None))
