"""Which boot of the host this is."""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4): a new one at every boot; containers get one of their own


def boot_id() -> str | None:
    """The present boot's id; None where the kernel does not tell."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        return None
