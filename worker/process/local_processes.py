"""The processes of this host that train together: the chief starts the members, and all of them end together.

The job's own process (the chief) starts the others (members) by running its own command line once more. A socket pair
joins it with each: when either side dies, the other sees its end of the socket close and exits at once, so that nobody
waits in a collective operation for a process that is gone.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NoReturn

from supervisor.protocol.ports import ports_to_try
from supervisor.protocol.wire import launch, lines
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Launch, Member
from supervisor.protocol.wire.messages import Failed, FromWorker, Progress
from worker.process.attempt import Attempt
from worker.process.reporting import encode_within_limit, print_message

EXIT_TIMEOUT_S = 10.0  # for members to end once training is over; then they are killed
REAP_TIMEOUT_S = 5.0  # its socket closes a moment before the process is gone
READ_BYTES = 64 * 1024  # a message is at most this long
CAUSE_S = 2.0  # for this process to see that a member died; it sees it at once, unless the host is busy

CLUSTER = "TF_CONFIG"  # TensorFlow's variable


class MemberReporter:
    """A member's reporter: sends its failure to the chief, and prints the rest on stderr."""

    def __init__(self, member: Member) -> None:
        """From now on this process ends as soon as the chief has ended."""
        self._has_failed = False
        self._rank = member.rank
        self._link = socket.socket(fileno=member.link)
        os.set_inheritable(member.link, False)
        atexit.register(self._on_exit)
        threading.Thread(target=self._exit_with_chief, name="stepkeeper-member", daemon=True).start()

    def send_message(self, message: FromWorker) -> None:
        """Sends a failure; the chief reports everything else itself."""
        if isinstance(message, Failed):
            self._has_failed = True
            with contextlib.suppress(OSError):
                self._link.sendall(encode_within_limit(message))

    def send_progress(self, message: Progress) -> None:
        """Sends nothing: the chief reports progress."""

    def show_message(self, text: str) -> None:
        print_message(f"worker {self._rank}: {text}")

    def drain(self, timeout: float) -> bool:
        return True

    def _on_exit(self) -> None:
        """The script is over. What is left is TensorFlow's shutdown, which waits for the chief's."""
        if not self._has_failed:
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)

    def _exit_with_chief(self) -> NoReturn:
        with contextlib.suppress(OSError):
            while self._link.recv(READ_BYTES):
                pass
        os._exit(int(WorkerExit.STOPPED))  # no clean-up: it could wait for the chief


class LocalProcesses:
    """The members, as the chief holds them. The first that ends too early ends the chief, with its error and code."""

    def __init__(self, attempt: Attempt, count: int) -> None:
        """Starts `count` - 1 processes. Raises OSError if one can't be started; then none is left."""
        self._attempt = attempt
        self.count = count
        self._exits_allowed = False
        self._left: dict[int, None] = {}  # ranks that are gone, in the order in which they went
        self._lock = threading.Lock()  # of those two: members leave while this process begins or ends to train
        self._all_left = threading.Event()
        self._links: dict[socket.socket, int] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._owner = os.getpid()
        addresses = [f"localhost:{port}" for port in _free_ports(count)]
        try:
            for rank in range(1, count):
                self._start(rank, addresses)
        except OSError:
            self._kill()
            raise
        os.environ[CLUSTER] = _cluster(addresses, 0)
        atexit.register(self._on_exit)
        threading.Thread(target=self._watch_members, name="stepkeeper-members", daemon=True).start()

    def require_all_alive(self) -> None:
        """Training begins: from now on the exit of any member is a failure of all; one that is gone already is too."""
        with self._lock:
            self._exits_allowed = False
            gone = next(iter(self._left), None)
        if gone is not None:
            self._on_member_exit(gone, None)

    def allow_exits(self) -> None:
        """Training is over for all members: from now on the exit of one is no failure."""
        self._exits_allowed = True

    def wait_for_member_failure(self) -> None:
        """Call it when a step failed here: if a member's death was the cause, that is what has to be reported."""
        time.sleep(CAUSE_S)  # the watching thread ends this process meanwhile

    def _start(self, rank: int, addresses: list[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            orders = self._attempt.launch
            member = Launch(
                job=orders.job, checkpoint_dir=orders.checkpoint_dir, strategy=orders.strategy, workers=orders.workers,
                deterministic=orders.deterministic, strict=orders.strict, on_nan=orders.on_nan,
                loss_spike=orders.loss_spike, microbatches=orders.microbatches,
                checkpoint_interval=orders.checkpoint_interval,
                member=Member(rank, theirs.fileno()),
            )  # fmt: skip
            environment = {
                **launch.without_launch_variables(os.environ),
                **member.to_environment(),
                CLUSTER: _cluster(addresses, rank),
            }
            self._links[ours] = rank
            self._processes[rank] = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]], env=environment, stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def _watch_members(self) -> None:
        decoders = {rank: lines.Decoder() for rank in self._links.values()}
        poll = select.poll()
        links = {link.fileno(): (link, rank) for link, rank in self._links.items()}
        for descriptor in links:
            poll.register(descriptor, select.POLLIN)
        ended = set[int]()
        while links:
            for descriptor, _ in poll.poll():
                link, rank = links[descriptor]
                content = _read(link)
                failure = next(
                    (message for message in decoders[rank].feed(content) if isinstance(message, Failed)), None
                )
                if not content:
                    poll.unregister(descriptor)
                    del links[descriptor]
                    with self._lock:
                        self._left[rank] = None
                if failure is not None or not content:
                    ended.add(rank)
                    self._on_member_exit(rank, failure)
                if len(ended) == len(self._links):
                    self._all_left.set()

    def _on_member_exit(self, rank: int, failure: Failed | None) -> None:
        with self._lock:
            if self._exits_allowed:
                return
        process = self._processes[rank]
        try:
            code = process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it reported a failure, or closed its socket, and lives
            code = int(WorkerExit.USER_ERROR)
        if self._exits_allowed:  # this process came to its end meanwhile, which kills the others
            if failure is None or self._attempt.failure_sent:
                return
            code = int(WorkerExit.USER_ERROR)
        self._exits_allowed = True  # those that follow are consequences
        self._attempt.report_member_failure(f"worker {rank} of {self.count} {_describe_exit(code)}", failure)
        self._kill()
        os._exit(code if code > 0 else 128 - code if code else int(WorkerExit.USER_ERROR))

    def _on_exit(self) -> None:
        """At the end of this process: lets members finish their scripts, unless there was a failure."""
        if os.getpid() != self._owner:  # a child forked by the script
            return
        if self._exits_allowed and not self._attempt.failure_sent and self._all_left.wait(EXIT_TIMEOUT_S):
            return  # TensorFlow's shutdown in each process waits for the others
        self._exits_allowed = True
        self._kill()

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


def _read(link: socket.socket) -> bytes:
    try:
        return link.recv(READ_BYTES)
    except OSError:  # it died with something unread
        return b""


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was terminated by {signal.Signals(-code).name}"
    except ValueError:
        return f"was terminated by signal {-code}"


def _cluster(addresses: list[str], rank: int) -> str:
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


def _free_ports(count: int) -> list[int]:
    """Ports that are free at the moment. If another program takes one before TensorFlow does, the start fails, and the
    next attempt gets others."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            for port in ports_to_try():
                try:
                    sock.bind(("", port))  # TensorFlow's server listens on every address
                except OSError:
                    if port == 0:
                        raise
                    continue
                break
        return [int(sock.getsockname()[1]) for sock in sockets]


_started: LocalProcesses | None = None


def start_local_processes(attempt: Attempt, count: int) -> LocalProcesses:
    """Starts the members, once in a process."""
    global _started
    if _started is None:
        _started = LocalProcesses(attempt, count)
    return _started


def find_local_processes() -> LocalProcesses | None:
    """The members that this process started; None if it trains alone or is a member itself."""
    return _started
