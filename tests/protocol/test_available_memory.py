"""How much memory is left, where a control group limits it."""

from pathlib import Path

import psutil

from supervisor.protocol.available_memory import available_memory

MIB = 1 << 20


def group(folder: Path, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nactive_file 7\n")


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


def test_the_tightest_group_above_decides(tmp_path: Path):
    groups = tmp_path / "fs"
    group(groups / "pod", str(64 * MIB), used=60 * MIB, cache=4 * MIB)
    group(groups / "pod" / "job", str(32 * MIB), used=2 * MIB, cache=0)

    available_and_limit = available_memory(groups, own(tmp_path, "0::/pod/job\n"))

    assert available_and_limit == (8 * MIB, 64 * MIB), "30 MiB are left in the inner one, 8 with its cache in the outer"


def test_without_a_limit_the_host_decides(tmp_path: Path):
    groups = tmp_path / "fs"
    group(groups / "pod", "max", used=60 * MIB, cache=0)
    host = psutil.virtual_memory()

    for text in ("0::/pod\n", "0::/gone\n", "4:cpu:/old\n", "4:memory:/gone\n", ""):
        available, total = available_memory(groups, own(tmp_path, text))
        assert total == host.total and 0 < available <= total


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path):
    group(tmp_path / "fs" / "pod", str(10 * MIB), used=11 * MIB, cache=0)

    assert available_memory(tmp_path / "fs", own(tmp_path, "0::/pod\n"))[0] == 0


def test_a_group_of_the_first_version_limits_too(tmp_path: Path):
    groups = tmp_path / "fs"
    folder = groups / "memory" / "slurm" / "job"
    folder.mkdir(parents=True)
    for parent, limit, used, cache in ((folder, 32, 2, 0), (folder.parent, 64, 60, 4)):
        (parent / "memory.limit_in_bytes").write_text(f"{limit * MIB}\n")
        (parent / "memory.usage_in_bytes").write_text(f"{used * MIB}\n")
        (parent / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {cache * MIB}\n")
    (groups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")

    for text in ("4:memory:/slurm/job\n0::/\n", "2:cpu,memory:/slurm/job\n"):
        assert available_memory(groups, own(tmp_path, text)) == (8 * MIB, 64 * MIB)
    assert available_memory(groups, own(tmp_path, "2:cpu:/slurm/job\n"))[1] > 64 * MIB
