"""What failures taught, in the ledger and back."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.failures.restart import Cause
from supervisor.core.failures.suspects import Death
from supervisor.core.program.persisted_facts import PersistedFacts
from supervisor.host.ledger.job_states import from_json, to_json
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.resources.oom_kills import OomKillCounter
from tests.fuzzing import cases

COUNTERS = (OomKillCounter(Path("/sys/fs/cgroup/memory/x/memory.oom_control"), "its cgroup /x", 3),)
FULL = PersistedFacts(
    attempt=4,
    by_cause={Cause.CRASH: 2, Cause.HANG: 1},
    idle_deaths=1,
    avoid=frozenset({"step-0000000020.a1"}),
    cleared=frozenset({"step-0000000010.a1"}),
    deaths=(Death("step-0000000020.a1", 20, 21, place="epoch 3"), Death("step-0000000030.a3", 30, 30, restored=False)),
    hung_step=7,
    hangs=2,
    best_step=30,
    ever_moved=True,
    microbatches=4,
    before=19,
    waits=True,
    reason="terminated by SIGKILL",
    restoring=True,
    origin=("/c/step-0000000020.a1", 20, "epoch 3"),
    saved=30,
    began_at=20,
    moved=True,
    start_limit_s=723.5,
    waits_s=2.5,
    startup_s=7.5,
    steps_s=(0.1, 0.2),
)


def test_all_of_it_comes_back(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.job_states.store("digits", FULL, "abc", COUNTERS)

    found = ledger.job_states.load("digits")
    ledger.close()

    assert found is not None and found.facts == FULL
    assert (found.facts.waits_s, found.facts.startup_s, found.facts.steps_s) == (2.5, 7.5, (0.1, 0.2))
    assert (found.digest, found.counters) == ("abc", COUNTERS)
    assert 0 <= found.ago_s < 60


def test_after_a_reboot_nobody_waits(tmp_path: Path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.job_states.store("digits", FULL, "abc", COUNTERS)
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger")) as shell, shell:
        shell.execute("UPDATE memories SET boot_id = 'another'")

    ledger = Ledger(tmp_path / "ledger")
    found = ledger.job_states.load("digits")
    ledger.close()

    assert found is not None and (found.facts, found.ago_s, found.counters) == (FULL, math.inf, ())


def test_counters_are_read_from_cgroups_only():
    content = json.loads(to_json(FULL, COUNTERS))
    content["counters"] = [["/etc/memory.events", "x", 1]]

    assert from_json(json.dumps(content)) is None


@pytest.mark.fuzz
@cases(200)
@given(
    st.sampled_from(sorted(json.loads(to_json(FULL)))),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_a_damaged_row_is_read_or_left(key: str, value: object):
    content = json.loads(to_json(FULL, COUNTERS))
    content[key] = value

    found = from_json(json.dumps(content))

    assert found is None or isinstance(found[0], PersistedFacts)


@pytest.mark.fuzz
@cases(200)
@given(st.text(max_size=40))
def test_any_text_is_read_or_left(text: str):
    found = from_json(text)

    assert found is None or isinstance(found[0], PersistedFacts)
