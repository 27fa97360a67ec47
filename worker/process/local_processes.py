"""The processes of this host that train together with the job's own: started by it, and ending with it.

The first process (the chief) starts the others by running its own command line once more. A socket joins it with each:
whoever is left alone sees the other end close and ends at once, so that nobody waits in a collective for the dead.
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

from supervisor.protocol import codec, launch
from supervisor.protocol.exit_codes import WorkerExit
from supervisor.protocol.launch import Launch, Member
from supervisor.protocol.messages import Failed, FromWorker, Progress
from worker.process import attempt, truncation
from worker.process.user_messages import print_message

LEAVE_TIMEOUT_S = 10.0  # for a member to end once training is over; what it still does then is the script's own affair
REAP_TIMEOUT_S = 5.0  # its socket closes a moment before the process is gone
READ_BYTES = 64 * 1024  # a message is at most this long

CAUSE_S = 2.0  # a member is seen to be gone at once; this is for a busy host

CLUSTER = "TF_CONFIG"


class MemberReporter:
    """Whom a member tells what happens to it: the chief hears of its failure, a person reads the rest on stderr."""

    def __init__(self, member: Member) -> None:
        """Ends this process as soon as the chief has ended."""
        self._rank = member.rank
        self._link = socket.socket(fileno=member.link)
        os.set_inheritable(member.link, False)
        atexit.register(self._on_exit)
        threading.Thread(target=self._exit_with_chief, name="stepkeeper-member", daemon=True).start()

    def send_message(self, message: FromWorker) -> None:
        """The chief says everything but a failure here itself."""
        if isinstance(message, Failed):
            with contextlib.suppress(OSError):
                self._link.sendall(truncation.encode_within_limit(message))

    def send_progress(self, message: Progress) -> None:
        """The chief's."""

    def show_message(self, text: str) -> None:
        """One line on stderr."""
        print_message(f"worker {self._rank}: {text}")

    def drain(self, timeout: float) -> bool:
        """Nothing waits."""
        return True

    def _on_exit(self) -> None:
        """The script is over. What is left is TensorFlow's shutdown, which waits for the chief's."""
        if not attempt.current_attempt().failure_sent:
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)

    def _exit_with_chief(self) -> NoReturn:
        with contextlib.suppress(OSError):
            while self._link.recv(READ_BYTES):
                pass
        os._exit(int(WorkerExit.STOPPED))  # no clean-up: it could wait for the chief


class LocalProcesses:
    """The chief's view of them. The first that ends before its time ends this process, with the same words and code."""

    def __init__(self, count: int) -> None:
        """Starts `count` - 1 processes. Raises OSError if one can't be started; then none is left."""
        self.count = count
        self._exits_allowed = False
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
        """Training begins: from now on all die with the first of them that does."""
        self._exits_allowed = False

    def allow_exits(self) -> None:
        """Training is over for all of them: from now on it is no failure if one ends."""
        self._exits_allowed = True

    def wait_for_member_failure(self) -> None:
        """Call it when a step failed here: if that is because a member died, its words are the ones that count."""
        time.sleep(CAUSE_S)  # the watching thread ends this process meanwhile

    def _start(self, rank: int, addresses: list[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            told = attempt.current_attempt().launch
            member = Launch(
                job=told.job, checkpoint_dir=told.checkpoint_dir, strategy=told.strategy, workers=told.workers,
                deterministic=told.deterministic, strict=told.strict, on_nan=told.on_nan, loss_spike=told.loss_spike,
                microbatches=told.microbatches, checkpoint_interval=told.checkpoint_interval,
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
        decoders = {rank: codec.Decoder() for rank in self._links.values()}
        poll = select.poll()
        links = {link.fileno(): (link, rank) for link, rank in self._links.items()}
        for descriptor in links:
            poll.register(descriptor, select.POLLIN)
        while links:
            for descriptor, _ in poll.poll():
                link, rank = links[descriptor]
                content = _read(link)
                words = next((each for each in decoders[rank].feed(content) if isinstance(each, Failed)), None)
                if words is not None or not content:
                    poll.unregister(descriptor)
                    del links[descriptor]
                    self._on_member_exit(rank, words)
        self._all_left.set()

    def _on_member_exit(self, rank: int, words: Failed | None) -> None:
        if self._exits_allowed:
            return
        process = self._processes[rank]
        try:
            code = process.wait(REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it said that it failed, or let go of us, and lives
            code = int(WorkerExit.USER_ERROR)
        self._exits_allowed = True
        attempt.current_attempt().report_member_failure(f"worker {rank} of {self.count} {_describe_exit(code)}", words)
        self._kill()
        os._exit(code if code > 0 else 128 - code if code else int(WorkerExit.USER_ERROR))

    def _on_exit(self) -> None:
        """At the end of this process. A member may still be at the end of its script; after a failure none may."""
        if os.getpid() != self._owner:  # a child forked by the script
            return
        if self._exits_allowed and not attempt.current_attempt().failure_sent and self._all_left.wait(LEAVE_TIMEOUT_S):
            return  # TensorFlow's shutdown, here and there, waits for each other
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
    """Ports that nobody has at the moment. Another program may take one before TensorFlow does: then the start fails,
    and the next one takes others."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))  # TensorFlow's server listens on every address
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


_started: LocalProcesses | None = None


def start_local_processes(count: int) -> LocalProcesses:
    """Starts the others, once in a process."""
    global _started
    if _started is None:
        _started = LocalProcesses(count)
    return _started


def find_local_processes() -> LocalProcesses | None:
    """Those that this process started; None: it is alone, or a member itself."""
    return _started
