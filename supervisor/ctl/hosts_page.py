"""A page of several hosts in the user's own browser: `supervisorctl --hosts FILE page`.

Nothing stands in the middle of the hosts. This process asks each daemon as `status` does, with the user's login, and
shows the answers at an address of this host alone. Whoever asks must know a secret that stands in the address after the
`#`, which browsers send to nobody. Nothing can be changed here: each program is a link to the page of its own daemon.
"""

import hmac
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from supervisor.ctl.client import Refusal, Unreachable
from supervisor.ctl.hosts import ANSWERS_WITHIN_S, Host
from supervisor.static import SAFETY, StaticFile, read_files

INDEX = "hosts.html"
STATUS = "/hosts.json"
ASK_EVERY_S = 2.0
SHOWN_FOR_S = 10.0  # after a page's last question nobody looks any more, and no host is asked
PAGE_WAITS_S = 60.0  # for a browser that sends half a request

Ask = Callable[[Host], dict[str, Any]]
"""Gives a daemon's `status`. Raises Refusal or Unreachable."""


@dataclass(slots=True)
class Known:
    """What is known of a host. `answer`: JSON for the page; None before the first one. `asked_at`: monotonic seconds
    since when it owes an answer; None: it owes none.
    """

    answer: bytes | None = None
    asked_at: float | None = None

    def for_page(self, host: Host, now: float) -> bytes:
        """As JSON: either `error` or `programs`; neither before the first answer."""
        if self.asked_at is not None and now > self.asked_at + ANSWERS_WITHIN_S:
            return _for_page(host, error=f"no answer within {ANSWERS_WITHIN_S:g} s")
        return self.answer or _for_page(host)


def _for_page(
    host: Host, *, error: str | None = None, trouble: str | None = None, programs: list[Any] | None = None
) -> bytes:
    url = host.url.rstrip("/") if host.url.startswith("http") else None
    shown = {"name": host.name, "url": url, "error": error, "trouble": trouble, "programs": programs}
    return json.dumps(shown, allow_nan=False).encode()


def _read(host: Host, status: Mapping[str, Any]) -> bytes:
    """What the page shows of an answer. Raises ValueError for one that would hide those of other hosts."""
    programs = status.get("programs")
    if not isinstance(programs, list) or not all(map(_is_program, programs)):
        raise ValueError("it names no programs")
    troubles = [status.get("ledger_error"), status.get("hooks_error")]
    return _for_page(host, trouble="; ".join(str(text) for text in troubles if text) or None, programs=programs)


def _is_program(program: object) -> bool:
    """Whether it has what every row needs."""
    return (
        isinstance(program, dict)
        and isinstance(program.get("name"), str)
        and isinstance(program.get("wire_state"), str)
        and isinstance(program.get("job"), dict | None)
    )


class Watch:
    """Asks all hosts again and again while a page looks; each has a thread, so that one that hangs delays no other."""

    def __init__(self, hosts: Sequence[Host], ask: Ask, every_s: float = ASK_EVERY_S) -> None:
        self._ask = ask
        self._every_s = every_s
        self._known = {host: Known() for host in hosts}
        self._looked = threading.Condition()
        self._looked_at = -SHOWN_FOR_S
        for host, known in self._known.items():
            threading.Thread(target=self._follow, args=(host, known), daemon=True).start()

    def look(self) -> bytes:
        """What is known of all hosts, in their order, as JSON."""
        now = time.monotonic()
        with self._looked:
            self._looked_at = now
            self._looked.notify_all()
        hosts = b",".join(known.for_page(host, now) for host, known in self._known.items())
        return b'{"at":%f,"hosts":[%s]}' % (time.time(), hosts)

    def _is_looked_at(self) -> bool:
        return time.monotonic() < self._looked_at + SHOWN_FOR_S

    def _follow(self, host: Host, known: Known) -> None:
        while True:
            with self._looked:
                self._looked.wait_for(self._is_looked_at)
            known.asked_at = time.monotonic()
            try:
                known.answer = _read(host, self._ask(host))
            except (Refusal, Unreachable) as error:
                known.answer = _for_page(host, error=str(error))
            except Exception as error:  # noqa: BLE001 - what is no daemon, or one of another version, is named as such
                known.answer = _for_page(host, error=f"the answer can't be understood: {error!r:.200}")
            known.asked_at = None
            time.sleep(self._every_s)


class HostsPage(ThreadingHTTPServer):
    """Serves the page at a port of this host; 0: any that is free. Raises OSError."""

    daemon_threads = True

    def __init__(self, watch: Watch, port: int = 0) -> None:
        self.secret = secrets.token_urlsafe(24)
        self.watch = watch
        self.files = read_files()
        super().__init__(("127.0.0.1", port), _Request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """For the browser, with the secret."""
        return f"http://127.0.0.1:{self.server_address[1]}/#{self.secret}"


class _Request(BaseHTTPRequestHandler):
    server: HostsPage
    timeout = PAGE_WAITS_S
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers one request."""
        if self.path == STATUS:
            authorization = self.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(authorization, f"Bearer {self.server.secret}".encode()):
                return self._answer(HTTPStatus.FORBIDDEN, StaticFile(b"", "text/plain"))
            return self._answer(HTTPStatus.OK, StaticFile(self.server.watch.look(), "application/json"))
        name = INDEX if self.path == "/" else self.path.removeprefix("/page/")
        file = self.server.files.get(name)
        return self._answer(HTTPStatus.OK if file else HTTPStatus.NOT_FOUND, file or StaticFile(b"", "text/plain"))

    def _answer(self, status: HTTPStatus, file: StaticFile) -> None:
        self.send_response(status)
        for name, value in {**SAFETY, "Content-Type": file.type, "Content-Length": str(len(file.content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(file.content)

    def log_message(self, format: str, *arguments: object) -> None:
        """The terminal is for people."""
