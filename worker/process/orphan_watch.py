"""Ends this process some time after its daemon is gone for good, where nothing else would: in an allocation of Slurm's.

Elsewhere a worker trains on without its daemon for as long as it takes, because the next daemon adopts it. In an
allocation the next daemon comes within seconds, or never, as the allocation is over and the node belongs to others.
"""

import os
import threading
import time

from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import DaemonIdentity
from worker.process.daemon_process import wait_for_end
from worker.process.reporting import print_message
from worker.process.requests import PendingRequests

ORPHANED_S = 30.0  # for the batch script to start the next daemon, on a node that is busy
SAVE_S = 60.0  # for the last save; without other ranks there is none


class OrphanWatch:
    """Follows the daemon, and each one that takes this process over."""

    def __init__(
        self,
        daemon: DaemonIdentity,
        requests: PendingRequests,
        orphaned_s: float = ORPHANED_S,
        save_s: float = SAVE_S,
    ) -> None:
        self._orphaned_s = orphaned_s
        self._save_s = save_s
        self._requests = requests
        self._daemon = daemon
        self._adopted = threading.Event()

    def start(self) -> None:
        """Begins to watch, in a thread of its own."""
        threading.Thread(target=self._watch, name="stepkeeper-orphan", daemon=True).start()

    def on_adopted(self, daemon: DaemonIdentity) -> None:
        """Another daemon has taken this process over."""
        self._daemon = daemon
        self._adopted.set()

    def _watch(self) -> None:
        while True:
            wait_for_end(self._daemon)
            if self._adopted.wait(self._orphaned_s):
                self._adopted.clear()
                continue
            print_message(f"the daemon is gone, and no other came within {self._orphaned_s:g} s; saves and leaves")
            self._requests.add_stop_request()
            time.sleep(self._save_s)
            os._exit(int(WorkerExit.STOPPED))
