"""A metadata server and a recorder, both gone at the end of the test."""

from collections.abc import AsyncIterator

import pytest

from tests.host.notices.metadata_server import MetadataServer
from tests.host.notices.recorder import Recorder


@pytest.fixture
async def server() -> AsyncIterator[MetadataServer]:
    """A metadata server that listens and has nothing to announce."""
    server = MetadataServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def heard() -> AsyncIterator[Recorder]:
    """Whom the test's source tells."""
    recorder = Recorder()
    yield recorder
    await recorder.close()
