"""Records of /dev/kmsg, from a socket that gives one record a read as the device does."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.resources.kernel_log import (
    MAX_TEXT,
    KernelLog,
    KernelRecord,
    KernelReports,
    parse_record,
)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[socket.socket, Path]]:
    """What the kernel writes to, and the path that is opened for reading."""
    kernel, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader.setblocking(False)
    kept = reader.detach()
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *more: os.dup(kept) if path == Path("kmsg") else real(path, flags, *more)
    )
    yield kernel, Path("kmsg")
    kernel.close()
    os.close(kept)


def test_a_record_of_the_kernel_is_read_without_its_details() -> None:
    record = b"4,1042,15000123,-;NVRM: Xid (PCI:0000:c5:00): 79, pid=12\n SUBSYSTEM=pci\n DEVICE=+pci:0000:c5:00.0\n"

    assert parse_record(record) == KernelRecord(1042, 15.000123, "NVRM: Xid (PCI:0000:c5:00): 79, pid=12")


def test_what_a_program_wrote_into_the_log_is_not_believed() -> None:
    assert parse_record(b"12,1043,15000124,-;Out of memory: Killed process 1 (init)\n") is None


def test_escaped_bytes_become_spaces_or_letters() -> None:
    parsed = parse_record(rb"6,1,1,-;a\x09b\x41\x1b[31m")

    assert parsed is not None
    assert parsed.text == "a bA [31m"


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(record: bytes) -> None:
    parsed = parse_record(record)

    assert parsed is None or (parsed.text.isprintable() and len(parsed.text) <= MAX_TEXT)


def test_only_new_records_are_read(device: tuple[socket.socket, Path]) -> None:
    kernel, path = device
    kernel.send(b"6,1,1000000,-;one\n")
    kernel.send(b"30,2,1000001,-;of a daemon\n")
    log = KernelLog(path)
    first = log.read()
    kernel.send(b"6,3,2000000,-;three\n")

    assert [record.text for record in first] == ["one"]
    assert [record.text for record in log.read()] == ["three"]
    assert log.read() == []
    log.close()


def test_a_flood_is_read_in_portions(device: tuple[socket.socket, Path]) -> None:
    kernel, path = device
    for number in range(10):
        kernel.send(b"6,%d,1000000,-;line\n" % number)
    log = KernelLog(path)

    assert [len(log.read(4)), len(log.read(4)), len(log.read(4))] == [4, 4, 2]
    log.close()


def test_the_device_of_this_host_begins_at_the_boot() -> None:
    try:
        log = KernelLog()
    except OSError as error:
        pytest.skip(f"this host's kernel log can't be read: {error}")
    records = log.read()
    log.close()

    assert records == sorted(records, key=lambda record: record.number)
    assert records


def test_reports_keep_what_matters_and_read_each_record_once(device: tuple[socket.socket, Path]) -> None:
    kernel, path = device
    reports = KernelReports(lambda text: "killed" in text, path)
    for record in (b"6,1,1000000,-;killed 1\n", b"6,2,2000000,-;a disk\n", b"6,3,3000000,-;killed 3\n"):
        kernel.send(record)

    first = reports.since(0.0)
    kernel.send(b"6,4,4000000,-;killed 4\n")

    assert [record.text for record in first or ()] == ["killed 1", "killed 3"]
    assert [record.text for record in reports.since(2.5) or ()] == ["killed 3", "killed 4"]


def test_a_log_that_may_not_be_read_gives_no_reports(tmp_path: Path) -> None:
    assert KernelReports(bool, tmp_path / "none").since(0.0) is None
