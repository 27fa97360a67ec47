"""The file of GPUs that are left out: it comes back, and bad content stops nobody."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.gpus.faults import Remedy
from supervisor.core.gpus.records import GpuRecord, GuardRecords, LeftOut, PastFault
from supervisor.host.gpu_guard.store import FILE, GuardStore
from tests.fuzzing import cases, contents

VERSIONS = Path(__file__).parent / "versions"
RECORDS = GuardRecords(
    {
        "GPU-bbbb": GpuRecord(
            "GPU-bbbb",
            "0000:c5:00.0",
            "NVIDIA H100 80GB HBM3",
            1,
            LeftOut("xid-95", "Xid 95: not contained", 1.8e9, Remedy.RESET, programs=("digits",), is_asked=True),
            (PastFault(1.8e9 - 60.0, "xid-31", "digits", 100), PastFault(1.8e9, "xid-95")),
        ),
        "0000:1a:00.0": GpuRecord("", "0000:1a:00.0"),
    },
    "2f2b9d6c-boot",
    4711,
)


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    GuardStore(tmp_path).write(RECORDS)

    assert GuardStore(tmp_path).load() == RECORDS
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("path", sorted(VERSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_files_of_earlier_versions_are_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(path.read_bytes())

    assert GuardStore(tmp_path).load() == RECORDS


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert GuardStore(tmp_path).load() == GuardRecords()


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"gpus": ')

    assert GuardStore(tmp_path).load() == GuardRecords()
    assert (tmp_path / f"{FILE}.damaged").exists() and not (tmp_path / FILE).exists()


def test_a_damaged_entry_costs_that_entry(tmp_path: Path) -> None:
    GuardStore(tmp_path).write(RECORDS)
    body = json.loads((tmp_path / FILE).read_text())
    body["gpus"]["GPU-cccc"] = {"uuid": "GPU-cccc", "faults": [{"wall_at": "yesterday"}]}
    (tmp_path / FILE).write_text(json.dumps(body))

    assert GuardStore(tmp_path).load() == RECORDS


def test_a_file_of_a_newer_version_is_neither_used_nor_written(tmp_path: Path) -> None:
    text = json.dumps({"format": 2, "gpus": {}})
    (tmp_path / FILE).write_text(text)
    store = GuardStore(tmp_path)

    assert store.load() == GuardRecords()
    store.write(RECORDS)
    assert (tmp_path / FILE).read_text() == text


def test_a_disk_that_fails_is_no_error(tmp_path: Path) -> None:
    GuardStore(tmp_path / "nowhere").write(RECORDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.fuzz
@cases(200)
@given(data=st.data())
def test_no_content_is_an_error(folder: Path, data: st.DataObject) -> None:
    (folder / FILE).write_bytes(data.draw(contents((VERSIONS / "format-1.json").read_bytes())))

    assert isinstance(GuardStore(folder).load(), GuardRecords)
