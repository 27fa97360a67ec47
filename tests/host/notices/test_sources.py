"""Which sources a host listens to, from its firmware's files and from what it is told."""

import socket
from pathlib import Path

import pytest

from supervisor.host.notices.clouds.azure import AZURE_ASSET_TAG
from supervisor.host.notices.clouds.firmware import Firmware
from supervisor.host.notices.clouds.google import has_gpu
from supervisor.host.notices.sources import (
    NAMES,
    NoticeSettings,
    UnknownSourceError,
    automatic_names,
    detect_cloud,
    make_sources,
)

FIRMWARE: dict[str, tuple[dict[str, str], str | None]] = {
    "aws nitro": ({"sys_vendor": "Amazon EC2", "product_name": "p4d.24xlarge"}, "aws"),
    "aws xen": ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "aws"),
    "google": ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "google"),
    "azure": ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_ASSET_TAG}, "azure"),
    "hyper-v at home": ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "1234"}, None),
    "alibaba": ({"sys_vendor": "Alibaba Cloud", "product_name": "Alibaba Cloud ECS"}, "alibaba"),
    "bare metal": ({"sys_vendor": "Supermicro", "product_name": "SYS-4029GP"}, None),
    "xen at home": ({"sys_vendor": "Xen", "bios_version": "4.11"}, None),
    "no firmware": ({}, None),
    "nonsense": ({"sys_vendor": "\x00\xff" * 5000}, None),
}


def sysfs(root: Path, firmware: dict[str, str], pci: tuple[str, ...] = ()) -> Path:
    """A sysfs like the kernel's."""
    dmi = root / "class/dmi/id"
    dmi.mkdir(parents=True)
    for name, value in firmware.items():
        (dmi / name).write_text(value + "\n")
    for number, vendor in enumerate(pci):
        device = root / f"bus/pci/devices/0000:00:{number:02}.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
    return root


@pytest.mark.parametrize("host", list(FIRMWARE))
def test_cloud_is_recognised_by_its_firmware(host: str, tmp_path: Path) -> None:
    firmware, cloud = FIRMWARE[host]

    assert detect_cloud(Firmware(sysfs(tmp_path, firmware))) == cloud


def test_google_is_recognised_by_a_tpu_if_the_firmware_is_hidden(tmp_path: Path) -> None:
    assert detect_cloud(Firmware(sysfs(tmp_path, {}, pci=("0x8086", "0x1ae0")))) == "google"


def test_gpu_is_seen_on_the_bus(tmp_path: Path) -> None:
    assert has_gpu(Firmware(sysfs(tmp_path / "with", {}, pci=("0x10de",))))
    assert not has_gpu(Firmware(sysfs(tmp_path / "without", {}, pci=("0x8086",))))


def test_automatic_is_files_the_cloud_and_logind_where_it_runs(tmp_path: Path) -> None:
    firmware = Firmware(sysfs(tmp_path / "sys", FIRMWARE["azure"][0]))
    seats, bus = tmp_path / "seats", tmp_path / "bus"

    assert automatic_names(firmware, seats, bus) == ("file", "azure")
    seats.mkdir()  # a container may have the folder, and no bus
    assert automatic_names(firmware, seats, bus) == ("file", "azure")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(bus))
        assert automatic_names(firmware, seats, bus) == ("file", "azure", "logind")


def test_every_name_gives_the_source_of_that_name(tmp_path: Path) -> None:
    chosen = make_sources(NAMES, NoticeSettings(tmp_path))

    assert tuple(each.name for each in chosen) == NAMES


def test_source_named_twice_is_made_once(tmp_path: Path) -> None:
    assert [source.name for source in make_sources(("file", "aws", "file"), NoticeSettings(tmp_path))] == [
        "file",
        "aws",
    ]


def test_unknown_name_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    with pytest.raises(UnknownSourceError, match="did you mean 'google'"):
        make_sources(("gogle",), NoticeSettings(tmp_path))


def test_settings_reach_the_sources(tmp_path: Path) -> None:
    (google,) = make_sources(("google",), NoticeSettings(tmp_path, google_preemption_notice_s=120))

    assert google.shortest_s == 150.0


def test_every_source_has_a_row_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "notices.md").read_text()

    assert [name for name in NAMES if f"\n| `{name}` |" not in page] == []
