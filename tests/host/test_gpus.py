"""A driver that hangs: it is told of, and nobody waits for it at the end."""

import asyncio
import threading

import pytest

from supervisor.host import gpus
from supervisor.host.gpus import Gpus


def test_a_driver_that_hangs_holds_up_neither_the_asker_nor_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ANSWERS_WITHIN_S", 0.05)
    release, answered = threading.Event(), threading.Event()

    def hang() -> None:
        release.wait(20)
        answered.set()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await Gpus().ask(hang)

    asyncio.run(ask())  # its end waits for the loop's own threads
    assert not answered.is_set()
    release.set()
