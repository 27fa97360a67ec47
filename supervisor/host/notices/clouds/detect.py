"""Recognises the cloud from what the firmware and the PCI bus say, without asking anything over the network."""

from enum import StrEnum
from pathlib import Path

SYS = Path("/sys")
AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"  # tells Azure from a Hyper-V of one's own
GOOGLE_PCI = "0x1ae0"  # its network cards and TPUs
NVIDIA_PCI = "0x10de"
MAX_BYTES = 256


class Cloud(StrEnum):
    """A provider whose notices we know; the value is the source's name."""

    AWS = "aws"
    GOOGLE = "google"
    AZURE = "azure"
    ALIBABA = "alibaba"


def detect(sys: Path = SYS) -> Cloud | None:
    """The cloud this host is in; None for none that we know. `sys`: where sysfs is."""
    vendor, product = _read(sys, "sys_vendor"), _read(sys, "product_name")
    if vendor == "Amazon EC2" or "amazon" in _read(sys, "bios_version").lower():  # the latter on Xen
        return Cloud.AWS
    if vendor == "Google" or product.startswith("Google"):
        return Cloud.GOOGLE
    if vendor == "Microsoft Corporation" and _read(sys, "chassis_asset_tag") == AZURE_ASSET_TAG:
        return Cloud.AZURE
    if vendor == "Alibaba Cloud" or product.startswith("Alibaba Cloud"):
        return Cloud.ALIBABA
    if GOOGLE_PCI in _pci_vendors(sys):  # a TPU VM, seen from a container that is not shown the firmware
        return Cloud.GOOGLE
    return None


def has_gpu(sys: Path = SYS) -> bool:
    """Whether the host has an NVIDIA GPU; Google announces maintenance of those an hour ahead."""
    return NVIDIA_PCI in _pci_vendors(sys)


def _pci_vendors(sys: Path) -> set[str]:
    vendors = set()
    for file in sys.glob("bus/pci/devices/*/vendor"):
        vendors.add(_text(file))
    return vendors


def _read(sys: Path, name: str) -> str:
    return _text(sys / "class/dmi/id" / name)


def _text(file: Path) -> str:
    """The first bytes of a file; "" if it is not there or not for us, as in some containers."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""
