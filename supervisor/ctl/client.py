"""The client of the control API: one HTTP request for each call, over a unix socket or TCP, with JSON in and out."""

import base64
import errno
import http.client
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from supervisor.protocol.plurals import counted

CONNECT_TIMEOUT_S = 10.0  # a working daemon accepts at once; even a full listen queue clears sooner
ANSWER_TIMEOUT_S = 60.0  # for commands that do not wait for work; even a host that swaps heavily answers within it
CONNECT_PAUSE_S = 0.02
DEFAULT_PORT = 80
BLOCK_BYTES = 64 * 1024
_UCRED = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid

SLOW_COMMANDS = frozenset(
    {"start", "stop", "checkpoint", "checkpoints", "export", "update", "add", "shutdown", "reload", "prove_cancel"}
)
"""Commands that answer when the work is done, for which there is no time limit: a flush may take minutes."""


class Refusal(Exception):
    """The daemon refused the command. `code`: the name of the fault."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(Exception):
    """The daemon did not answer; the text says where and why. `missing`: the socket's file does not exist."""

    def __init__(self, text: str, *, missing: bool = False, refused: bool = False) -> None:
        super().__init__(text)
        self.missing = missing
        self.refused = refused


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_TIMEOUT_S)
        self._path = path

    def require_trusted(self) -> None:
        """Raises Unreachable if anybody could have put the socket there, and neither root nor this user did."""
        folder = Path(self._path).parent.stat()
        _, uid, _ = _UCRED.unpack(self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if folder.st_mode & stat.S_IWOTH and uid not in (0, os.geteuid()):
            raise Unreachable(
                f"unix://{self._path} belongs to user {uid}, who is neither root nor you, in a folder where everybody "
                f"may make one: the password is not sent; have supervisord listen in a folder that only it may write to"
            )

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while True:
            try:
                return self.sock.connect(self._path)
            except BlockingIOError:  # the daemon's queue is full; a unix socket doesn't wait for room (connect(2))
                if time.monotonic() > deadline:
                    raise TimeoutError from None
                time.sleep(CONNECT_PAUSE_S)


class LoginNeeded(Unreachable):
    """The server demands a user name and a password, and these are wrong or missing."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one daemon. Each request has a connection of its own, so threads may share a client."""

    url: str
    username: str | None = None
    password: str | None = None

    def call(self, command: str, **arguments: object) -> dict[str, Any]:
        """The result of a command. Raises Refusal or Unreachable."""
        timeout_s = None if command in SLOW_COMMANDS else ANSWER_TIMEOUT_S
        body = json.dumps(arguments, allow_nan=False).encode()
        with self._request("POST", f"/api/v1/{command}", body, timeout_s) as answer:
            return self._result(answer)

    def call_each(self, command: str, names: Sequence[str], **arguments: object) -> Iterator[dict[str, Any]]:
        """Runs a command for many programs; yields `name`, `result`, `error` of each as it ends. Raises as `call`."""
        timeout_s = None if command in SLOW_COMMANDS else ANSWER_TIMEOUT_S
        body = json.dumps({"command": command, "names": list(names), "arguments": arguments}, allow_nan=False).encode()
        with self._request("POST", "/api/v1/each", body, timeout_s) as answer:
            if answer.status != 200:
                self._result(answer)
            count = 0
            for outcome in self._lines(answer):
                yield outcome
                count += 1
            if count < len(names):
                raise Unreachable(
                    f"{self.url} closed the connection after {count} of {counted(len(names), 'program')}; "
                    f"run supervisorctl status to see the others"
                )

    def tail(
        self,
        name: str,
        channel: str,
        count: int,
        *,
        follow: bool = False,
        attempt: int | None = None,
        on_open: Callable[[socket.socket], None] = lambda connection: None,
    ) -> Iterator[bytes]:
        """Yields the last `count` bytes of a log; with `follow`, then what is added, without end; with `attempt` of
        what that attempt printed. Raises as `call`.

        `on_open` is given the connection: whoever shuts it down, from any thread, ends the waiting for more.
        """
        query = {"name": name, "channel": channel, "bytes": str(count)}
        query |= {"follow": "1"} if follow else {}
        query |= {} if attempt is None else {"attempt": str(attempt)}
        timeout_s = None if follow else ANSWER_TIMEOUT_S
        with self._request("GET", f"/api/v1/tail?{urlencode(query)}", None, timeout_s, on_open) as answer:
            if answer.status != 200:
                self._result(answer)
            try:
                while block := answer.read1(BLOCK_BYTES):
                    yield block
            except (http.client.HTTPException, OSError) as error:
                raise self._unreachable(error) from error

    def events(
        self, names: Sequence[str], kinds: Sequence[str], since: str | None, *, follow: bool
    ) -> Iterator[dict[str, Any]]:
        """Yields events as objects; the first has only the cursor at which the stream begins. Raises as `call`."""
        query = {"program": ",".join(names), "kind": ",".join(kinds), "since": since, "follow": None if follow else "0"}
        parameters = urlencode({key: value for key, value in query.items() if value})
        with self._request("GET", f"/api/v1/events?{parameters}", None, None) as answer:
            if answer.status != 200:
                self._result(answer)
            yield {"cursor": answer.headers["Events-Cursor"]}
            yield from self._lines(answer)

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        try:
            while line := answer.readline():
                yield json.loads(line)
        except (http.client.HTTPException, OSError, ValueError) as error:
            raise self._unreachable(error) from error

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float | None,
        on_open: Callable[[socket.socket], None] = lambda connection: None,
    ) -> http.client.HTTPResponse:
        connection = self._connection()
        try:
            connection.connect()
            if self.username is not None and isinstance(connection, _UnixConnection):
                connection.require_trusted()
            connection.sock.settimeout(timeout_s)
            on_open(connection.sock)
            connection.request(method, path, body, self._headers())
            return connection.getresponse()
        except Unreachable:
            connection.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from error

    def _connection(self) -> http.client.HTTPConnection:
        if self.url.startswith("unix://"):
            return _UnixConnection(self.url.removeprefix("unix://"))
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(
            parts.hostname or "localhost", parts.port or DEFAULT_PORT, timeout=CONNECT_TIMEOUT_S
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.username is not None:
            token = base64.b64encode(f"{self.username}:{self.password or ''}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        return headers

    def _result(self, answer: http.client.HTTPResponse) -> dict[str, Any]:
        try:
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        except (ValueError, RecursionError):
            content = None
        result = content.get("result") if isinstance(content, dict) else None
        fault = content.get("error") if isinstance(content, dict) else None
        if answer.status == 200 and isinstance(result, dict):
            return result
        if answer.status == 401:
            remedy = "give user name and password with -u and -p, or in [supervisorctl]"
            wrong = "" if self.password is None else "this login is wrong; "
            raise LoginNeeded(f"Server requires authentication; {wrong}{remedy}")
        if isinstance(fault, dict):
            raise Refusal(str(fault.get("code")), str(fault.get("message")))
        if answer.status >= 500:
            raise Unreachable(
                f"{self.url} failed to answer (HTTP {answer.status}); see its log: supervisorctl maintail -10000"
            )
        raise Unreachable(
            f"{self.url} answers with HTTP {answer.status}, not as stepkeeper's supervisord does; "
            f"is another program, or Supervisor, listening there?"
        )

    def _unreachable(self, error: Exception) -> Unreachable:
        """The exception for a failed connection, in Supervisor's words where it has them."""
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ENOENT:
            return Unreachable(f"{self.url} no such file", missing=True)
        if number == errno.ECONNREFUSED:
            return Unreachable(f"{self.url} refused connection", refused=True)
        if number in (errno.EACCES, errno.EPERM):
            return Unreachable(f"{self.url} permission denied; run supervisorctl as root or as the socket's owner")
        if isinstance(error, TimeoutError):
            return Unreachable(
                f"{self.url} did not answer in time; supervisord may be suspended or the host overloaded"
            )
        if isinstance(error, http.client.IncompleteRead):
            return Unreachable(f"{self.url} closed the connection; supervisord may have exited")
        return Unreachable(f"{self.url} closed the connection: {error or type(error).__name__}")
