"""What failures taught, in the ledger and back."""

import json
import math
import sqlite3
import threading
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.failures.restart import Cause
from supervisor.core.failures.suspects import Death
from supervisor.core.program.persisted_facts import PersistedFacts
from supervisor.host.ledger.job_states import JobStates, decode_counters, decode_facts
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.ledger.ledger_file import LedgerFile
from supervisor.host.ledger.pruning import Pruning
from supervisor.host.ledger.schema import open_or_create
from supervisor.host.ledger.writer import LedgerWriter
from supervisor.host.resources.oom_kills import OomKillCounter
from supervisor.protocol.wire.codec import encode_record
from tests.fuzzing import JSON, cases

COUNTERS = (OomKillCounter(Path("/sys/fs/cgroup/memory/x/memory.oom_control"), "its cgroup /x", 3),)
FULL = PersistedFacts(
    attempt=4,
    by_cause={Cause.CRASH: 2, Cause.HANG: 1},
    deaths_without_progress=1,
    avoid=frozenset({"step-0000000020.a1"}),
    cleared=frozenset({"step-0000000010.a1"}),
    deaths=(Death("step-0000000020.a1", 20, 21, place="epoch 3"), Death("step-0000000030.a3", 30, 30, restored=False)),
    hung_step=7,
    hangs=2,
    best_step=30,
    ever_trained=True,
    microbatches=4,
    restore_below_step=19,
    in_backoff=True,
    reason="terminated by SIGKILL",
    from_checkpoint=True,
    origin=("/c/step-0000000020.a1", 20, "epoch 3"),
    saved_step=30,
    start_step=20,
    made_progress=True,
    start_limit_s=723.5,
    backoff_left_s=2.5,
    startup_s=7.5,
    steps_s=(0.1, 0.2),
)


def test_all_of_it_comes_back(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.job_states.store("digits", FULL, "abc", COUNTERS)

    found = ledger.job_states.load("digits")
    ledger.close()

    assert found is not None and found.facts == FULL
    assert (found.facts.backoff_left_s, found.facts.startup_s, found.facts.steps_s) == (2.5, 7.5, (0.1, 0.2))
    assert (found.digest, found.counters) == ("abc", COUNTERS)
    assert 0 <= found.ago_s < 60


def test_after_a_reboot_nobody_waits(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.job_states.store("digits", FULL, "abc", COUNTERS)
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger")) as shell, shell:
        shell.execute("UPDATE job_states SET boot_id = 'another'")

    ledger = Ledger(tmp_path / "ledger")
    found = ledger.job_states.load("digits")
    ledger.close()

    assert found is not None and (found.facts, found.ago_s, found.counters) == (FULL, math.inf, ())


def test_counters_are_read_from_cgroups_only(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    forged = (OomKillCounter(Path("/etc/memory.events"), "x", 1), OomKillCounter(Path("/sys/fs/cgroup/../x"), "x", 1))
    ledger.job_states.store("digits", FULL, "abc", (*forged, *COUNTERS))

    found = ledger.job_states.load("digits")
    ledger.close()

    assert found is not None and found.counters == COUNTERS


DAMAGE = [
    ("by_cause", {"crash": 2, "hang": -1, "of a later version": 3}, {Cause.CRASH: 2}),
    ("by_cause", [], {}),
    ("deaths", [{"name": "x"}], ()),
    ("avoid", [str(number) for number in range(1001)], frozenset()),
    ("steps_s", [0.1, float("inf")], ()),
    ("steps_s", [-0.1], ()),
    ("hangs", 65, 0),
    ("microbatches", 0, 1),
    ("hung_in", "no section", None),
    ("older", ["no reason", "words"], None),
    ("attempt", True, 0),
]


@pytest.mark.parametrize(("name", "value", "expected"), DAMAGE)
def test_a_damaged_field_loses_no_other(name: str, value: object, expected: object):
    content = json.loads(encode_record(FULL)) | {name: value}

    found = decode_facts(json.dumps(content))

    assert found is not None
    assert found == replace(FULL, **{name: expected})
    assert getattr(found, name) == expected


def test_what_facts_hold_is_said_in_the_names_of_the_class():
    assert set(json.loads(encode_record(FULL))) <= {field.name for field in fields(PersistedFacts)}


@pytest.mark.fuzz
@cases(200)
@given(
    st.sampled_from(sorted(json.loads(encode_record(FULL)))),
    JSON,
)
def test_any_value_of_one_field_leaves_the_others(key: str, value: object):
    content = json.loads(encode_record(FULL)) | {key: value}

    found = decode_facts(json.dumps(content))

    assert found is not None
    assert replace(found, **{key: getattr(FULL, key)}) == FULL
    encode_record(found)  # and can be stored again


@pytest.mark.fuzz
@cases(200)
@given(st.text(max_size=40))
def test_any_text_is_read_or_left(text: str):
    found = decode_facts(text)

    assert found is None or isinstance(found, PersistedFacts)
    assert isinstance(decode_counters(text), tuple)


def test_what_a_worker_says_without_end_leaves_room_for_what_is_decided(tmp_path: Path):
    go_on = threading.Event()
    path = tmp_path / "ledger.sqlite3"
    connection, _ = open_or_create(path)
    writer = LedgerWriter(LedgerFile(connection, Pruning(), path, lambda: go_on.wait(60)))
    states = JobStates(writer, lambda *query: [], None)
    try:
        while states.store("digits", PersistedFacts(best_step=1), "abc"):
            pass

        assert states.store("digits", PersistedFacts(restore_below_step=20), "abc", is_reported=False)
    finally:
        go_on.set()
        writer.close(60)
    with closing(Ledger(path)) as later:
        recalled = later.job_states.load("digits")
        assert recalled is not None and recalled.facts.restore_below_step == 20
