"""Fixtures for tests in any folder: an empty S3 bucket, an empty Azure container. One emulator of each for a session.

A test that uses one is marked `integration`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mirror.stores import ObjectStore, azure_server, new_bucket, new_container, s3_server, why_no_azurite


@pytest.fixture(scope="session")
def _emulator_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("object-stores")


@pytest.fixture(scope="session")
def _s3_endpoint(_emulator_logs: Path) -> Iterator[str]:
    with s3_server(_emulator_logs) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def _azure_endpoint(_emulator_logs: Path) -> Iterator[str]:
    if (reason := why_no_azurite()) is not None:
        pytest.skip(reason)
    with azure_server(_emulator_logs) as endpoint:
        yield endpoint


@pytest.fixture
def s3_store(_s3_endpoint: str, _emulator_logs: Path) -> ObjectStore:
    """An empty bucket of moto's S3 server."""
    return new_bucket(_s3_endpoint, _emulator_logs / "s3.log")


@pytest.fixture
def azure_store(_azure_endpoint: str, _emulator_logs: Path) -> ObjectStore:
    """An empty container of Azurite; the test is skipped where there is none."""
    return new_container(_azure_endpoint, _emulator_logs / "azure.log")
