"""One cluster for all tests of a file."""

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, why_not_here


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes is for `make slurm-test`."""
    for item in items:
        if "minutes" in item.keywords and not os.environ.get("SLURM_TEST"):
            item.add_marker(pytest.mark.skip(reason="takes minutes; run make slurm-test"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if (reason := why_not_here()) is not None:
        pytest.skip(reason)
    cluster = Cluster().start()
    try:
        yield cluster
    finally:
        cluster.stop()
