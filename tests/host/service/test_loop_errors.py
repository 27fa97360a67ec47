"""What the daemon's log has of errors that asyncio reports."""

import asyncio
import os
import resource
import socket
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.host.service.loop_errors import LoopErrors


async def test_clients_that_no_descriptor_is_left_for_are_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors().on_error)
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), tmp_path / "s", backlog=128)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client, capture_logs() as logged:
        client.setblocking(False)
        client.connect(str(tmp_path / "s"))
        os.close(lowest := os.dup(0))  # what the next client would get
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            await asyncio.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    (line,) = logged
    assert (line["event"], "Too many open files" in line["reason"]) == ("client.not_accepted", True)
    assert caplog.records == []
    server.close()


async def test_other_errors_are_reported_as_ever(caplog: pytest.LogCaptureFixture):
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors().on_error)

    loop.call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

    assert "ZeroDivisionError" in caplog.text
