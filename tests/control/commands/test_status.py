"""What `status` says of a job that several nodes train."""

from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.control.commands.descriptions import full_description
from supervisor.control.commands.status import GangAnswer, job_status
from supervisor.core.program.facts import State
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.protocol.allocation import Allocation
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.runner import Runner


async def test_a_rank_says_which_of_how_many_nodes_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "supervisord.conf"
    path.write_text(f"[supervisord]\n[program:train]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/ckpt\n")
    config = load_config(path, {}).programs["train"]
    ledger, logs = Ledger(tmp_path / "ledger.sqlite3"), LogCapture(tmp_path / "state")
    services = Services(ledger, logs, CheckpointStore(), tmp_path / "state", tmp_path / "run", {}, server_url=None)
    rank = Runner(config, replace(services, place=Allocation(7, 1, ("n1", "n2", "n3"), 2, 2005), generation=2005))
    alone = Runner(config, services)
    ledger.close()
    for each in (rank, alone):
        each.startable.set()
    monkeypatch.setattr(Runner, "state", State.RUNNING)

    assert "rank 1 (n2) of 3 nodes, generation 2005" in full_description(rank)
    assert (found := job_status(rank)) is not None
    assert found.gang == GangAnswer(1, ("n1", "n2", "n3"), 2005)
    assert "rank" not in full_description(alone)
    assert (other := job_status(alone)) is not None
    assert other.gang is None
