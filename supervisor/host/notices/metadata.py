"""An HTTP client for a cloud's metadata server, with a limit on everything, which can't be redirected elsewhere.

No proxy from the environment, no redirect, no name resolution (addresses are literals), no cookies, no compression;
a new connection for each request, so that it never waits for a dead one.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from urllib.parse import urlencode, urlsplit

import h11

REQUEST_TIMEOUT_S = 2.0  # the server is link-local and answers in milliseconds, or not at all
MAX_BODY_BYTES = 32 << 10  # the longest documented response, a list of events, is a few KiB
TOKEN_TTL_S = 3600  # AWS allows 1 to 21600
TOKEN_MARGIN_S = 15.0  # before it expires; as AWS's own node termination handler does
HTTP_PORT = 80
_ALWAYS = {"User-Agent": "stepkeeper", "Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close"}
MAX_TOKEN_LENGTH = 1024  # they have 56 characters; a header value has to be short and printable


class MetadataError(Exception):
    """No usable response; the text says why."""


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    """A complete response. `headers`: names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class MetadataClient:
    """The metadata server at `base`, for instance `http://169.254.169.254`."""

    def __init__(self, base: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._base = urlsplit(base)
        self.timeout_s = timeout_s

    async def get(
        self,
        path: str,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> MetadataResponse:
        """The response to a GET, whatever its status. Raises MetadataError if none arrived, complete and in time."""
        return await self._request("GET", path, headers, query=query, timeout_s=timeout_s)

    async def put(self, path: str, headers: Mapping[str, str]) -> MetadataResponse:
        """The response to an empty PUT. Raises MetadataError as `get` does."""
        return await self._request("PUT", path, headers)

    async def post(
        self, path: str, headers: Mapping[str, str], query: Mapping[str, str], json: object
    ) -> MetadataResponse:
        """The response to a POST of a JSON value. Raises MetadataError as `get` does."""
        return await self._request("POST", path, headers, query=query, json=json)

    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        *,
        query: Mapping[str, str] | None = None,
        json: object = None,
        timeout_s: float | None = None,
    ) -> MetadataResponse:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        target = self._base.path + path + (f"?{urlencode(query)}" if query else "")
        body = b"" if json is None else dumps(json).encode()
        kind = {"Content-Type": "application/json"} if body else {}
        length = {} if method == "GET" else {"Content-Length": str(len(body))}  # as RFC 9110, 8.6, would have it
        sent = {"Host": self._base.netloc, **_ALWAYS, **kind, **headers, **length}
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(h11.Request(method=method, target=target, headers=[*sent.items()]), body)
        except TimeoutError as error:
            raise MetadataError(f"no answer within {limit_s:g} s") from error
        except (h11.ProtocolError, OSError) as error:
            raise MetadataError(str(error) or type(error).__name__) from error

    async def _exchange(self, request: h11.Request, body: bytes) -> MetadataResponse:
        reader, writer = await asyncio.open_connection(self._base.hostname, self._base.port or HTTP_PORT)
        try:
            http = h11.Connection(h11.CLIENT)
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(http.send(event) or b"")
            return await _receive_response(http, reader)
        finally:
            writer.transport.abort()  # nobody waits for the rest


async def _receive_response(http: h11.Connection, reader: asyncio.StreamReader) -> MetadataResponse:
    while isinstance(head := await _next_event(http, reader), h11.InformationalResponse):
        pass
    assert isinstance(head, h11.Response)  # no other event begins a response
    body = b""
    while isinstance(part := await _next_event(http, reader), h11.Data):
        body += part.data
        if len(body) > MAX_BODY_BYTES:
            raise MetadataError(f"the response is longer than {MAX_BODY_BYTES} bytes")
    names = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}  # h11 makes them lower case
    return MetadataResponse(head.status_code, names, body)


async def _next_event(
    http: h11.Connection, reader: asyncio.StreamReader
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    while (event := http.next_event()) is h11.NEED_DATA:
        data = await reader.read(MAX_BODY_BYTES)
        if not data and http.their_state is h11.SEND_RESPONSE:
            raise MetadataError("the connection was closed without a response")
        http.receive_data(data)
    return event


def status_error(response: MetadataResponse) -> MetadataError:
    """The error for an unexpected status."""
    if 300 <= response.status < 400:
        return MetadataError(f"the response is a redirect ({response.status}), which a metadata server never sends")
    if response.status == 429:
        return MetadataError("too many requests (429); other programs on this host may be asking it as well")
    return MetadataError(f"the response has status {response.status}")


class MetadataToken:
    """The session token that AWS and Alibaba require: kept in memory only, renewed before it expires or when refused.

    `prefix`: how the provider's two headers begin, for instance `X-aws-ec2-metadata-token`.
    """

    def __init__(self, metadata: MetadataClient, prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix
        self._token = ""
        self._renew_at = 0.0
        self._lock = asyncio.Lock()

    async def get(self, path: str) -> MetadataResponse:
        """The response to a GET with the token; a refused token is replaced once. Raises MetadataError."""
        token = await self._current()
        response = await self._metadata.get(path, {self._prefix: token})
        if response.status != 401:
            return response
        if token == self._token:  # else another request has renewed it already
            self._token = ""
        return await self._metadata.get(path, {self._prefix: await self._current()})

    async def _current(self) -> str:
        async with self._lock:
            if not self._token or asyncio.get_running_loop().time() >= self._renew_at:
                await self._renew()
            return self._token

    async def _renew(self) -> None:
        requested_at = asyncio.get_running_loop().time()
        response = await self._metadata.put("/latest/api/token", {f"{self._prefix}-ttl-seconds": str(TOKEN_TTL_S)})
        if response.status != 200:
            raise MetadataError(f"no token: {status_error(response)}")
        token = response.body.decode("latin-1").strip()
        if not (0 < len(token) <= MAX_TOKEN_LENGTH and token.isascii() and token.isprintable() and " " not in token):
            raise MetadataError(f"no token: the response of {len(response.body)} bytes is not one")
        ttl = response.headers.get(f"{self._prefix}-ttl-seconds".lower(), "")
        lasts_s = min(float(ttl), TOKEN_TTL_S) if ttl.isascii() and ttl.isdecimal() and len(ttl) < 9 else TOKEN_TTL_S
        self._token, self._renew_at = token, requested_at + max(lasts_s - TOKEN_MARGIN_S, lasts_s / 2)
