"""What a daemon of a gang makes of its own worker's end."""

from types import SimpleNamespace

import pytest

from supervisor.core.program.facts import State
from supervisor.protocol.allocation import Allocation, StepExit
from supervisor.runner.attempt.services import GangPlace
from supervisor.runner.fleet.gang_agent import GangAgent, GangSettings, cluster_of_one

PLACE = Allocation(7, 1, ("localhost", "127.0.0.1"), 0, 1)


class Daemon:
    """An agent whose one program is in a state, with what it asked the daemon for."""

    def __init__(self, state: State = State.STOPPED, code: int | None = None, **facts: bool) -> None:
        self.left = 0
        self.is_leaving = False
        self.runner = SimpleNamespace(
            state=state,
            name="train",
            attempt=1,
            standby=None,
            post=lambda event: None,
            wanted=True,
            reason="terminated by SIGKILL",
            facts=SimpleNamespace(**{"launched": True, "waits_for_host": False, "waits_for_storage": False, **facts}),
            records=SimpleNamespace(process=SimpleNamespace(last_exit=SimpleNamespace(code=code))),
        )
        self.agent = GangAgent(
            GangPlace(PLACE),
            GangSettings("s", 1.0, PLACE.size),
            {"train": self.runner},  # type: ignore[dict-item]
            self._leave,
            lambda: self.is_leaving,
        )

    def _leave(self) -> None:
        self.left += 1


@pytest.mark.parametrize(
    ("daemon", "status"),
    [
        ({"code": 143}, StepExit.SAVED),
        ({"state": State.BACKOFF, "waits_for_host": True}, StepExit.NODE_LEAVES),
        ({"state": State.BACKOFF, "waits_for_storage": True}, StepExit.STORAGE_AWAY),
        ({"state": State.RUNNING}, None),
        ({"launched": False}, None),
        ({"state": State.SUCCEEDED}, None),
        ({"state": State.FAILED}, None),
    ],
)
async def test_the_end_of_its_worker_ends_the_generation(daemon: dict[str, object], status: StepExit | None) -> None:
    one = Daemon(**daemon)  # type: ignore[arg-type]
    one.agent.on_change()
    assert (one.agent.ends_with, one.left) == (status, 0 if status is None else 1)


async def test_a_daemon_that_was_told_to_exit_says_why_itself() -> None:
    """Slurm's warning (SIGUSR1) has to reach the batch script as such, though the worker has stopped."""
    one = Daemon(code=143)
    one.is_leaving = True
    one.agent.on_change()
    assert (one.agent.ends_with, one.left) == (None, 0)


def test_one_node_is_a_cluster_of_one_for_a_job_that_can_use_several() -> None:
    def runner(**job: object) -> SimpleNamespace:
        return SimpleNamespace(config=SimpleNamespace(job=SimpleNamespace(**{"workers": None, **job})))

    plain = SimpleNamespace(config=SimpleNamespace(job=None))
    assert cluster_of_one([plain, runner(strategy="mirrored"), runner(strategy="multiworker", workers=2)]) == {}  # type: ignore[list-item]
    (text,) = cluster_of_one([runner(strategy="multiworker")]).values()  # type: ignore[list-item]
    assert '"worker": ["localhost:' in text
