"""Who may connect, and who may change anything: by the peer's uid on a unix socket, by a password where one is set."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import socket
import struct
from dataclasses import dataclass, field

from supervisor.config.schema.secret import Secret

_UCRED = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a unix socket."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The other end's credentials at the time it connected (SO_PEERCRED). Raises OSError."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def may_change(peer: Peer, socket_owner: int) -> bool:
    """Root, the daemon's own user and the socket's owner may change things; others who can connect may only read."""
    return peer.uid in (0, os.geteuid(), socket_owner)


class MalformedCredentials(Exception):
    """The Authorization header can't be read."""


@dataclass(slots=True)
class Login:
    """The one user name and password of a socket; whoever knows them may do everything."""

    username: str
    password: Secret
    _key: bytes = field(default_factory=lambda: os.urandom(32))
    _known: bytes | None = None
    """A digest of credentials that were right before, so that a slow hash is computed once, not for each request."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def is_valid(self, header: str | None) -> bool:
        """Whether an Authorization header (RFC 7617) has them. Raises Malformed."""
        if header is None:
            return False
        username, password = _credentials(header)
        token = hmac.digest(self._key, f"{username}:{password}".encode(errors="surrogatepass"), hashlib.sha256)
        if self._known is not None and hmac.compare_digest(token, self._known):
            return True
        async with self._one_at_a_time:  # so that guessing passwords can't use all processors
            is_right = await self._matches(password)
        if is_right and hmac.compare_digest(username.encode(errors="surrogatepass"), self.username.encode()):
            self._known = token
            return True
        return False

    async def _matches(self, password: str) -> bool:
        if self.password.is_slow:
            return await asyncio.to_thread(self.password.matches, password)
        return self.password.matches(password)


def _credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise MalformedCredentials("only Basic authentication is supported")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise MalformedCredentials("the credentials after Basic are not base64 of UTF-8") from error
    username, colon, password = text.partition(":")
    if not colon:
        raise MalformedCredentials("there is no colon between user name and password")
    return username, password
