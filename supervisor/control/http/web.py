"""HTTP for those who answer: requests, responses, and routes; connections.py turns them from and into bytes."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from socket import socket
from urllib.parse import parse_qsl, unquote, urlsplit

from supervisor.control.base.json_types import to_json

JSON = "application/json; charset=utf-8"
LATEST_AT = 253_402_300_799.0  # the last second of 9999; the owner of a file may give it any time


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request. `headers`: names in lower case; of several with the same name the first, as in `query`.

    `connection`: where it came from; `remote`: the client's address on the network, None on a unix socket.
    `parameters`: the parts of the path that match names in braces in the route's pattern. `body`: empty until the
    client has been admitted.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    connection: socket
    remote: str | None
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """The response to a client. `body`: bytes, or pieces as they come until the client disconnects.

    `reason`: words beside the status, instead of HTTP's own.
    """

    body: bytes | AsyncGenerator[bytes, None] = b""
    status: int = HTTPStatus.OK
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None


class RequestRefused(Exception):
    """A request that is refused with a plain HTTP status."""

    def __init__(self, status: HTTPStatus, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status.phrase)
        self.status = status
        self.headers = headers or {}


Handler = Callable[[Request], Awaitable[Response]]
"""Answers requests. May raise Refused."""


def json_response(content: object, status: int = HTTPStatus.OK) -> Response:
    """An answer of JSON."""
    return Response(to_json(content), status)


def error_response(status: int, code: str, message: str) -> Response:
    """An error as JSON, in the form that all errors have."""
    return json_response({"error": {"code": code, "message": message}}, status)


def http_date(at: float) -> str:
    """A time, in seconds since 1970, as headers have it (RFC 9110, 5.6.7), from then until LATEST_AT."""
    at = min(max(at, 0.0), LATEST_AT)
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))  # English: the daemon never sets LC_TIME


def request_of(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], connection: socket, remote: str | None
) -> Request:
    """The request with this head; names of `headers` are in lower case.

    Raises ValueError if its target is no URL, or if it gives its length in two ways (request smuggling; RFC 9112, 6.1).
    """
    text = target.decode("ascii")
    fields = _firsts((name.decode("ascii"), value.decode("latin-1")) for name, value in headers)
    if "transfer-encoding" in fields and "content-length" in fields:
        raise ValueError("it has both Transfer-Encoding and Content-Length")
    if not text.startswith("/"):  # as for a proxy: scheme and host come first
        parts = urlsplit(text)
        if parts.scheme and (not parts.hostname or "@" in parts.netloc):
            raise ValueError("its target names no host")
        if parts.netloc:
            fields["host"] = parts.netloc  # which counts instead of the header (RFC 9112, 3.2.2)
        text = f"{parts.path}?{parts.query}"
    path, _, query = text.partition("?")
    return Request(
        method.decode("ascii"),
        path,
        _firsts(parse_qsl(query, keep_blank_values=True)),
        fields,
        connection,
        remote,
    )


def _firsts(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    firsts: dict[str, str] = {}
    for name, value in pairs:
        firsts.setdefault(name, value)
    return firsts


class Routes:
    """Which handler answers a request. A pattern is a path with `{name}` for any one segment, or `*` at its end for any
    rest. A route for GET answers HEAD too.
    """

    def __init__(self) -> None:
        self._known: list[tuple[str | None, str, Handler]] = []

    def add(self, method: str | None, pattern: str, handler: Handler) -> None:
        """`method`: None for any. Routes are tried in the order in which they were added."""
        self._known.append((method, pattern, handler))

    async def dispatch(self, asked: Request) -> Response:
        """The handler's response. Raises RequestRefused with 404 or 405 if no route matches."""
        others = set[str]()
        for method, pattern, handler in self._known:
            parameters = _matched(pattern, asked.path)
            if parameters is None:
                continue
            if method in (None, asked.method) or (method, asked.method) == ("GET", "HEAD"):
                return await handler(replace(asked, parameters=parameters))
            others.add(str(method))
        if others:
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": ", ".join(sorted(others))})
        raise RequestRefused(HTTPStatus.NOT_FOUND)


def _matched(pattern: str, path: str) -> dict[str, str] | None:
    """The segments of the path for the names in the pattern; None if the path does not match."""
    if pattern.endswith("*"):
        return {} if path.startswith(pattern[:-1]) else None
    parts, segments = pattern.split("/"), path.split("/")
    if len(parts) != len(segments):
        return None
    parameters = {}
    for part, segment in zip(parts, map(unquote, segments), strict=True):
        if part.startswith("{") and segment:
            parameters[part[1:-1]] = segment
        elif part != segment:
            return None
    return parameters
