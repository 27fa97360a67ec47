"""One order at a time changes a program; the others are told so, or wait."""

import asyncio
from contextlib import ExitStack

import pytest

from supervisor.runner.fleet.under_way import ChangesUnderWay


async def test_an_order_that_ends_leaves_alone_what_another_one_has_taken_since() -> None:
    changes = ChangesUnderWay()

    with ExitStack() as other:
        with changes.change({"a": None, "b": None}) as let_go:
            let_go(["a"])
            assert "a" not in changes
            other.enter_context(changes.change({"a": None}))

        assert "a" in changes
        assert "b" not in changes
    assert "a" not in changes


async def test_who_waits_goes_on_once_all_orders_have_ended_also_if_one_fails() -> None:
    changes = ChangesUnderWay()
    with changes.change({"a": None}):
        with pytest.raises(OSError, match="no"), changes.change({"b": None}):
            waits = asyncio.create_task(changes.until_free())
            await asyncio.sleep(0)
            raise OSError("no")
        await asyncio.sleep(0)
        assert not waits.done()

    await asyncio.wait_for(waits, 5.0)
