"""The newest proof of a job in words."""

from dataclasses import replace

import pytest

from supervisor.control.commands.prove import describe_proof
from supervisor.protocol.proof import Difference, KillPlace, ProofKill, ProofReport, Verdict

DAY_S = 86400.0
EXACT = ProofReport(Verdict.EXACT, "digits", 1000.0, 12.5, 214, 1, 4_100_000, (ProofKill(KillPlace.STEP, 30),) * 3)
DIFFERENT = replace(EXACT, verdict=Verdict.DIFFERENT, differences=(Difference("metric loss", 41, "1", "2"),))


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (-5.0, "just now"),
        (59.0, "just now"),
        (60.0, "1 minute ago"),
        (7199.0, "1 hour ago"),
        (3 * DAY_S + 1, "3 days ago"),
        (1e12, "11574074 days ago"),
    ],
)
def test_an_exact_proof_says_how_old_it_is_and_what_it_did(age_s: float, words: str) -> None:
    assert describe_proof(EXACT, 1000.0 + age_s) == f"proven exact {words} (3 kills, 214 steps)"


def test_whether_the_script_has_changed_is_said_only_where_it_has() -> None:
    assert describe_proof(EXACT, 1000.0, True).endswith("; the script has changed since")
    assert "changed" not in describe_proof(EXACT, 1000.0, False) + describe_proof(EXACT, 1000.0, None)


def test_a_difference_is_named() -> None:
    assert describe_proof(DIFFERENT, 1000.0) == "proof just now found a difference: metric loss at step 41"
    anywhere = replace(DIFFERENT, differences=(Difference("number of steps", None, "3", "4"),))
    assert describe_proof(anywhere, 1000.0).endswith("found a difference: number of steps")
    assert describe_proof(replace(DIFFERENT, differences=()), 1000.0).endswith("no details are known")


def test_why_it_is_not_provable_is_one_line_of_bounded_length() -> None:
    text = describe_proof(replace(EXACT, verdict=Verdict.NOT_PROVABLE, reason="it\nfails " * 500), 1000.0)

    assert text.startswith("not provable, as found just now: it fails it fails")
    assert len(text) < 300
    assert "\n" not in text
