"""Clients that connect and then do not what a client does: nothing, half a request, or too many at once."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from supervisor.control.server import Door, Patience, serve

DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"  # needs no daemon
TIME_S = 10.0


@asynccontextmanager
async def serving(*paths: Path, **limits: Any) -> AsyncIterator[None]:
    doors = [Door(socket.socket(socket.AF_UNIX), os.geteuid()) for _ in paths]
    for door, path in zip(doors, paths, strict=True):
        door.listener.bind(str(path))
    no_daemon = cast(Any, None)
    async with serve(doors, no_daemon, Patience(**limits)):
        yield


async def until_closed(path: Path, *pieces: bytes) -> bytes:
    """Sends the pieces, a tenth of a second between them, and gives what came until the server hung up."""
    reader, writer = await asyncio.open_unix_connection(path)
    for piece in pieces:
        try:
            writer.write(piece)
            await writer.drain()
        except ConnectionError:
            break
        await asyncio.sleep(0.1)
    try:
        return await asyncio.wait_for(reader.read(), TIME_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"POST /api/v1/st",),
        (b"POST /RPC2 HTTP/1.1\r\nHost: x\r\n",),
        (DOCUMENT, b"GET /openapi.json HTTP/1.1\r\n"),  # after a request that was whole
        (b"GET / HTTP/1.1\r\n", *(b"X-%d: slow\r\n" % number for number in range(60))),  # a header every tenth second
    ],
    ids=["nothing", "half-a-line", "half-the-headers", "the-second-request", "one-header-at-a-time"],
)
async def test_a_request_that_does_not_come_is_not_waited_for(tmp_path: Path, pieces: tuple[bytes, ...]):
    began_at = time.monotonic()

    async with serving(tmp_path / "s", head_s=0.4):
        await until_closed(tmp_path / "s", *pieces)

    assert time.monotonic() - began_at < 0.4 + 0.1 * len(pieces) + 4.0


@pytest.mark.parametrize("path", [b"/api/v1/start", b"/RPC2", b"/openapi.json"])
async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, path: bytes):
    async with serving(tmp_path / "s", body_s=0.3):
        answer = await until_closed(
            tmp_path / "s", b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{", b"x", b"x"
        )

    assert answer.startswith(b"HTTP/1.1 408")


async def test_one_client_too_many_is_told_so_and_the_others_are_served(tmp_path: Path):
    async with serving(tmp_path / "s", connections=3):
        idle = [await asyncio.open_unix_connection(tmp_path / "s") for _ in range(3)]
        refused = await until_closed(tmp_path / "s")
        reader, writer = idle[0]
        writer.write(DOCUMENT)
        served = await asyncio.wait_for(reader.readline(), TIME_S)
        for _, each in idle:
            each.close()
            await each.wait_closed()
        await asyncio.sleep(0.05)
        again = await until_closed(tmp_path / "s", DOCUMENT.replace(b"Host: x", b"Host: x\r\nConnection: close"))

    assert refused.startswith(b"HTTP/1.1 503") and b"as many connections as it takes" in refused
    assert served.startswith(b"HTTP/1.1 200")
    assert again.startswith(b"HTTP/1.1 200")


async def test_clients_of_all_doors_are_counted_together(tmp_path: Path):
    doors = tmp_path / "a", tmp_path / "b"

    async with serving(*doors, connections=2):
        idle = [await asyncio.open_unix_connection(each) for each in doors]
        answers = [await until_closed(each) for each in doors]
        for _, writer in idle:
            writer.close()

    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 503"] * 2
