"""What programs are run with: a ledger, logs and folders of the test's own."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.runner.attempt.services import Services


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    state, run = tmp_path / "state", tmp_path / "run"
    ledger, logs = Ledger(tmp_path / "ledger.sqlite3"), LogCapture(state)
    logs.start()
    yield Services(ledger, logs, CheckpointStore(), state, run, dict(os.environ), server_url=None)
    logs.close()
    ledger.close()
