"""Who may be proven when, and what ends a proof."""

from dataclasses import replace

import pytest

from supervisor.core.fleet.proving import JobSituation, ProofObstacle, find_obstacle, why_end
from supervisor.core.gpus.verdict import Gpu
from supervisor.core.program.facts import ALIVE, State

IDLE = JobSituation("digits", State.STOPPED)
BUSY = (Gpu(0, "GPU-aaaa", frozenset({7})), Gpu(1, "GPU-bbbb", frozenset({8, 9})))


@pytest.mark.parametrize("state", list(State))
def test_a_job_is_proven_unless_it_has_a_process_or_is_about_to(state: State) -> None:
    obstacle = find_obstacle(replace(IDLE, state=state))

    if state not in (*ALIVE, State.BACKOFF):
        assert obstacle is None
        return
    assert obstacle is not None
    assert obstacle[0] is ProofObstacle.BUSY
    assert "supervisorctl stop digits" in obstacle[1]
    assert "--anyway" in obstacle[1]
    assert find_obstacle(replace(IDLE, state=state), anyway=True) is None


def test_a_job_that_will_start_by_itself_is_not_proven() -> None:
    obstacle = find_obstacle(replace(IDLE, is_due=True))

    assert obstacle is not None
    assert "will start by itself" in obstacle[1]


def test_one_proof_at_a_time_also_for_those_who_say_that_there_is_room() -> None:
    obstacle = find_obstacle(replace(IDLE, proving="words"), anyway=True)

    assert obstacle is not None
    assert obstacle[0] is ProofObstacle.OTHER_PROOF
    assert "supervisorctl prove --cancel words" in obstacle[1]


def test_a_gang_is_not_provable_whoever_asks() -> None:
    obstacle = find_obstacle(replace(IDLE, nodes=4, proving="words"), anyway=True)

    assert obstacle is not None
    assert obstacle[0] is ProofObstacle.NOT_PROVABLE
    assert "4 nodes" in obstacle[1]


@pytest.mark.parametrize(
    ("gpus", "visible", "is_free"),
    [
        ((), None, True),
        (BUSY, None, False),
        (BUSY, "", True),  # it sees none
        ((*BUSY, Gpu(2, "GPU-cccc")), None, True),
        ((*BUSY, Gpu(2, "GPU-cccc")), "0,1", False),
        ((*BUSY, Gpu(2, "GPU-cccc")), "GPU-cc", True),
        ((Gpu(0, "GPU-aaaa", trouble="lost"),), None, False),
    ],
)
def test_one_gpu_of_the_job_has_to_be_free(gpus: tuple[Gpu, ...], visible: str | None, is_free: bool) -> None:
    obstacle = find_obstacle(replace(IDLE, gpus=gpus, visible=visible))

    assert (obstacle is None) is is_free
    assert find_obstacle(replace(IDLE, gpus=gpus, visible=visible), anyway=True) is None


def test_who_holds_the_gpus_is_named() -> None:
    obstacle = find_obstacle(replace(IDLE, gpus=BUSY))

    assert obstacle is not None
    assert "GPU 0 by pid 7, GPU 1 by pid 8, 9" in obstacle[1]


def test_a_proof_ends_with_its_job_and_when_its_job_is_started() -> None:
    assert why_end("digits", State.STOPPED, True, False) is None
    assert "removed or changed" in (why_end("digits", State.STOPPED, False, True) or "")
    assert "training comes first" in (why_end("digits", State.STARTING, True, False) or "")
    assert why_end("digits", State.RUNNING, True, True) is None
