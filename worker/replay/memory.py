"""How much memory this process may still use."""

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """The smaller of what the host has left and what the process's control group allows; None if neither is known."""
    found = [each for each in (_of_host(), _of_group()) if each is not None]
    return min(found, default=None)


def _of_host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_group() -> int | None:
    try:
        group = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
        folder = _CGROUP / group
        return int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return None
