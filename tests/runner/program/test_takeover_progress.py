"""A takeover only advances, and each of its stages includes those before."""

import asyncio

import pytest

from supervisor.runner.program.changes import ChangeWaiters
from supervisor.runner.program.takeover_progress import TakeoverProgress, TakeoverStage
from tests.host.conftest import PATIENCE_S


async def test_what_may_start_has_no_worker_that_is_not_adopted():
    takeover = TakeoverProgress(ChangeWaiters())

    takeover.advance(TakeoverStage.STARTABLE)
    takeover.advance(TakeoverStage.ADOPTION_SETTLED)

    assert takeover.is_adoption_settled and takeover.is_startable


@pytest.mark.parametrize("stage", [TakeoverStage.ADOPTION_SETTLED, TakeoverStage.STARTABLE])
async def test_who_waits_for_a_stage_goes_on_once_it_is_reached(stage: TakeoverStage):
    takeover = TakeoverProgress(ChangeWaiters())
    waiting = [asyncio.create_task(takeover.until(awaited)) for awaited in TakeoverStage]
    await asyncio.sleep(0)

    takeover.advance(stage)

    await asyncio.wait_for(asyncio.gather(*waiting[: stage + 1]), PATIENCE_S)
    assert [task.done() for task in waiting] == [awaited <= stage for awaited in TakeoverStage]
    for task in waiting:
        task.cancel()


async def test_the_first_start_ends_what_an_earlier_daemon_left():
    takeover = TakeoverProgress(ChangeWaiters())
    takeover.was_done = takeover.is_resuming = True

    takeover.note_start()

    assert not (takeover.was_done or takeover.is_resuming)
