"""A driver that hangs: it is told of, and nobody waits for it at the end."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from supervisor.host.resources.gpus import Gpus


def test_a_driver_that_hangs_holds_up_neither_the_asker_nor_the_exit() -> None:
    release, answered = threading.Event(), threading.Event()

    def hang() -> None:
        release.wait(20)
        answered.set()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await Gpus(answers_within_s=0.05).call_driver(hang)

    asyncio.run(ask())  # its end waits for the loop's own threads
    assert not answered.is_set()
    release.set()


def test_a_driver_is_reached_once_and_only_when_somebody_asks():
    opened: list[str] = []

    def load() -> Any:
        return SimpleNamespace(NVMLError=RuntimeError, nvmlInit=lambda: opened.append("now"))

    async def reach() -> bool:
        found = Gpus(load)
        assert not (opened or found.is_connected)
        await asyncio.gather(found.connect_once(), found.connect_once())
        return found.is_connected

    assert asyncio.run(reach())
    assert opened == ["now"]


def test_a_driver_that_hangs_is_reported_and_no_start_waits_for_its_gpus():
    release = threading.Event()

    async def reach() -> bool:
        found = Gpus(lambda: SimpleNamespace(NVMLError=RuntimeError, nvmlInit=lambda: release.wait(20)), 0.05)
        await found.connect_once()
        return found.is_connected

    with structlog.testing.capture_logs() as logged:
        assert not asyncio.run(reach())
    release.set()
    assert [each["event"] for each in logged] == ["gpu.silent"]
