"""A quarter of a minute of `start_histories`, with another seed each time."""

import os
import random
from pathlib import Path

import pytest

from tests.system.start_histories import StartHistories

pytestmark = [pytest.mark.integration, pytest.mark.slow]

MINUTES = float(os.environ.get("HISTORY_MINUTES", "0.25"))


@pytest.mark.timeout(60 * MINUTES + 600)
@pytest.mark.parametrize("minutes", [MINUTES, pytest.param(2.0, marks=pytest.mark.nightly)])
def test_a_daemon_that_starts_amid_orders_has_one_worker_for_each_program(tmp_path: Path, minutes: float) -> None:
    StartHistories(tmp_path, random.randrange(1 << 30)).run(minutes)
