"""A worker that lost its directory to a newer attempt commits nothing any more, and leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import worker
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Failed, Go
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.tensorflow


def test_worker_that_was_overtaken_commits_nothing_and_leaves_with_75(
    daemon: DaemonEnd, begin: Callable[[Launch], None], two_replicas: Any, tmp_path: Path
) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "ckpt", checkpoint_interval=Interval(steps=2)))
    daemon.send(Go(1, restore=None))
    tracked = training.build(two_replicas)
    step = training.step_of(tracked, two_replicas)

    with (
        pytest.raises(SystemExit) as left,
        worker.Run(tracked, strategy=two_replicas, total_steps=9) as run,
    ):
        (tmp_path / "ckpt" / "step-0000000001.a2.partial").mkdir()  # attempt 2 has begun to save
        for images, labels in run.batches(training.data()):
            run.step_done(loss=step(images, labels))

    assert left.value.code == WorkerExit.LOCKED
    assert "attempt 2 has begun there" in daemon.wait_for(Failed).error
    assert selection.committed_checkpoints(tmp_path / "ckpt") == []
