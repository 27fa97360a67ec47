"""The kernel's log from the journal: what the kernel wrote, and nothing that claims to be."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.gpu_guard.log_sources import MAX_TEXT, parse_journal_line
from tests.fuzzing import JSON, cases

XID = "NVRM: Xid (PCI:0000:c5:00): 79, GPU has fallen off the bus."
KERNEL = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": XID}


def read(**changes: Any) -> str | None:
    record = parse_journal_line(json.dumps({**KERNEL, **changes}).encode())
    return record.text if record is not None else None


def test_a_line_of_the_kernel_is_read() -> None:
    assert read() == XID
    assert read(MESSAGE=list(XID.encode())) == XID, "as the journal writes what is no text"


@pytest.mark.parametrize(
    "changes",
    [
        {"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"},  # logger -t kernel
        {"_TRANSPORT": "stdout"},
        {"SYSLOG_FACILITY": "3"},
        {"SYSLOG_FACILITY": None},
        {"MESSAGE": None},
        {"MESSAGE": ["x"]},
        {"MESSAGE": [300]},
    ],
)
def test_what_others_wrote_is_not_believed(changes: dict[str, Any]) -> None:
    assert read(**changes) is None


def entry(message: Any) -> bytes:
    return json.dumps({**KERNEL, "MESSAGE": message}).encode()


@pytest.mark.fuzz
@cases(300)
@given(st.binary(max_size=300) | JSON.map(entry))
def test_no_line_is_an_error(line: bytes) -> None:
    record = parse_journal_line(line)

    assert record is None or (len(record.text) <= MAX_TEXT and record.text.isprintable())
