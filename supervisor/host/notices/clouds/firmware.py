"""What the firmware and the PCI bus say about this host, read from sysfs: which cloud it is in, asking no network."""

from pathlib import Path

SYS = Path("/sys")
MAX_BYTES = 256


class Firmware:
    """Reads each value when it is asked for. `sys`: where sysfs is mounted."""

    def __init__(self, sys: Path = SYS) -> None:
        self._sys = sys

    def dmi(self, name: str) -> str:
        """A value of the DMI table, such as `sys_vendor`; "" if it can't be read, as in some containers."""
        return _read_text(self._sys / "class/dmi/id" / name)

    def has_pci_vendor(self, vendor: str) -> bool:
        """Whether a device of that vendor is on the PCI bus; vendors are written as in sysfs, `0x1ae0`."""
        return any(_read_text(file) == vendor for file in self._sys.glob("bus/pci/devices/*/vendor"))


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
