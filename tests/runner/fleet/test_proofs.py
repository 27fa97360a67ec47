"""Proofs of a daemon's jobs: when they begin, what is kept, and what an earlier daemon left is removed first."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load_config
from supervisor.core.fleet.proving import ProofObstacle
from supervisor.core.gpus.verdict import Gpu
from supervisor.core.program.facts import State
from supervisor.host import proof_process
from supervisor.host.proof_process import ScratchFolder
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.proof import ProofReport, Verdict
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.proofs import ProofRefused, ProofRun, Proofs, ProofWish
from supervisor.runner.gpus.guard import GpuLook
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from tests.host.test_proof_process import COMMAND, left_of
from tests.waiting import stays_async, wait_until

pytestmark = pytest.mark.integration
ONE, WISH = "sum", ProofWish()
Make = Callable[..., tuple[Proofs, Runner]]


class BusyGpus:
    """A driver that lists one GPU, which a process holds."""

    is_started = True

    def __init__(self, *pids: int) -> None:
        self._look = GpuLook((Gpu(0, "GPU-aaaa", frozenset(pids)),), frozenset({"GPU-aaaa"}))

    async def start_once(self) -> None:
        """It is."""

    async def look(self) -> GpuLook:
        return self._look


@pytest.fixture
async def make(services: Services, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes the proofs of a daemon with one job. `how`: what its prover does; the rest changes Services."""
    made: list[Proofs] = []

    def make(how: str = "exact", limit_s: float = 60.0, **changes: Any) -> tuple[Proofs, Runner]:
        path = tmp_path / "supervisord.conf"
        path.write_text(f"[supervisord]\n[program:{ONE}]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/jobs/{ONE}\n")
        (tmp_path / "jobs").mkdir(exist_ok=True)
        own = replace(services, environment={**services.environment, "PROVER": how}, **changes)
        runner = Runner(load_config(path, {}).programs[ONE], own)
        runner.takeover.advance(TakeoverStage.STARTABLE)
        proofs = Proofs({ONE: runner}, own, COMMAND, limit_s)
        made.append(proofs)
        return proofs, runner

    yield make
    for proofs in made:
        await proofs.close()


async def proven(proofs: Proofs, runner: Runner, wish: ProofWish = WISH) -> ProofRun:
    await proofs.recall()
    assert runner.config.job is not None
    run = await proofs.begin(runner, runner.config.job, wish)
    await asyncio.to_thread(wait_until, lambda: run.is_over, "it is over", 60.0)
    return run


async def test_a_verdict_is_kept_under_the_jobs_own_name_and_the_daemons_clock(make: Make, services: Services) -> None:
    proofs, runner = make("exact")

    run = await proven(proofs, runner)

    report = proofs.newest(ONE)
    assert report is not None
    assert (report.verdict, report.job, report.steps) == (Verdict.EXACT, ONE, 20), "whatever its process says"
    assert abs(report.wall_at - run.began_wall_at) < 60
    assert services.ledger.proofs.load() == {ONE: report}
    assert services.ledger.proofs.load_under_way() == {}
    (event,) = services.listeners.log.read_from(0, 10)
    assert (event.occurrence.name, event.fields()["verdict"]) == ("PROOF_ENDED", "exact")


@pytest.mark.parametrize(
    ("how", "limit_s", "words"),
    [("garbage:0", 60.0, "no report"), ("dies", 60.0, "it can't"), ("never", 2.0, "longer than 2 s")],
)
async def test_one_without_a_report_changes_nothing_that_is_known(
    make: Make, services: Services, tmp_path: Path, how: str, limit_s: float, words: str
) -> None:
    before = ProofReport(Verdict.EXACT, ONE, 1.0, 2.0)
    services.ledger.proofs.store(ONE, before)
    proofs, runner = make(how, limit_s)

    run = await proven(proofs, runner)

    assert words in (run.failure or "")
    assert proofs.newest(ONE) == before
    assert services.ledger.proofs.load() == {ONE: before}
    assert left_of(tmp_path / "jobs") == []


async def test_a_gang_gets_its_verdict_at_once_and_nothing_is_started(make: Make, tmp_path: Path) -> None:
    proofs, runner = make("never", gang=GangPlace(Allocation(7, 1, ("n1", "n2"), 2, 2005)))

    run = await proven(proofs, runner)

    assert run.proven is not None
    assert run.proven.report.verdict is Verdict.NOT_PROVABLE
    assert run.proven.text.startswith("not provable: 2 nodes train sum together")
    assert not (tmp_path / "jobs" / "began").exists()


async def test_without_a_free_gpu_it_is_refused_unless_there_is_room(make: Make) -> None:
    proofs, runner = make("exact", gpus=BusyGpus(4711))

    with pytest.raises(ProofRefused, match="GPU 0 by pid 4711") as refused:
        await proven(proofs, runner)

    assert refused.value.obstacle is ProofObstacle.BUSY
    assert (await proven(proofs, runner, ProofWish(anyway=True))).proven is not None


async def test_it_ends_when_its_job_is_started(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    proofs, runner = make("never")
    task = asyncio.create_task(proven(proofs, runner))
    await asyncio.to_thread(wait_until, lambda: proofs.current and proofs.current.progress.step, "it trains", 60.0)

    monkeypatch.setattr(Runner, "state", State.STARTING)

    assert "training comes first" in ((await task).failure or "")
    assert left_of(tmp_path / "jobs") == []


async def test_what_an_earlier_daemon_left_is_removed_before_anything_begins(
    make: Make, services: Services, tmp_path: Path
) -> None:
    proofs, runner = make("exact")
    left = tmp_path / "jobs" / ".prove-left"
    left.mkdir()
    services.ledger.proofs.begin(ONE, ScratchFolder((tmp_path / "jobs",), left.name))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(600)", env={"OF": str(left / "run")}
    )
    assert runner.config.job is not None
    beginning = asyncio.create_task(proofs.begin(runner, runner.config.job, WISH))
    await stays_async(lambda: not beginning.done(), "it waits for that", 0.1)

    await proofs.recall()

    assert await asyncio.wait_for(child.wait(), 10.0) == -9
    assert not left.exists()
    assert services.ledger.proofs.load_under_way().keys() <= {ONE}
    await beginning


async def test_cancelled_at_once_it_is_over(make: Make) -> None:
    proofs, runner = make("never")
    await proofs.recall()
    assert runner.config.job is not None
    run = await proofs.begin(runner, runner.config.job, WISH)

    assert await proofs.cancel(ONE)
    assert (run.is_over, run.failure, proofs.current) == (True, "it was cancelled", None)
    assert not await proofs.cancel(ONE)


async def test_what_can_t_be_removed_is_left_to_the_next_daemon(
    make: Make, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs, runner = make("exact")
    monkeypatch.setattr(proof_process, "REMOVED_WITHIN_S", 0.0)

    run = await proven(proofs, runner)

    assert run.proven is not None
    (scratch,) = services.ledger.proofs.load_under_way().values()
    monkeypatch.undo()
    later, _ = make("exact")
    await later.recall()
    assert services.ledger.proofs.load_under_way() == {}
    assert left_of(scratch.folders[0]) == []


async def test_a_daemon_that_leaves_begins_none(make: Make) -> None:
    proofs, runner = make("exact")
    await proofs.close()

    with pytest.raises(ProofRefused, match="leaving"):
        await proven(proofs, runner)
