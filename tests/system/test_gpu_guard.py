"""GPUs that fail before a start, while a job trains, and as it dies: a whole daemon on a stand-in for NVIDIA's library
and for the kernel's log.

The claims are those of the table in core/gpus/faults.py; what happens has to follow within FOLLOWS_S.
"""

import http.client
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from _pytest.mark import ParameterSet

from supervisor.host.gpu_guard.child import REPEATED_S
from tests.gpu_host import IN_ORDER, UUIDS, GpuDaemon, GpuHost
from tests.places import CHILDREN
from tests.reading import command_of, records
from tests.system.harness import Daemon, Refused, job
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

ENDLESS = 10_000_000
FOLLOWS_S = 5.0
READ_S = 1.0  # what the helper may take to read a line; only from then on it counts what is a repetition
ILL = 1  # the GPU that fails


@dataclass(frozen=True)
class Case:
    """A fault: `log` writes it to the kernel's log, `state` is what NVML says of the GPU from then on."""

    name: str
    xid: int | None = None
    more: str = ""
    state: str = ""
    leaves_out: bool = True
    saves: bool = True
    restarts: bool = True
    words: str = ""
    names_pid: bool = True


def action(number: int) -> str:
    return f"GPU recovery action changed from 0x0 (None) to {number:#x} (In Words)"


CASES = (
    Case("off-the-bus", 79, state="error=15", saves=False, words="it fell off the bus"),
    Case("uncontained", 95, saves=False, words="was not contained"),
    Case("gsp-timeout", 119, saves=False, words="system processor"),
    Case("pmu-halt", 62, saves=False, words="stopped processing"),
    Case("nvlink", 74, words="NVLink connection failed"),
    Case("remap-not-recorded", 64, words="could not be recorded"),
    Case("nvlink5-fatal", 145, more="RLW_SRC_TRACK Fatal XC1 i0 Link 17 (0x0)", words="a fatal NVLink error"),
    Case("asks-for-reset", 154, more=action(1), state="recovery=1", words="asks for a reset"),
    Case("asks-for-reboot", 154, more=action(2), state="recovery=2", words="asks for a reboot"),
    Case("new-action", 154, more=action(9), state="recovery=9", words="recovery action 9"),
    Case("lost", state="error=15", saves=False, words="GPU is lost"),
    Case("reset-required", state="error=16", saves=False, words="requires a reset"),
    Case("nvml-reset", state="recovery=1", words="asks for a reset"),
    Case("remap-failed", state="recovery=0 failed=1", words="row remapping failed"),
    Case("page-fault", 31, leaves_out=False, words="memory that is not mapped"),
    Case("contained", 94, more="Contained: SM (0x1). RST: No, D-RST: No", leaves_out=False, words="was contained"),
    Case("reduced", 154, more=action(4), state="recovery=4", restarts=False, words="reduced capacity"),
    Case("killed", 45, leaves_out=False, restarts=False),
    Case("unknown", 185, leaves_out=False, restarts=False),
    Case("nvlink5-nonfatal", 145, more="RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x0)", leaves_out=False, restarts=False),
)  # fmt: skip
NAMES = [case.name for case in CASES]


def of_each_kind(cases: Iterable[Case]) -> list[ParameterSet]:
    """Those of which the daemon does the same as of an earlier one are for the night: all occur while a job trains."""
    known, marked = set[tuple[bool, ...]](), list[ParameterSet]()
    for case in cases:
        kind = (case.xid is None, case.names_pid, case.saves, case.leaves_out, case.restarts)
        marked.append(pytest.param(case, marks=pytest.mark.nightly if kind in known else (), id=case.name))
        known.add(kind)
    return marked


class Bench:
    """One daemon with one job on two GPUs, for all cases."""

    def __init__(self, host: GpuHost, daemon: GpuDaemon, folder: Path) -> None:
        self.host, self.daemon, self.folder = host, daemon, folder
        self._said_at: dict[tuple[int, str], float] = {}  # by fault

    def recover(self) -> None:
        """All GPUs in order again, and the job trains on both."""
        self.host.are()
        for gpu in self.daemon.call("gpus")["gpus"]:
            if gpu["left_out"] is not None:
                self.give_back(gpu["uuid"])
        if self.visible() is not None or self.daemon.status("t")["state"] != "RUNNING":
            self.daemon.call("stop", name="t")
            self.daemon.call("start", name="t")
        self.trains()

    def give_back(self, uuid: str) -> None:
        try:
            self.daemon.call("gpu_return", gpu=uuid)
        except Refused as refused:
            assert "is not left out" in refused.message  # NVML has said meanwhile that it is in order again

    def fail(self, case: Case, pid: int | None) -> None:
        """The fault happens."""
        if case.xid is not None:
            said_at = self._said_at.get((case.xid, case.more), -REPEATED_S)
            again_at = said_at + REPEATED_S + READ_S
            wait_until(lambda: time.monotonic() > again_at, "the line is no repetition")
            self._said_at[case.xid, case.more] = time.monotonic()
        if case.state:
            self.host.are("", case.state)
        if case.xid is not None:
            self.host.xid(case.xid, ILL, pid if case.names_pid else None, case.more)

    def trains(self, but: int | None = None) -> dict[str, Any]:
        """Waits until the job trains, in another process than `but`; gives its status."""

        def look() -> dict[str, Any] | None:
            status = self.daemon.status("t")
            fits = status["state"] == "RUNNING" and status["pid"] not in (None, but) and status["job"]["step"]
            return status if fits else None

        return dict(self.daemon.until(look, "it trains"))

    def visible(self) -> str | None:
        pid = self.daemon.status("t")["pid"]
        if pid is None:
            return None
        variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
        name = "CUDA_VISIBLE_DEVICES="
        return next((word.removeprefix(name) for word in variables if word.startswith(name)), None)

    def within(self, began: float, look: Callable[[], Any], what: str) -> Any:
        found = self.daemon.until(look, what)
        took_s = time.monotonic() - began
        assert took_s <= FOLLOWS_S, f"{what}: {took_s:.1f} s"
        return found

    def is_left_out(self) -> bool:
        return bool(self.daemon.call("gpus")["gpus"][ILL]["left_out"])

    def end_of(self, attempt: int) -> dict[str, Any]:
        attempts = self.daemon.call("history", name="t")["attempts"]
        return dict(next(entry for entry in attempts if entry["attempt"] == attempt))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("guard")
    program = job("t", folder, "replicas_min=1\nstartretries=99", STEPS=ENDLESS, EVERY=50, STEP_S=0.02)
    with GpuHost(folder) as host, GpuDaemon(host, folder, program) as daemon:
        yield Bench(host, daemon, folder)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_fault_while_a_job_trains(bench: Bench, case: Case) -> None:
    bench.recover()
    before = bench.trains()

    began = time.monotonic()
    bench.fail(case, before["pid"])

    if case.leaves_out:
        bench.within(began, bench.is_left_out, "the GPU is left out")
    if not case.restarts:
        bench.daemon.until(lambda: bench.daemon.status("t")["job"]["step"] > before["job"]["step"] + 25, "it goes on")
        assert bench.daemon.status("t")["pid"] == before["pid"]
        return
    bench.within(began, lambda: bench.daemon.status("t")["pid"] != before["pid"], "the attempt has ended")
    after = bench.trains(but=before["pid"])
    assert after["job"]["attempt"] == before["job"]["attempt"] + 1, "one relaunch"
    assert bench.visible() == (UUIDS[0] if case.leaves_out else None)
    ended = bench.end_of(before["job"]["attempt"])
    assert ended["cause"] == "gpu-fault" and case.words in ended["text"]
    assert f"GPU {ILL} ({UUIDS[ILL]})" in ended["text"]
    if case.saves:
        assert ended["lost_steps"] == 0, "saved first, where the GPU still answers"
    else:
        assert ended["signal"] == signal.SIGKILL, "nothing is asked of a GPU that is gone"


@pytest.mark.parametrize("case", of_each_kind(case for case in CASES if case.leaves_out))
def test_a_fault_before_a_start(bench: Bench, case: Case) -> None:
    bench.recover()
    bench.daemon.call("stop", name="t")

    began = time.monotonic()
    bench.fail(case, None)
    if case.leaves_out:
        bench.within(began, bench.is_left_out, "the GPU is left out") if case.xid else None
    bench.daemon.call("start", name="t")

    assert bench.visible() == (UUIDS[0] if case.leaves_out else None)
    if case.leaves_out:
        assert case.words in bench.daemon.status("t")["description"]


@pytest.mark.parametrize("case", of_each_kind(case for case in CASES if case.xid))
def test_a_fault_as_a_job_dies(bench: Bench, case: Case) -> None:
    bench.recover()
    before = bench.trains()

    os.kill(before["pid"], signal.SIGSTOP)  # it can't die before the line is there
    bench.fail(case, before["pid"])
    os.kill(before["pid"], signal.SIGSEGV)
    os.kill(before["pid"], signal.SIGCONT)
    began = time.monotonic()

    bench.within(began, lambda: bench.daemon.status("t")["pid"] != before["pid"], "the attempt has ended")
    after = bench.trains(but=before["pid"])
    assert after["job"]["attempt"] == before["job"]["attempt"] + 1
    ended = bench.end_of(before["job"]["attempt"])
    is_reason = case.restarts or case.leaves_out
    assert ended["cause"] == ("gpu-fault" if is_reason else "crash"), ended
    assert not is_reason or case.words in ended["text"]
    assert bench.visible() == (UUIDS[0] if case.leaves_out else None)


# --- daemons of their own ---


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GpuHost]:
    with GpuHost(tmp_path) as made:
        yield made


def endless(folder: Path, keys: str = "replicas_min=1", name: str = "t") -> str:
    return job(name, folder, keys, STEPS=ENDLESS, EVERY=50, STEP_S=0.02)


def helper_of(daemon: GpuDaemon) -> psutil.Process | None:
    assert daemon.process is not None
    children = psutil.Process(daemon.process.pid).children()
    return next((child for child in children if "helper.py" in command_of(child)), None)


HANGING = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetUUID", "nvmlDeviceGetComputeRunningProcesses")


@pytest.mark.parametrize(
    "call", [HANGING[0], *(pytest.param(call, marks=pytest.mark.nightly) for call in HANGING[1:-1]), HANGING[-1]]
)
def test_a_driver_that_hangs_delays_a_start_by_its_limit_and_nothing_else(
    tmp_path: Path, host: GpuHost, call: str
) -> None:
    within_s = 3.0  # ten in production
    host.are(hangs=call)
    with GpuDaemon(host, tmp_path, endless(tmp_path), within_s=within_s) as daemon:
        took = []
        for _ in range(20):
            began = time.monotonic()
            daemon.status("t")
            took.append(time.monotonic() - began)
        began = time.monotonic()
        daemon.until_step("t", 1)
        started_s = time.monotonic() - began

        assert sorted(took)[len(took) // 2] < 0.2 and started_s < within_s + FOLLOWS_S
        assert "has not" in daemon.call("gpus")["troubles"][0]
        assert daemon.events("gpu.silent") == ["gpu.silent"]
        began = time.monotonic()
        daemon.call("stop", name="t")
        daemon.call("start", name="t")
        assert time.monotonic() - began < within_s, "one that is known to hang is not waited for again"
        began = time.monotonic()
    assert time.monotonic() - began < FOLLOWS_S, "the daemon ends without waiting for it"


def test_a_driver_that_hangs_while_a_job_trains_leaves_it_alone_and_the_log_is_heard(
    tmp_path: Path, host: GpuHost
) -> None:
    with GpuDaemon(host, tmp_path, endless(tmp_path), within_s=2.0) as daemon:
        first = daemon.until_step("t", 5)
        host.are(hangs="nvmlDeviceGetRemappedRows")
        daemon.until_step("t", first["job"]["step"] + 100)
        assert daemon.status("t")["pid"] == first["pid"]

        host.xid(79, ILL)

        daemon.until(lambda: daemon.status("t")["pid"] not in (None, first["pid"]), "it is restarted")
        pid = daemon.until_step("t", 1)["pid"]
        assert f"CUDA_VISIBLE_DEVICES={UUIDS[0]}\0" in Path(f"/proc/{pid}/environ").read_text()


def test_what_was_left_out_outlives_the_daemon_and_its_lines_are_judged_once(tmp_path: Path, host: GpuHost) -> None:
    with GpuDaemon(host, tmp_path, endless(tmp_path)) as daemon:
        before = daemon.until_step("t", 5)
        host.xid(95, ILL)
        after = daemon.until(lambda: _other(daemon, before["pid"]), "it is restarted")
        daemon.until((tmp_path / "state" / "gpus.json").exists, "it is written")
        left_out = daemon.status("t")["job"]["gpus_left_out"]
        daemon.die()
        daemon.start()
        daemon.until(lambda: daemon.status("t")["state"] == "RUNNING", "it is adopted")
        daemon.until(lambda: daemon.call("gpus")["gpus"], "GPUs are listed")

        assert daemon.status("t")["pid"] == after["pid"], "the line is not judged again"
        assert daemon.status("t")["job"]["gpus_left_out"] == left_out
        assert f"without {left_out}" in daemon.status("t")["description"]
        gpu = daemon.call("gpus")["gpus"][ILL]
        assert gpu["state"] == "left out" and gpu["faults"] == 1 and gpu["action"] == "reset"
        daemon.call("gpu_return", gpu=UUIDS[ILL][:6])
        daemon.call("stop", name="t")
        daemon.call("start", name="t")
        pid = daemon.until_step("t", 1)["pid"]
        assert "CUDA_VISIBLE_DEVICES=" not in Path(f"/proc/{pid}/environ").read_text()


def _other(daemon: GpuDaemon, pid: int) -> dict[str, Any] | None:
    status = daemon.status("t")
    return status if status["pid"] not in (None, pid) and status["state"] == "RUNNING" else None


def test_the_operator_is_asked_once_no_job_uses_the_gpu(tmp_path: Path, host: GpuHost) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ncat >> {tmp_path}/asked\n")
    hook.chmod(0o755)
    with GpuDaemon(host, tmp_path, endless(tmp_path), f"hook_gpu_fault={hook}") as daemon:
        before = daemon.until_step("t", 5)
        host.xid(74, ILL)
        daemon.until(lambda: _other(daemon, before["pid"]), "it is restarted")
        daemon.until((tmp_path / "asked").exists, "the hook has run")
        daemon.until(lambda: (tmp_path / "asked").read_text().endswith("}\n"), "all of it")
        events = [line for line in _events(daemon) if line["event"].startswith("GPU")]

    (asked,) = [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert (asked["event"], asked["gpu"], asked["pci_address"]) == ("gpu_fault", UUIDS[ILL], "0000:1b:00.0")
    assert (asked["fault"], asked["action"], asked["programs"], asked["in_use"]) == ("xid-74", "reset", "t", False)
    assert asked["text"].startswith(f"GPU 1 ({UUIDS[ILL]}): Xid 74: ")
    assert [(event["event"], event["fault"]) for event in events] == [("GPU_FAULT", "xid-74")]


def _events(daemon: GpuDaemon) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.sock.connect(str(daemon.socket))
        connection.request("GET", "/api/v1/events?since=start&follow=0")
        return [json.loads(line) for line in connection.getresponse().read().splitlines()]
    finally:
        connection.close()


def test_a_dry_run_only_tells(tmp_path: Path, host: GpuHost) -> None:
    hook = f"hook_gpu_fault=/usr/bin/touch {tmp_path}/asked"
    with GpuDaemon(host, tmp_path, endless(tmp_path), f"on_gpu_fault=report\n{hook}") as daemon:
        before = daemon.until_step("t", 5)
        host.xid(95, ILL, before["pid"])
        daemon.until(lambda: daemon.events("gpu.fault"), "it is told")
        now = daemon.until_step("t", before["job"]["step"] + 60)

        assert now["pid"] == before["pid"] and daemon.call("gpus")["gpus"][ILL]["state"] == "ok"
        assert daemon.call("gpus")["gpus"][ILL]["faults"] == 1 and not daemon.call("gpus")["acts"]
        (told,) = [line for line in records(tmp_path / "daemon.log") if line["event"] == "gpu.fault"]
        assert told["done"] == "nothing (on_gpu_fault = report)" and told["follows"] == "retry without the GPU"
    assert not (tmp_path / "asked").exists()


def test_a_job_that_needs_all_gpus_saves_and_waits_until_the_gpu_is_back(tmp_path: Path, host: GpuHost) -> None:
    with GpuDaemon(host, tmp_path, endless(tmp_path, "")) as daemon:
        daemon.until_step("t", 5)
        host.are("", "recovery=1")

        waits = daemon.until_state("t", "BACKOFF")
        assert f"GPU 1 ({UUIDS[ILL]}): the driver asks for a reset" in waits["description"]
        host.are()
        daemon.call("start", name="t")
        daemon.until_step("t", 5)
        first = daemon.call("history", name="t")["attempts"][0]
        assert (first["cause"], first["lost_steps"]) == ("gpu-fault", 0)


def test_the_same_error_at_the_same_step_on_another_gpu_fails_the_job(tmp_path: Path, host: GpuHost) -> None:
    with GpuDaemon(host, tmp_path, job("t", tmp_path, STEPS=ENDLESS, EVERY=10, STEP_S=1.0)) as daemon:
        first = daemon.until_step("t", 3)["pid"]
        host.xid(31, 0, first)
        second = daemon.until(lambda: _restored(daemon, first), "it has saved, and goes on from there")
        host.xid(31, 1, second["pid"])

        failed = daemon.until_state("t", "FAILED")
        assert "the program is wrong, not the GPU" in failed["description"]
        daemon.call("start", name="t", wait=False)
        daemon.until(lambda: daemon.status("t")["pid"], "an operator may start it again")


def _restored(daemon: GpuDaemon, but: int) -> dict[str, Any] | None:
    status = daemon.status("t")
    return status if status["pid"] not in (None, but) and status["job"]["step"] in (3, 4) else None


def test_a_host_without_the_driver_and_plain_programs_have_no_helper(tmp_path: Path, host: GpuHost) -> None:
    plain = f"[program:p]\ncommand={sys.executable} -c 'import time; time.sleep(600)'\n"
    with GpuDaemon(host, tmp_path, plain) as daemon:
        daemon.until_state("p", "RUNNING")
        assert helper_of(daemon) is None
    with Daemon(tmp_path, endless(tmp_path)) as without:
        without.until_step("t", 1)
        answer = without.call("gpus")
        assert (answer["gpus"], answer["is_watched"]) == ([], False)
        assert without.process is not None
        assert "gpu_guard" not in str([command_of(child) for child in psutil.Process(without.process.pid).children()])


def test_without_nvml_the_kernels_log_is_enough_for_the_reason(tmp_path: Path) -> None:
    with GpuHost(tmp_path, has_nvml=False) as host, GpuDaemon(host, tmp_path, endless(tmp_path)) as daemon:
        before = daemon.until_step("t", 5)

        host.xid(79, ILL, before["pid"])

        after = daemon.until(lambda: _other(daemon, before["pid"]), "it is restarted")
        attempts = daemon.call("history", name="t")["attempts"]
        assert [attempt["cause"] for attempt in attempts] == ["gpu-fault", None] and after["pid"]
        assert "not installed" in " ".join(daemon.call("gpus")["troubles"])


@pytest.fixture
def device() -> Iterator[Path]:
    """A file that looks like the device of a GPU; reading it gives zeros."""
    path = Path(f"/dev/nvidia-stand-in-{os.getpid()}")
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device needs root")
    yield path
    path.unlink()


@pytest.mark.parametrize(
    ("load", "cause"),
    [("busy=0 memory_busy=0", "hang"), ("busy=100 memory_busy=0 power=9", "hang"), ("busy=70 memory_busy=9", None)],
    ids=["idle", "spins", "computes"],
)
def test_a_silent_job_hangs_only_while_its_gpus_do_nothing(
    tmp_path: Path, device: Path, load: str, cause: str | None
) -> None:
    variables = f"SILENCE=deadlock,AT=50,DEVICE={device}"
    program = (
        f"[program:t]\ncommand={sys.executable} {CHILDREN / 'hanging.py'}\ncheckpoint_dir={tmp_path}/t\n"
        f"environment={variables}\nhang_evidence=4\nstopwaitsecs=2\nflush_timeout=2\nstandby=off\n"
    )
    with GpuHost(tmp_path) as host:
        host.are(f"{IN_ORDER} {load}", f"{IN_ORDER} {load}")
        with GpuDaemon(host, tmp_path, program) as daemon:
            if cause is not None:
                assert daemon.until_state("t", "SUCCEEDED", "FAILED", patience_s=60)["state"] == "SUCCEEDED"
                first = daemon.call("history", name="t")["attempts"][0]
                assert first["cause"] == cause and "a GPU that only spins" * ("100" in load) in first["text"], first
            else:
                daemon.until(lambda: "a GPU computes" in str(daemon.status("t")), "it was looked at", 60)
                assert len(daemon.call("history", name="t")["attempts"]) == 1
