"""The same INI file under PyPI's Supervisor and stepkeeper, driven by Supervisor's client, ours and xmlrpc.client."""

import contextlib
import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import xmlrpc.client
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import forked
from tests.waiting import TIMEOUT_S, wait_until

PATIENCE_S = 60.0
CTL_S = 60.0
WAKE_S = 0.05

SETTINGS = """[supervisord]
logfile=%(here)s/daemon.log
pidfile=%(here)s/daemon.pid
childlogdir=%(here)s
nodaemon=true
[unix_http_server]
file=%(here)s/s.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://%(here)s/s.sock
"""

PEER_ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"LC_ALL": "C.UTF-8"}
"""Our package is called as Supervisor's: the peer must not find ours."""

LOGIN = ("ann", "let: me in")
INET = f"[inet_http_server]\nport=127.0.0.1:{{}}\nusername={LOGIN[0]}\npassword={LOGIN[1]}\n"

AS_COMPLETED = frozenset({"start", "stop", "restart", "clear", "signal"})
"""Actions whose lines come in the order in which programs are done."""

Outcome = Any
Script = Callable[["Side"], None]


class UnixTransport(xmlrpc.client.Transport):
    """xmlrpc.client over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=CTL_S)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(CTL_S)
        connection.sock.connect(str(self._path))
        return connection


class Side:
    """A daemon and a client in a folder of their own; `outcomes` is what each step of a script gave, masked.

    With a `port` the daemon listens there too, for who has the LOGIN.
    """

    def __init__(
        self, folder: Path, daemon: tuple[str, ...], ctl: tuple[str, ...], programs: str, port: int | None = None
    ) -> None:
        self.folder = folder
        self.port = port
        self.outcomes: dict[str, Outcome] = {}
        self._daemon = daemon
        self._ctl = ctl
        self._process: subprocess.Popen[str] | None = None
        self._is_over = threading.Event()
        folder.mkdir()
        (folder / "plain.txt").write_text("no program\n")
        self.write(programs)

    def write(self, programs: str) -> None:
        inet = "" if self.port is None else INET.format(self.port)
        (self.folder / "test.conf").write_text(SETTINGS + inet + programs)

    @property
    def url(self) -> str:
        """Where the daemon listens besides its socket."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_ours(self) -> bool:
        """Whether it is stepkeeper."""
        return self._daemon == our_daemon()

    def __enter__(self) -> "Side":
        command, modules = in_a_fork([*self._daemon, "-c", "test.conf"])
        environment = self._environment_of(self._daemon)
        with (self.folder / "daemon.err").open("wb") as errors:
            self._process = forked.ForkedProcess(
                command, modules, cwd=self.folder, env=environment, stdout=errors, stderr=errors
            )
        if not self.is_ours:
            threading.Thread(target=self._keep_awake, daemon=True).start()
        try:
            self.until(self.answers, "the daemon answers")
        except AssertionError:
            self._process.kill()
            raise
        return self

    def _keep_awake(self) -> None:
        """Connects again and again: how far starts, stops and clearings have come, of one program after the other,
        Supervisor looks whenever something happens, and otherwise once a second."""
        while not self._is_over.wait(WAKE_S):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.folder / "s.sock"))

    def __exit__(self, *args: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        self._is_over.set()
        said = (self.folder / "daemon.err").read_text(errors="replace")
        assert not (self.is_ours and "Traceback" in said), said

    @staticmethod
    def _environment_of(command: tuple[str, ...]) -> Mapping[str, str]:
        return os.environ if command in (our_daemon(), our_ctl()) else PEER_ENVIRONMENT

    # --- steps --------------------------------------------------------------------------------------------------------

    def ctl(self, *arguments: str, typed: str | None = None) -> None:
        """A step: the client; its exit status and output. `typed`: to its shell."""
        command, modules = in_a_fork([*self._ctl, "-c", "test.conf", *arguments])
        done = forked.run(
            command,
            modules,
            cwd=self.folder,
            env=self._environment_of(self._ctl),
            input=typed or "",
            encoding="utf-8",
            timeout=CTL_S,
            start_new_session=True,  # no terminal to ask for a password
        )
        lines = self.masked(done.stdout).splitlines()
        if AS_COMPLETED.intersection(arguments):
            lines.sort()  # they come in order of completion
        self._note("ctl " + " ".join(arguments), [done.returncode, *lines])

    def follow(self, *arguments: str, until: str, typed: str = "") -> None:
        """A step: the client shows a stream until it holds a text, then is interrupted; what it showed.

        It is given what is `typed`, and no end of that.
        """
        command, modules = in_a_fork([*self._ctl, "-c", "test.conf", *arguments])
        environment, pipe = self._environment_of(self._ctl), subprocess.PIPE
        with forked.ForkedProcess(
            command, modules, cwd=self.folder, env=environment, stdin=pipe, stdout=pipe, encoding="utf-8"
        ) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(typed)
            client.stdin.flush()
            hurry = threading.Timer(PATIENCE_S, client.kill)  # neither the reading nor the end may take for ever
            hurry.start()
            shown: list[str] = []
            while not shown or until not in shown[-1]:
                shown.append(client.stdout.readline())
                assert shown[-1], f"the stream ended before {until}: {shown}"
            client.send_signal(signal.SIGINT)
            status = client.wait(TIMEOUT_S)
            hurry.cancel()
        self._note("ctl " + " ".join(arguments), [status, *(self.masked(line).rstrip("\n") for line in shown)])

    def rpc(self, method: str, *arguments: object) -> None:
        """A step: a call with xmlrpc.client; its result or the name of its fault."""
        self._note(f"rpc {method} {json.dumps(arguments)}", self._masked_value(self._outcome(method, arguments)))

    def rpc_with(self, login: str, method: str, *arguments: object) -> None:
        """A step: the same over TCP with a login, USER:PASSWORD quoted as in a URL."""
        with xmlrpc.client.ServerProxy(f"http://{login}@127.0.0.1:{self.port}/RPC2") as proxy:
            try:
                outcome: Outcome = proxy.__getattr__(method)(*arguments)
            except xmlrpc.client.ProtocolError as error:
                outcome = f"HTTP {error.errcode} {error.errmsg}"
        self._note(f"rpc {method} with {login}", self._masked_value(outcome))

    def get(self, path: str, authorization: str | None = None) -> None:
        """A step: a request over TCP, as somebody's own client may send; status and what clients look at."""
        headers = {} if authorization is None else {"Authorization": authorization}
        connection = http.client.HTTPConnection("127.0.0.1", self.port or 0, timeout=CTL_S)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        names = ("WWW-Authenticate", "Connection") if answer.status == 401 else ("Content-Type",)
        outcome = [answer.status, answer.reason, *(answer.getheader(name) for name in names)]
        self._note(f"get {path} {authorization}", outcome)
        connection.close()

    def until_state(self, name: str, state: str) -> None:
        """Waits for a state; no step."""

        def look() -> bool:
            return bool(self.call("supervisor.getProcessInfo", name)["statename"] == state)

        self.until(look, f"{name} is {state}")

    def until_log(self, name: str, text: str) -> None:
        """Waits until a program's standard output was captured; no step."""
        self.until(
            lambda: text in self.call("supervisor.readProcessStdoutLog", name, 0, 0), f"{name} has printed {text}"
        )

    def until_gone(self) -> None:
        """Waits for the daemon's end; no step."""
        assert self._process is not None
        self._process.wait(PATIENCE_S)

    # --- underneath ---------------------------------------------------------------------------------------------------

    def call(self, method: str, *arguments: object) -> Any:
        with xmlrpc.client.ServerProxy("http://localhost/RPC2", UnixTransport(self.folder / "s.sock")) as proxy:
            return proxy.__getattr__(method)(*arguments)

    def answers(self) -> bool:
        try:
            return bool(self.call("supervisor.getPID"))
        except (OSError, xmlrpc.client.Error):
            return False

    def serves(self, method: str) -> bool:
        """Whether a method gives a result, not a fault."""
        try:
            self.call(method)
        except xmlrpc.client.Fault:
            return False
        return True

    def until(self, look: Callable[[], object], what: str) -> None:
        wait_until(look, f"{what} ({self.folder.name})", PATIENCE_S)

    def _outcome(self, method: str, arguments: tuple[object, ...]) -> Outcome:
        try:
            return self.call(method, *arguments)
        except xmlrpc.client.Fault as fault:
            return f"Fault {fault.faultCode} {fault.faultString.partition(':')[0]}"
        except xmlrpc.client.ProtocolError as error:
            return f"HTTP {error.errcode}"

    def _note(self, step: str, outcome: Outcome) -> None:
        step = self.masked(step)
        while step in self.outcomes:
            step += " again"
        self.outcomes[step] = outcome

    def _masked_value(self, value: Outcome, key: str = "") -> Outcome:
        if isinstance(value, dict):
            if "faultCode" in value:
                return f"Fault {value['faultCode']} {value['faultString'].partition(':')[0]}"
            if "status" in value:  # the text of a result's fault, as of any fault, may say more than its name
                value = {**value, "description": value["description"].partition(":")[0]}
            return {name: self._masked_value(each, name) for name, each in value.items()}
        if isinstance(value, list):
            if value and all(isinstance(each, dict) and "status" in each for each in value):
                value = sorted(value, key=lambda result: result["name"])  # they come in order of completion
            return [self._masked_value(each) for each in value]
        if key in ("pid", "start", "stop", "now"):
            return "some" if value else 0
        if key == "command":
            return shlex.split(self.masked(value))
        return self.masked(value) if isinstance(value, str) else value

    def masked(self, text: str) -> str:
        """The text without what differs between any two runs, pids, times, where things are; how AUTO calls logs."""
        text = text.replace(str(self.folder), "DIR")
        text = text.replace(f":{self.port}", ":PORT")
        text = re.sub(r"(\w+\.)?(\w+)-(stdout|stderr)(---supervisor-\w+)?\.log", r"\2-\3.log", text)
        text = re.sub(r"\bpid \d+, uptime \d+:\d\d:\d\d", "pid N, uptime T", text)
        text = re.sub(r"\b[A-Z][a-z][a-z] \d\d \d\d:\d\d [AP]M", "DATE", text)
        text = re.sub(r"\bfile: \S+ line: \d+", "file: F line: N", text)
        return re.sub(r"^[1-9]\d*$", "N", text, flags=re.MULTILINE)


def play(script: Script, *sides: Side) -> None:
    """Runs the script on all sides at the same time: they mostly wait."""

    def begin(side: Side) -> None:
        with side:
            script(side)

    with ThreadPoolExecutor(len(sides)) as at_once:
        for done in [at_once.submit(begin, side) for side in sides]:
            done.result()


def differing(where: str, stock: Outcome, ours: Outcome) -> list[tuple[str, Outcome, Outcome]]:
    """The smallest parts that differ: the key of the struct they stand in, or `where`; what either daemon gave."""
    if stock == ours:
        return []
    if isinstance(stock, dict) and isinstance(ours, dict) and stock.keys() == ours.keys():
        return [each for key in stock for each in differing(key, stock[key], ours[key])]
    if isinstance(stock, list) and isinstance(ours, list) and len(stock) == len(ours):
        return [each for pair in zip(stock, ours, strict=True) for each in differing(where, *pair)]
    return [(where, stock, ours)]


def in_a_fork(command: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """A command of either side for `tests.forked`, with what it imports: a script has several dozen clients a side."""
    if command[0] == sys.executable:
        return command, forked.DAEMON if "supervisor.daemon" in command else forked.CTL
    return [str(Path(command[0]).with_name("python")), *command], forked.STOCK


def stock_daemon(folder: Path) -> tuple[str, ...]:
    """The command of Supervisor's daemon, from its environment."""
    return (str(folder / "supervisord"), "-n")


def our_ctl() -> tuple[str, ...]:
    """The command of our client."""
    return (sys.executable, "-m", "supervisor.ctl.main")


def our_daemon() -> tuple[str, ...]:
    """The command of our daemon."""
    return (sys.executable, "-m", "supervisor.daemon", "-n")
