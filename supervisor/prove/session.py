"""Runs a job once under a private daemon, from its start to the end of its training."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from supervisor.ctl.client import Client, Refusal, Unreachable
from supervisor.protocol.wire import launch
from supervisor.prove.record import RecordReader
from supervisor.prove.scratch import CannotProve, ProvableJob, RunFolder

POLL_S = 0.1
ANSWER_S = 60.0  # within which a daemon answers that was just started
END_S = 20.0  # within which it ends when it is told so twice
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # before the fork
_ENDED = ("SUCCEEDED", "FAILED", "EXITED", "STOPPED")


def _end_with_parent() -> None:
    """Has the daemon end, and its worker with it, if this process is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Session:
    """One run of a job under a daemon of its own. Nothing of it is left running behind `with`."""

    def __init__(self, job: ProvableJob, folder: RunFolder) -> None:
        self.folder = folder
        self.reader = RecordReader(folder.proof)
        self._job = job
        self._client = Client(f"unix://{folder.socket}")
        self._daemon: subprocess.Popen[bytes] | None = None
        self._worker: int | None = None

    def __enter__(self) -> "Session":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def follow(
        self,
        on_change: Callable[["Session", dict[str, Any]], None],
        deadline_at: float | None,
        poll_s: float = POLL_S,
    ) -> dict[str, Any]:
        """Waits until training has ended; gives the job's last status. `on_change`: called now and then.

        Raises CannotProve if the daemon ends, or if it takes until `deadline_at` (monotonic).
        """
        while True:
            status = self._status()
            self.reader.read()
            on_change(self, status)
            is_due = status["state"] == "STOPPED" and status["started_wall_at"] is None  # it is about to be started
            if status["state"] in _ENDED and not is_due:
                return status
            if deadline_at is not None and time.monotonic() > deadline_at:
                raise CannotProve(
                    f"training did not end in time; the job was {status['state']}: {status['description']}"
                )
            time.sleep(poll_s)

    def history(self) -> list[dict[str, Any]]:
        """The attempts, the newest first."""
        return list(self._client.call("history", name=self._job.section, limit=1000)["attempts"])

    def _start(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in (launch.VARIABLE, launch.PROOF)}
        command = [sys.executable, "-P", "-m", "supervisor.daemon", "-n", "-s", "-c", str(self.folder.configuration)]
        with (self.folder.path / "daemon.err").open("wb") as errors:
            self._daemon = subprocess.Popen(
                command, cwd=self.folder.path, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
                start_new_session=True,  # Ctrl-C is for this process, which ends the daemon
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - this program has one thread
            )  # fmt: skip
        deadline_at = time.monotonic() + ANSWER_S
        while True:
            try:
                self._client.call("pid")
                return
            except Unreachable as error:
                if self._daemon.poll() is not None or time.monotonic() > deadline_at:
                    raise CannotProve(f"the private supervisord does not run: {self._last_error() or error}") from None
            time.sleep(POLL_S / 5)

    def _status(self) -> dict[str, Any]:
        try:
            programs: list[dict[str, Any]] = self._client.call("status")["programs"]
        except (Unreachable, Refusal) as error:
            raise CannotProve(f"the private supervisord has gone: {self._last_error() or error}") from None
        self._worker = programs[0]["pid"]
        return programs[0]

    def _last_error(self) -> str:
        lines = (self.folder.path / "daemon.err").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _stop(self) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        until = time.monotonic() + END_S
        while daemon.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                # the second signal means: without waiting for checkpoints
                daemon.send_signal(signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(1.0)
        if daemon.returncode == -signal.SIGKILL and self._worker is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._worker, signal.SIGKILL)  # a job is a process group of its own
