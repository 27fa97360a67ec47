"""`checkpoint`: what is answered is known to the next daemon."""

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.control.base.context import ProgramName
from supervisor.control.commands.checkpoints import checkpoint
from supervisor.protocol.wire.messages import Committed


async def test_a_checkpoint_is_answered_once_the_account_has_it() -> None:
    """A daemon killed before that, and a disk that is not mounted at the next boot: nobody would miss it."""
    committed = Committed(1, 50, "step-0000000050.a1", 1, 0.1, stall_s=0.0)
    recorded = asyncio.Event()

    async def wait_until(condition: Any) -> Committed:
        return committed

    async def until_adoption_settled(runner: Any) -> None: ...

    runner = SimpleNamespace(
        config=SimpleNamespace(job=object()),
        post=lambda event: None,
        flush=SimpleNamespace(id=1),
        wait_until=wait_until,
        mirror=None,
    )
    wanted = SimpleNamespace(until_recorded=recorded.wait)
    context: Any = SimpleNamespace(
        programs=SimpleNamespace(runners={"digits": runner}, until_adoption_settled=until_adoption_settled),
        ledger=SimpleNamespace(wanted=wanted),
    )

    asking = asyncio.create_task(checkpoint(context, ProgramName("digits")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    recorded.set()

    assert (await asyncio.wait_for(asking, 10.0)).step == 50
