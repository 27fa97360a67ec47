"""Programs that really die (dying.toml): runs one, and gives what its death leaves behind, as the daemon gathers it.

python -m tests.core.diagnosis.dying [NAME ...]     as root: runs these (or all) and writes corpus/recorded.json
"""

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.core.diagnosis.diagnose import diagnose
from supervisor.core.diagnosis.evidence import Disk, Evidence, KernelLine
from supervisor.core.diagnosis.kernel_lines import may_matter
from supervisor.host.resources.kernel_log import KernelLog
from tests.waiting import wait_until

HERE = Path(__file__).parent
RECORDED = HERE / "corpus" / "recorded.json"
LIMIT_S = 240.0  # for one that does not die at all; importing TensorFlow alone may take a minute on a busy machine
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")
KEPT = 12_000  # characters of what it printed
NOISE = r"""import sys
for line in (
    "2026-01-01 10:00:00.000001: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:31] Could not find cuda drivers on"
    " your machine, GPU will not be used.",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "E0000 00:00:1735725600.0 77 cuda_dnn.cc:8579] Unable to register cuDNN factory: Attempting to register factory for"
    " plugin cuDNN when one has already been registered",
    "W0000 00:00:1735725600.1 77 computation_placer.cc:177] computation placer already registered.",
    "I0000 00:00:1735725600.2 77 gpu_device.cc:2019] Created device",
):
    sys.stderr.write(line + "\n")
"""
"""What TensorFlow prints when it is imported."""


@dataclass(frozen=True)
class Death:
    """How a program dies. `kind`: what it was; `limits`: of `ulimit`; `memory`: MB of a memory cgroup; `disk`: KiB of a
    small file system in the folder `disk`; `inodes`: how many it may have; `signal`: sent to it from outside, once it
    has printed `ready`; `needs`: a program or module without which it can't die, or root.
    """

    name: str
    kind: str
    program: str
    limits: str = ""
    memory: int | None = None
    disk: int | None = None
    inodes: int | None = None
    read_only: bool = False
    signal: int | None = None
    needs: str | None = None

    @property
    def obstacle(self) -> str | None:
        """Why it can't die here; None if it can."""
        needs = self.needs
        if (self.memory or self.disk or needs == "root") and os.geteuid() != 0:
            return "needs root"
        if self.memory and not (MEMORY_CGROUPS / "cgroup.procs").exists():
            return "needs the memory controller of cgroup v1"
        if needs in (None, "root") or shutil.which(needs) or importlib.util.find_spec(needs):
            return None
        return f"needs {needs}"


def deaths() -> list[Death]:
    """All of them."""
    return [Death(**death) for death in tomllib.loads((HERE / "dying.toml").read_text())["death"]]


def die(death: Death) -> Evidence:
    """Runs the program to its end."""
    scratch = Path(tempfile.mkdtemp(prefix="dying-"))
    try:
        with _disk(death, scratch), _cgroup(death) as cgroup:
            return _run(death, scratch, cgroup)
    finally:
        shutil.rmtree(scratch)


def _run(death: Death, scratch: Path, cgroup: Path | None) -> Evidence:
    command = _command(death, scratch)
    kills = _kills(cgroup)
    log = _kernel_log()
    with (scratch / "stderr").open("wb") as stderr:
        limits = f'ulimit -c 0; {f"ulimit {death.limits};" if death.limits else ""} exec "$@"'
        enter = f"echo $$ > {cgroup}/cgroup.procs; " if cgroup else ""
        process = subprocess.Popen(
            ["bash", "-c", enter + limits, "bash", *command],
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "LC_ALL": "C.UTF-8"},
        )
        if death.signal is not None:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(death.signal)
        process.communicate(timeout=LIMIT_S)
    died_at = time.clock_gettime(time.CLOCK_MONOTONIC)
    time.sleep(0.05)  # the kernel's log is written beside it
    code = process.returncode
    return Evidence(
        code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stderr=_neutral((scratch / "stderr").read_text(errors="replace")[-KEPT:], scratch),
        kernel=tuple(
            KernelLine(round(max(0.0, died_at - record.at_s), 3), record.text)
            for record in (log.read() if log else [])
            if may_matter(record.text)
        ),
        pids=(process.pid,),
        cgroup=f"/{cgroup.name}" if cgroup else None,
        oom=f"its cgroup /{cgroup.name} counts one more out-of-memory kill"
        if cgroup and _kills(cgroup) > kills
        else None,
        disks=_disks(death, scratch),
    )


def _neutral(text: str, scratch: Path) -> str:
    for path, name in ((str(scratch), "/srv/job"), (sys.prefix, "/srv/venv"), (sys.base_prefix, "/usr")):
        text = text.replace(path, name)
    return text


def _command(death: Death, scratch: Path) -> list[str]:
    kind, _, text = death.program.partition(":")
    if kind == "sh":
        return ["bash", "-c", text]
    if kind in ("c", "c++"):
        source = scratch / f"program.{kind}"
        source.write_text(text)
        language = "c" if kind == "c" else "c++"
        compiler = "gcc" if kind == "c" else "g++"
        options = ["-O0", "-fstack-protector-all", "-U_FORTIFY_SOURCE", "-w", "-x", language]
        subprocess.run([compiler, *options, str(source), "-o", str(scratch / "program")], check=True)
        return ["./program"]
    if kind == "so":
        return _with_library(text.strip(), scratch)
    (scratch / "train.py").write_text(death.program.replace("NOISE\n", NOISE))
    return [sys.executable, "train.py"]


def _with_library(what: str, scratch: Path) -> list[str]:
    """A program whose library is missing, or lacks a symbol; or one that imports such an extension."""

    def build(name: str, source: str, *options: str) -> None:
        (scratch / "source.c").write_text(source)
        subprocess.run(["gcc", "-w", "-o", name, "source.c", *options], check=True, cwd=scratch)

    shared = ("-shared", "-fPIC")
    build("libcudnn_fake.so.9", "int weights(void){ return 1; }", *shared)
    if what == "extension":
        build("fast_ops.so", "int PyInit_fast_ops(void){ return weights(); }", *shared, "./libcudnn_fake.so.9")
        (scratch / "libcudnn_fake.so.9").unlink()
        (scratch / "train.py").write_text("import fast_ops")
        return [sys.executable, "train.py"]
    build("program", "int main(void){ return weights(); }", "./libcudnn_fake.so.9")
    (scratch / "libcudnn_fake.so.9").unlink()
    if what == "undefined":
        build("libcudnn_fake.so.9", "int other(void){ return 1; }", *shared)
    return ["./program"]


@contextlib.contextmanager
def _disk(death: Death, scratch: Path) -> Iterator[None]:
    folder = scratch / "disk"
    folder.mkdir()
    if death.disk is None:
        yield
        return
    options = f"size={death.disk}k" + (f",nr_inodes={death.inodes}" if death.inodes else "")
    options += ",ro" if death.read_only else ""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _disks(death: Death, scratch: Path) -> tuple[Disk, ...]:
    if death.disk is None:
        return ()
    is_memory = death.kind == "shared-memory-full"
    use, path = ("shared memory", "/dev/shm") if is_memory else ("the checkpoint directory", "/srv/job/disk")
    numbers = os.statvfs(scratch / "disk")
    free_inodes = numbers.f_favail if numbers.f_files else None
    return (Disk(use, path, numbers.f_bavail * numbers.f_frsize, free_inodes, bool(numbers.f_flag & os.ST_RDONLY)),)


@contextlib.contextmanager
def _cgroup(death: Death) -> Iterator[Path | None]:
    if death.memory is None:
        yield None
        return
    cgroup = MEMORY_CGROUPS / f"stepkeeper-{death.name}"
    cgroup.mkdir()
    (cgroup / "memory.limit_in_bytes").write_text(str(death.memory << 20))
    try:
        yield cgroup
    finally:
        wait_until(lambda: not (cgroup / "cgroup.procs").read_text(), "all its processes are gone")
        cgroup.rmdir()


def _kills(cgroup: Path | None) -> int:
    lines = (cgroup / "memory.oom_control").read_text().splitlines() if cgroup else []
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _kernel_log() -> KernelLog | None:
    try:
        return KernelLog(at_end=True)
    except OSError:
        return None


def as_json(evidence: Evidence) -> dict[str, Any]:
    """What differs from the default."""
    default = Evidence()
    values = dataclasses.asdict(evidence)
    return {name: value for name, value in values.items() if getattr(evidence, name) != getattr(default, name)}


def evidence_of(values: dict[str, Any]) -> Evidence:
    """The opposite of `as_json`; a kernel line may be text alone."""
    kernel = tuple(
        KernelLine(0.1, line) if isinstance(line, str) else KernelLine(**line) for line in values.get("kernel", ())
    )
    disks = tuple(Disk(**disk) for disk in values.get("disks", ()))
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return Evidence(**{**plain, "kernel": kernel, "disks": disks})


def main(names: list[str]) -> None:
    """Records some, or all."""
    records = {record["name"]: record for record in json.loads(RECORDED.read_text())} if RECORDED.exists() else {}
    for death in deaths():
        if death.obstacle is not None or (names and death.name not in names):
            continue
        evidence = die(death)
        records[death.name] = {"name": death.name, "kind": death.kind, **as_json(evidence)}
        diagnosis = diagnose(evidence)
        print(f"{death.name}: {death.kind}, diagnosed as {diagnosis.kind}: {diagnosis.line} [{diagnosis.source}]")
    names_in_order = [death.name for death in deaths() if death.name in records]
    kept = [records[name] for name in names_in_order]
    RECORDED.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
