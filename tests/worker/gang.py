"""Starts processes that train together, each in a fork that has TensorFlow, as the daemons of several hosts would."""

import os
from collections.abc import Sequence
from pathlib import Path

from supervisor.host.gang.free_port import free_port
from supervisor.protocol.gang import cluster_text
from supervisor.protocol.wire.launch import Launch, without_launch_variables
from tests import forked
from tests.places import ROOT
from tests.waiting import wait_until

PATIENCE_S = 300.0


class Gang:
    """The processes of one start: all end once one has ended early, as under a daemon.

    Where a process itself starts the others (`workers =`), each of these imports TensorFlow.
    """

    def __init__(self, command: Sequence[str], count: int, folder: Path, **orders: object) -> None:
        """`orders`: those of a `Launch`, for all. `folder`: for what they print."""
        cluster = [f"localhost:{free_port()}" for _ in range(count)]
        self._printed = [folder / f"printed-{rank}" for rank in range(count)]
        folder.mkdir(parents=True, exist_ok=True)
        self.processes = []
        for rank, path in enumerate(self._printed):
            environment = {**without_launch_variables(os.environ), **Launch(**orders).to_environment()}
            environment |= {"PYTHONPATH": str(ROOT)}
            if count > 1:
                environment["TF_CONFIG"] = cluster_text(cluster, rank)
            with path.open("wb") as printed:
                process = forked.ForkedProcess(command, env=environment, cwd=ROOT, stdout=printed, stderr=printed)
            self.processes.append(process)

    def wait(self, patience_s: float = PATIENCE_S) -> list[int | None]:
        """Waits for the end of all. The status of each; None of those that were ended because one had failed."""
        statuses: dict[int, int | None] = {}

        def is_over() -> bool:
            statuses.update({n: one.poll() for n, one in enumerate(self.processes) if one.poll() is not None})
            return any(statuses.values()) or len(statuses) == len(self.processes)

        try:
            wait_until(is_over, "a worker ends early, or all end", patience_s, self.said)
            return [statuses.get(rank) for rank in range(len(self.processes))]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def said(self) -> str:
        """What all printed."""
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')}" for path in self._printed)
