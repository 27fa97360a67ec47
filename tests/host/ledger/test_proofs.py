"""The newest proof of each job in the ledger, and what to clean up after one."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.children import Identity
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.ledger.proofs import decode_proof
from supervisor.host.proof_process import ScratchFolder
from supervisor.protocol.proof import KillPlace, ProofKill, ProofReport, Verdict
from tests.fuzzing import cases

EXACT = ProofReport(Verdict.EXACT, "digits", 1.7e9, 12.5, 214, 1, 4_100_000, (ProofKill(KillPlace.STEP, 30),))
SCRATCH = ScratchFolder((Path("/srv"), Path("/var/tmp")), ".prove-0123", Identity(1, 2, (3, 4)))


def test_the_newest_proof_of_each_job_comes_back(tmp_path: Path) -> None:
    newest = replace(EXACT, verdict=Verdict.DIFFERENT, steps=7)
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        ledger.proofs.store("digits", EXACT)
        ledger.proofs.store("words", EXACT)
        ledger.proofs.store("digits", newest)
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        assert ledger.proofs.load() == {"digits": newest, "words": EXACT}


def test_what_is_under_way_is_known_to_the_next_daemon_and_forgotten_at_its_end(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        ledger.proofs.store("digits", EXACT)
        for name in ("digits", "words"):
            ledger.proofs.begin(name, SCRATCH)
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        assert ledger.proofs.load_under_way() == {"digits": SCRATCH, "words": SCRATCH}
        for name in ("digits", "words"):
            ledger.proofs.end(name)
        assert ledger.proofs.load_under_way() == {}
        assert ledger.proofs.load() == {"digits": EXACT}


def test_a_report_that_is_too_large_is_cut_before_it_is_written(tmp_path: Path) -> None:
    large = replace(EXACT, reason="x" * 100_000, kills=EXACT.kills * 1000)
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        ledger.proofs.store("digits", large)
        stored = ledger.proofs.load()["digits"]

    assert (len(stored.reason), len(stored.kills)) == (4000, 200)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"verdict": "exact"}', "x" * 1_000_000, b"\xff\0", 7, None])
def test_a_damaged_row_costs_that_proof(tmp_path: Path, content: object) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        ledger.proofs.store("digits", EXACT)
        ledger.proofs.store("words", EXACT)
        assert ledger.proofs.load().keys() == {"digits", "words"}
        with closing(sqlite3.connect(tmp_path / "ledger")) as shell, shell:
            shell.execute("UPDATE proofs SET content = ?, under_way = ? WHERE program = 'digits'", (content, content))

        assert ledger.proofs.load() == {"words": EXACT}
        assert ledger.proofs.load_under_way() == {}


def test_a_damaged_field_costs_that_field() -> None:
    found = decode_proof('{"verdict":"exact","job":"digits","wall_at":1.0,"took_s":2.0,"steps":-5,"kills":[{}]}')

    assert found == ProofReport(Verdict.EXACT, "digits", 1.0, 2.0)


@pytest.mark.fuzz
@cases(200)
@given(st.text() | st.binary().map(lambda content: content.decode("latin-1")))
def test_any_text_is_a_proof_or_none(text: str) -> None:
    decode_proof(text)
