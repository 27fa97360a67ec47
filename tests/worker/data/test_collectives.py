"""What workers say to each other counts once, however many devices each has."""

from typing import Any

import pytest

from worker.data.collectives import Gang, _make_sum

pytestmark = pytest.mark.tensorflow


def test_worker_with_several_devices_contributes_once(two_replicas: Any) -> None:
    alone = Gang(0, 1, _make_sum(two_replicas))

    assert alone.sum([3, -5, 1 << 62]) == [3, -5, 1 << 62]
    assert alone.gather(b"several words of text") == [b"several words of text"]
