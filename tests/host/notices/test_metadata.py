"""What the metadata client sends, and what it makes of servers that hang up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from supervisor.host.notices.metadata import MetadataClient, MetadataError


@asynccontextmanager
async def saying(answer: bytes, heard: list[bytes]) -> AsyncIterator[MetadataClient]:
    """A server that says this to everybody, and hangs up."""

    async def came(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(came, "127.0.0.1") as server:
        host, port = server.sockets[0].getsockname()
        yield MetadataClient(f"http://{host}:{port}")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2"], ids=["nothing", "half-a-line"])
async def test_server_that_closes_the_connection_without_a_response_is_an_error(answer: bytes):
    async with saying(answer, []) as metadata:
        with pytest.raises(MetadataError, match="the connection was closed without a response"):
            await metadata.get("/", {})


async def test_only_requests_that_may_have_a_body_have_a_content_length():
    heard: list[bytes] = []

    async with saying(b"HTTP/1.1 204 No Content\r\n\r\n", heard) as metadata:
        await metadata.get("/", {})
        await metadata.put("/", {})

    assert [b"content-length" in each.lower() for each in heard] == [False, True]
