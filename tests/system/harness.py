"""A real daemon in a folder of its own, driven over its control socket."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import forked, forking
from tests.places import CHILDREN
from tests.reading import records
from tests.waiting import wait_until

TRAINER = CHILDREN / "trainer.py"
PATIENCE_S = 60.0  # for what takes well under a second; the machine may be busy


class Refused(Exception):
    """The daemon answered with an error; `code` is its name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Daemon:
    """`supervisord -n` with a configuration; leaves nothing running behind.

    It runs in a fork of a process that has imported the daemon's modules, unless a test is about what an interpreter
    does and needs from its start on (`is_forked`). The Python scripts that it starts are forks too, which have these
    modules and `scripts_have` from the start; with None they are interpreters.
    """

    def __init__(
        self,
        folder: Path,
        programs: str,
        settings: str = "",
        environment: dict[str, str] | None = None,
        is_forked: bool = True,
        scripts_have: tuple[str, ...] | None = (),
    ) -> None:
        self.folder = folder
        self.conf = folder / "test.conf"
        self.socket = folder / "s.sock"
        self.settings = settings
        self.environment = {**os.environ, **(environment or {})}
        self.is_forked = is_forked
        self.scripts_have = scripts_have
        self.headers: dict[str, str] = {}  # of every request
        self.process: subprocess.Popen[str] | None = None
        self.write(programs)

    def write(self, programs: str) -> None:
        settings = self.settings if "notices=" in self.settings else f"notices=off\n{self.settings}"
        self.conf.write_text(
            f"[supervisord]\nstate_dir={self.folder}/state\nlogfile={self.folder}/daemon.log\n{settings}\n"
            f"[unix_http_server]\nfile={self.socket}\n[supervisorctl]\nserverurl=unix://{self.socket}\n{programs}"
        )

    def __enter__(self) -> "Daemon":
        try:
            return self.start()
        except AssertionError:
            if self.process is not None:
                self.process.terminate()  # or it would work beside all tests that follow
                self.process.wait(PATIENCE_S)
            raise

    def __exit__(self, *args: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self._require_no_breach()
        lines = (self.folder / "daemon.err").read_text(errors="replace").splitlines()
        own = (line for line in lines if '"traceback": ' not in line)  # a record of a worker's has that
        if any("Traceback (most recent call last)" in line for line in own):
            raise AssertionError(f"the daemon met an error of its own:\n{self.errors()}")

    def _require_no_breach(self) -> None:
        """What has to hold at every event held; a daemon that notices otherwise only logs it."""
        log = self.folder / "daemon.log"  # in whatever format the test asked for
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        if (broken := next((line for line in lines if "invariant.broken" in line), None)) is not None:
            raise AssertionError(f"the daemon broke an invariant: {broken}")

    def start(self, patience_s: float = PATIENCE_S) -> "Daemon":
        self.launch()
        self.until(self._answers, "the daemon answers", patience_s)
        return self

    def launch(self) -> None:
        """Starts it and waits for nothing."""
        command = [sys.executable, "-m", "supervisor.daemon", "-n", "-c", str(self.conf)]
        with (self.folder / "daemon.err").open("ab") as errors:
            options = {"cwd": self.folder, "env": self.environment, "stdout": errors, "stderr": errors}
            if not self.is_forked:
                self.process = subprocess.Popen(command, text=True, **options)
            elif self.scripts_have is None:
                self.process = forked.ForkedProcess(command, forked.DAEMON, **options)
            else:
                self.process = forking.start_daemon(command, self.scripts_have, **options)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon exited with {self.process.returncode}:\n{self.errors()}")
        try:
            return bool(self.call("pid")["pid"] == self.process.pid)
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signals the daemon and gives its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def die(self) -> None:
        """Kills the daemon, once its ledger has all that happened so far: a disk may be slow."""
        for program in self.call("status")["programs"][:1]:
            self.call("history", name=program["name"])  # waits for all writes before it, whichever program's
        assert self.stop(signal.SIGKILL) == -signal.SIGKILL

    def call(self, command: str, **arguments: object) -> dict[str, Any]:
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.sock.connect(str(self.socket))
            connection.request("POST", f"/api/v1/{command}", json.dumps(arguments), self.headers)
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        return dict(answer["result"])

    def tail(self, name: str, *, attempt: int) -> bytes:
        """What an attempt printed to its standard output."""
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.sock.connect(str(self.socket))
            connection.request("GET", f"/api/v1/tail?name={name}&attempt={attempt}&bytes=1000000")
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            error = json.loads(answer)["error"]
            raise Refused(error["code"], error["message"])
        return answer

    def follow_and_leave(self, name: str) -> None:
        """Follows a log, as `tail -f`, and closes the connection once the answer has begun."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self.socket))
            connection.sendall(f"GET /api/v1/tail?name={name}&follow=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            connection.recv(100)

    def status(self, name: str) -> dict[str, Any]:
        return next(program for program in self.call("status")["programs"] if program["name"] == name)

    def until(self, look: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        return wait_until(look, what, patience_s, self.errors)

    def until_state(self, name: str, *states: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.status(name)
            return found if found["state"] in states else None

        found: dict[str, Any] = self.until(look, f"{name} is {' or '.join(states)}", patience_s)
        return found

    def until_step(self, name: str, step: int, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found = self.status(name)
            return found if (found["job"]["step"] or 0) >= step and found["pid"] else None

        found: dict[str, Any] = self.until(look, f"{name} reaches step {step}", patience_s)
        return found

    def events(self, *names: str) -> list[str]:
        """Which of these happened, in order, by the daemon's log."""
        return [record["event"] for record in records(self.folder / "daemon.log") if record["event"] in names]

    def errors(self) -> str:
        return (self.folder / "daemon.err").read_text(errors="replace")[-4000:]

    def descriptors(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def job(name: str, folder: Path, keys: str = "", **environment: object) -> str:
    """A section for the trainer. It has no standby unless `keys` asks for one."""
    keys = keys if "standby=" in keys else f"{keys}\nstandby=off"
    variables = ",".join(f'{key}="{value}"' for key, value in environment.items())
    return (
        f"[program:{name}]\ncommand={sys.executable} {TRAINER}\ncheckpoint_dir={folder}/{name}\n"
        f"environment={variables}\n{keys}\n"
    )


def tell_to_fail(checkpoint_dir: Path, how: str) -> None:
    """Has a job with `FAIL=told` end in a way of the trainer's `fail_as_told`, which reads it whole."""
    written = checkpoint_dir.parent / "how"
    written.write_text(how)
    written.rename(checkpoint_dir / "fail")


def let_others_in(folder: Path) -> None:
    """Other users may pass the folders that pytest made for this one's eyes only, on the way to it too."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o755)
