"""A report as people read it: the verdict in the first line."""

from supervisor.protocol.proof import Difference, KillPlace, Likely, ProofKill, ProofReport, Verdict
from supervisor.protocol.proof_plan import QUEUE
from supervisor.prove.cause import explain
from supervisor.prove.comparison.values import LostValue
from supervisor.prove.texts import report_lines

KILLS = (
    ProofKill(KillPlace.STEP, 40, damaged=True, resumed_from=33),
    ProofKill(KillPlace.EPOCH_EDGE, 60, resumed_from=60),
    ProofKill(KillPlace.SAVE, 7, resumed_from=0),
)


def lines(verdict: Verdict, **fields: object) -> list[str]:
    report = ProofReport(
        verdict, "digits", 0.0, 61.4, steps=214, epoch_ends=1, state_bytes=4_300_000, kills=KILLS,
        not_varied=("another host",), **fields,
    )  # fmt: skip
    return list(report_lines(report))


def test_an_exact_proof_says_what_it_compared_and_where_it_killed():
    assert lines(Verdict.EXACT) == [
        "exact: 3 kills, 214 steps, 1 epoch's end, 4.1 MB of state, all bits equal",
        "  killed in a step at step 40, newest checkpoint damaged: went on from step 33",
        "  killed at an epoch's edge at step 60: went on from step 60",
        "  killed in a save at step 7: went on from nothing",
        "not varied: another host",
        "took 61 s",
    ]


def test_a_difference_says_the_first_one_the_cause_and_what_to_write():
    differences = Difference("number of steps", 13, "12", "13 or more"), Difference("metric loss", 7, "0.5", "0.6")

    found = lines(
        Verdict.DIFFERENT, differences=differences, likely=Likely.LOOP_BEGAN_ANEW, reason="a loop", remedy="run.epochs"
    )

    assert found[0] == "different: number of steps: 12 undisturbed, 13 or more killed"
    assert "  metric loss at step 7: 0.5 | 0.6" in found
    assert "likely: a loop that began anew: a loop" in found
    assert "write: run.epochs" in found


def test_two_undisturbed_runs_are_called_that():
    differences = (Difference("metric loss", 1, "0.5", "0.6"),)

    found = lines(Verdict.DIFFERENT, differences=differences, likely=Likely.NOT_DETERMINISTIC)

    assert found[0] == "different: metric loss at step 1: 0.5 undisturbed, 0.6 in another undisturbed run"


def test_what_can_not_be_proven_has_its_reason_and_nothing_else():
    assert lines(Verdict.NOT_PROVABLE, reason="no step in time") == ["not provable: no step in time"]


def test_a_job_that_can_not_go_on_after_a_kill_is_different_with_its_error():
    found = explain(
        [Difference("restart", 9, "trains on", "fails: KeyError: 'x'")], (), (), repeats=True, goes_back=False
    )

    assert "could not go on after a kill: it fails: KeyError: 'x'" in found.reason


def test_a_queue_that_a_thread_fills_is_not_to_be_put_into_the_state():
    lost = LostValue("self.waiting", 9, f"{QUEUE}deque of 7: 1c5a59f6", f"{QUEUE}deque of 8: 912affd5")

    found = explain([Difference("metric loss", 10, "1.0", "2.0")], (), [lost], repeats=True, goes_back=False)

    assert found.remedy.startswith("read ahead in the data, before run.batches")
    assert 'run.state["waiting"] = list(self.waiting.queue)' in found.remedy
