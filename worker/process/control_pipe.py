"""The worker's end of the control pipes: a thread that reads orders at once and never makes the training loop wait.

The thread acknowledges orders and keeps flushes for the loop; it saves nothing itself, because a save during a step
would mix the variables of two steps. Progress comes from the loop alone, so it proves that training advances. Only the
thread writes into the pipe, and threads don't survive a fork: a data loader forked from here sends nothing.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from supervisor import __version__
from supervisor.protocol import layout
from supervisor.protocol.wire import codec, lines
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.launch import Control, DaemonIdentity
from supervisor.protocol.wire.messages import (
    PROTOCOL,
    STANDBY,
    Committed,
    Done,
    Export,
    Exported,
    Failed,
    Flush,
    Flushing,
    FromWorker,
    Go,
    Hello,
    Identify,
    Message,
    Mirrored,
    Progress,
    Promote,
    Restored,
    Restoring,
    SaveFailed,
    Then,
)
from worker.process.reporting import encode_within_limit, print_message
from worker.process.requests import PendingRequests, SaveRequest
from worker.process.sent_messages import LastWords, SentMessages

MAX_QUEUED = 1000  # lines kept while the daemon is away; the oldest are dropped first: newer commits matter more
READ_BYTES = 64 * 1024  # what a pipe holds
_OPEN_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # both: the death of one side closes nothing


class WorkerChannel:
    """Both control pipes of this attempt. `send_message` and `send_progress` return at once; a thread does the rest."""

    def __init__(self, control: Control, requests: PendingRequests, daemon: int | None = None) -> None:
        """Opens the pipes; `start` begins to use them. Raises OSError if they can't be opened.

        `daemon`: in a standby, a pidfd of the daemon; until the standby is an attempt, it exits with the daemon.
        """
        self.attempt = control.attempt
        self.on_promoted: Callable[[Promote], None] = lambda message: None
        """Called on the thread when the standby becomes an attempt."""
        self.on_adopted: Callable[[DaemonIdentity], None] = lambda daemon: None
        """Called on the thread when another daemon has taken this process over and says which it is."""
        self._daemon = daemon
        self._promoted = threading.Event()
        self._unserved_orders: list[Go | Flush] = []  # for the process that may be executed in this one's place
        self._requests = requests
        self._incoming = os.open(control.pipes / layout.TO_WORKER, _OPEN_FLAGS)
        self._outgoing = os.open(control.pipes / layout.FROM_WORKER, _OPEN_FLAGS)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outbox: deque[bytes | threading.Event] = deque(maxlen=MAX_QUEUED)  # an event: set when reached
        self._progress_lock = threading.Lock()
        self._unsent_progress: Progress | None = None  # a newer one replaces it
        self._unsent = b""  # the rest of a line that did not fit into the pipe
        self.pipes = control.pipes
        self._sent = SentMessages()
        self._last_words = LastWords(self.pipes)
        self._go: Go | None = None
        self._go_received = threading.Event()
        self._mirrored: dict[str, Mirrored] = {}
        self._mirrored_arrived = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run_thread, name="stepkeeper-control", daemon=True)

    def start(self) -> None:
        """Says hello and starts the thread."""
        self.send_message(self._hello())
        self._thread.start()
        os.register_at_fork(after_in_child=self._disable_in_child)

    def send_message(self, message: FromWorker) -> None:
        """Queues a message that must arrive; it stays in memory while the daemon is away."""
        if self._closed:
            return
        self._record_sent(message)
        if isinstance(message, Done | Failed) and (latest := self._pop_latest_progress()) is not None:
            self._outbox.append(encode_within_limit(latest))  # the daemon expects no progress after these
        self._outbox.append(encode_within_limit(message))
        self._wake_thread()

    def send_progress(self, message: Progress) -> None:
        """Queues progress; if the pipe is full, newer progress replaces it."""
        if self._closed:
            return
        with self._progress_lock:
            unsent = self._unsent_progress
            if unsent is not None and unsent.data_s is not None:  # time waited for data adds up
                message = replace(message, data_s=unsent.data_s + (message.data_s or 0.0))
            self._sent.last_progress = self._unsent_progress = message
        self._wake_thread()

    def show_message(self, text: str) -> None:
        """Prints one line on stderr, which the daemon keeps in the job's log."""
        print_message(text)

    def wait_for_go(self) -> Go:
        """Blocks until the daemon says which checkpoint to restore."""
        while self._go is None:
            self._go_received.wait()
        return self._go

    def wait_for_mirrored(self, checkpoint: str, timeout_s: float) -> Mirrored | None:
        """Blocks until the daemon says whether the checkpoint exists in the mirror, on any thread; None: not yet."""
        with self._mirrored_arrived:
            self._mirrored_arrived.wait_for(lambda: checkpoint in self._mirrored, timeout_s)
            return self._mirrored.pop(checkpoint, None)

    def wait_for_promotion(self) -> None:
        """Blocks until the daemon says which attempt this process is."""
        self._promoted.wait()

    def return_unserved_orders(self) -> None:
        """Ends the thread and puts its orders back into the pipe, for the process executed in this one's place."""
        self._closed = True
        self._wake_thread()
        self._thread.join()
        for message in self._unserved_orders:
            os.write(self._incoming, lines.encode_message(message))

    def drain(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until all messages are in the pipe; whether they are."""
        if self._closed or not self._thread.is_alive():
            return False
        reached = threading.Event()
        self._outbox.append(reached)
        self._wake_thread()
        return reached.wait(timeout)

    def close(self) -> None:
        """Ends the thread and closes the pipes; messages that were not drained are lost."""
        if self._closed:
            return
        self._closed = True
        self._wake_thread()
        self._thread.join()
        for descriptor in (self._incoming, self._outgoing, self._wake):
            os.close(descriptor)

    def _disable_in_child(self) -> None:
        """A forked process is not the worker: it must send nothing."""
        self._closed = True

    def _record_sent(self, message: FromWorker) -> None:
        """Remembers what a daemon that starts later will ask for."""
        self._sent.record(message)
        match message:
            case Committed() | SaveFailed():
                self._requests.mark_answered(message.flushes)
            case Done() | Failed():
                self._last_words.write(message)
            case Restoring() | Restored():
                self._last_words.take_back()

    def _wake_thread(self) -> None:
        os.eventfd_write(self._wake, 1)

    def _hello(self) -> Hello:
        return Hello(self.attempt, PROTOCOL, os.getpid(), __version__, reports_restore=True, restores_memory=True)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        poll = select.poll()
        poll.register(self._incoming, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        if self._daemon is not None:
            poll.register(self._daemon, select.POLLIN)
        decoder = lines.Decoder()
        while not self._closed:
            full = not self._write_queued()
            poll.register(self._outgoing, select.POLLOUT if full else 0)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._incoming in ready:
                for message in decoder.feed(os.read(self._incoming, READ_BYTES)):
                    self._on_message(message)
            if self._daemon is not None and (self._promoted.is_set() or self._daemon in ready):
                self._stop_watching_daemon(poll)

    def _stop_watching_daemon(self, poll: select.poll) -> None:
        """A standby exits with its daemon, as the next daemon would start another one; an attempt trains on without."""
        if not self._promoted.is_set():
            os._exit(int(WorkerExit.STOPPED))
        if self._daemon is not None:
            poll.unregister(self._daemon)
            os.close(self._daemon)
            self._daemon = None

    def _write_queued(self) -> bool:
        """Writes until the queue is empty or the pipe is full; whether the queue is empty."""
        while self._unsent or self._load_next_line():
            try:
                written = os.write(self._outgoing, self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[written:]
        return True

    def _load_next_line(self) -> bool:
        """Chooses the next line to write: messages that must arrive first, then the latest progress."""
        while self._outbox:
            item = self._outbox.popleft()
            if isinstance(item, bytes):
                self._unsent = item
                return True
            item.set()
        if (latest := self._pop_latest_progress()) is not None:
            self._unsent = encode_within_limit(latest)
        return latest is not None

    def _pop_latest_progress(self) -> Progress | None:
        with self._progress_lock:
            latest, self._unsent_progress = self._unsent_progress, None
        return latest

    def _on_message(self, message: Message | codec.ProtocolError) -> None:
        if isinstance(message, codec.ProtocolError):
            self.show_message(f"cannot read a message of the daemon: {message}")
        elif message.attempt == self.attempt:
            self._on_order(message)
        elif self.attempt == STANDBY and isinstance(message, Promote):
            self._on_promote(message)

    def _on_promote(self, message: Promote) -> None:
        self.attempt, self.pipes = message.attempt, Path(message.pipes)
        self._last_words = LastWords(self.pipes)
        self.on_promoted(message)
        self.send_message(self._hello())
        self._promoted.set()

    def _on_order(self, message: Message) -> None:
        match message:
            case Go():
                self._unserved_orders.append(message)
                self._go = self._go or message
                self._go_received.set()
            case Flush():
                if not self._sent.has_restored:
                    self._unserved_orders.append(message)
                self.send_message(Flushing(self.attempt, message.id, self._requests.step))
                deadline_at = None if message.deadline_s is None else time.monotonic() + message.deadline_s
                self._requests.add_save_request(SaveRequest((message.id,), message.then is Then.STOP, deadline_at))
            case Export():
                self._on_export(message)
            case Mirrored():
                with self._mirrored_arrived:
                    self._mirrored[message.checkpoint] = message
                    self._mirrored_arrived.notify_all()
            case Identify():
                if message.daemon_pid is not None and message.daemon_start_time is not None:
                    self.on_adopted(DaemonIdentity(message.daemon_pid, message.daemon_start_time))
                self._on_identify()

    def _on_export(self, message: Export) -> None:
        if self._requests.can_export:
            self._requests.pending_exports.append(message.id)
        else:
            error = "cannot export: this program has no worker.Run, or its run has not begun yet"
            self.send_message(Exported(self.attempt, message.id, self._requests.step, error=error))

    def _on_identify(self) -> None:
        """Sends all that a daemon which has just started needs: the newest message of each kind."""
        self.send_message(self._hello())
        self._outbox.extend(map(encode_within_limit, self._sent.repeated()))
        self.send_message(self._sent.status(self.attempt, self._requests, has_go=self._go is not None))
