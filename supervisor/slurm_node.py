"""What runs on each node of a step with spare nodes: starts the node's daemon, again if it was lost and the gang goes
on. `python -m supervisor.slurm_node OPTIONS`, with the options of supervisord.

On the first node it becomes the daemon: with the chief a generation is over, and the batch script, which lives there
too, starts the next one. On the others it outlives the daemon, and looks at the chief (`core.gang.steps`): while that
listens, the gang goes on, and a daemon that is started again joins it as a spare node. If the first node itself is
gone, and Slurm has taken it out of the job, nobody is left who could queue the job again, so this does.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType

from supervisor.core.gang.steps import LEAVES_WITH, AfterDaemon, ChiefSeen, after_daemon
from supervisor.host import slurm
from supervisor.protocol import gang
from supervisor.protocol.allocation import Allocation, AllocationError

CONNECT_S = 5.0
LOOK_S = 5.0  # between two looks at a chief that is silent
EXIT_CONFIG = 78  # EX_CONFIG


def main() -> int:
    """Returns the exit status of this node."""
    command = [sys.executable, "-P", "-m", "supervisor.daemon", *sys.argv[1:]]
    try:
        place = slurm.find_allocation(os.environ)
    except (AllocationError, slurm.SlurmError) as error:
        _say(str(error))
        return EXIT_CONFIG
    if place.rank == 0:
        os.execv(command[0], command)  # noqa: S606 - no shell
    return Node(place, command).run()


class Node:
    """A node other than the first."""

    def __init__(self, place: Allocation, command: list[str]) -> None:
        self._place = place
        self._command = command
        self._daemon: subprocess.Popen[bytes] | None = None
        self._is_told_to_leave = False

    def run(self) -> int:
        """Runs daemons until this node has nothing left to do."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._on_signal)
        status, restarts = self._run_daemon(), 0
        while not (self._is_told_to_leave or status in LEAVES_WITH):
            match after_daemon(restarts, self._look_at_chief()):
                case AfterDaemon.LEAVE:
                    break
                case AfterDaemon.START:
                    restarts += 1
                    _say(f"the daemon of {self._name} ended with status {status}; it is started again, as a spare node")
                    status = self._run_daemon()
                case AfterDaemon.REQUEUE:
                    self._requeue()
                    time.sleep(LOOK_S)
                case AfterDaemon.LOOK:
                    time.sleep(LOOK_S)
        return status

    @property
    def _name(self) -> str:
        return self._place.describe(self._place.rank)

    def _run_daemon(self) -> int:
        self._daemon = subprocess.Popen(self._command)
        status = self._daemon.wait()
        return status if status >= 0 else 128 - status

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Slurm signals the daemon too; it takes two of the same at once for one."""
        self._is_told_to_leave = True
        if self._daemon is not None:
            self._daemon.send_signal(number)

    def _look_at_chief(self) -> ChiefSeen:
        chief = self._place.nodes[0]
        try:
            socket.create_connection((chief, gang.link_port(self._place)), CONNECT_S).close()
        except ConnectionRefusedError:
            return ChiefSeen.NO_DAEMON
        except OSError:
            nodes = slurm.remaining_nodes(self._place.job_id)
            return ChiefSeen.SILENT if nodes is None or chief in nodes else ChiefSeen.NO_NODE
        return ChiefSeen.LISTENS

    def _requeue(self) -> None:
        if slurm.job_state(self._place.job_id) not in slurm.RUNNING:
            return  # another node has asked, or the job was cancelled
        _say(f"{self._name} queues the job again, as the first node and the batch script are gone")
        try:
            slurm.requeue(self._place.job_id)
        except slurm.SlurmError as error:
            _say(str(error))


def _say(text: str) -> None:
    print(f"stepkeeper: {text}", file=sys.stderr, flush=True)  # noqa: T201 - Slurm's output file


if __name__ == "__main__":
    sys.exit(main())
