"""Who may connect, and who may change anything: by the peer's uid on a unix socket, by a password where one is set."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from supervisor.config.schema.secret import Secret
from supervisor.host.peers import Peer, peer_of

MAX_GUESSES, GUESS_EVERY_S = 20, 2.0  # people mistype; a program that guesses gets 43,000 a day
MAX_CLIENTS = 10_000  # whose guesses are remembered: about 2 MiB
MAX_HASHES, MAX_HASHES_PER_CLIENT = 40, 4  # being computed or waiting, 0.1 s and 32 MiB each, two at a time


def may_change(peer: Peer, socket_owner: int) -> bool:
    """Root, the daemon's own user and the socket's owner may change things; others who can connect may only read."""
    return peer.is_trusted or peer.uid == socket_owner


class MalformedCredentials(Exception):
    """The Authorization header can't be read."""


class TooManyGuesses(Exception):
    """A client has sent so many wrong passwords that the next one is not compared."""


class GuessLimit:
    """How often each client may guess: MAX_GUESSES at once, then one more every GUESS_EVERY_S.

    Right passwords cost nothing. `client`: see client_of. Clients do not delay each other.
    """

    def __init__(self) -> None:
        self._forgiven_at: dict[str, float] = {}  # when all wrong guesses of a client will be forgiven, monotonic

    def check(self, client: str, now: float) -> None:
        """Raises TooManyGuesses."""
        if self._forgiven_at.get(client, now) - now > (MAX_GUESSES - 1) * GUESS_EVERY_S:
            raise TooManyGuesses

    def count(self, client: str, now: float) -> None:
        """A guess is being compared. Counted before, so that guesses sent side by side count too."""
        if len(self._forgiven_at) >= MAX_CLIENTS:
            self._forgiven_at = {address: at for address, at in self._forgiven_at.items() if at > now}
            if len(self._forgiven_at) >= MAX_CLIENTS:
                raise TooManyGuesses
        self._forgiven_at[client] = max(self._forgiven_at.get(client, now), now) + GUESS_EVERY_S

    def forgive(self, client: str) -> None:
        """The guess was right."""
        if client in self._forgiven_at:
            self._forgiven_at[client] -= GUESS_EVERY_S


@dataclass(slots=True)
class Login:
    """The one user name and password of a socket; whoever knows them may do everything."""

    username: str
    password: Secret
    _key: bytes = field(default_factory=lambda: os.urandom(32))
    _known: bytes | None = None
    """A digest of credentials that were right before, so that a slow hash is computed once, not for each request."""
    _limit: GuessLimit = field(default_factory=GuessLimit)
    _hashing: dict[str, int] = field(default_factory=dict)
    """How many slow hashes of each client are waited for."""
    _threads: ThreadPoolExecutor | None = None

    async def is_valid(self, header: str | None, client: str) -> bool:
        """Whether an Authorization header (RFC 7617) has them. Raises MalformedCredentials, TooManyGuesses."""
        if header is None:
            return False
        username, password = _credentials(header)
        self._limit.check(client, time.monotonic())
        self._limit.count(client, time.monotonic())
        is_right = await self._is_right(username, password, client)
        if is_right:
            self._limit.forgive(client)
        return is_right

    async def _is_right(self, username: str, password: str, client: str) -> bool:
        token = hmac.digest(self._key, f"{username}:{password}".encode(errors="surrogatepass"), hashlib.sha256)
        if self._known is not None and hmac.compare_digest(token, self._known):
            return True
        if await self._matches(password, client) and hmac.compare_digest(
            username.encode(errors="surrogatepass"), self.username.encode()
        ):
            self._known = token
            return True
        return False

    async def _matches(self, password: str, client: str) -> bool:
        if not self.password.is_slow:
            return self.password.matches(password)
        if self._hashing.get(client, 0) >= MAX_HASHES_PER_CLIENT or sum(self._hashing.values()) >= MAX_HASHES:
            raise TooManyGuesses
        if self._threads is None:  # of its own: guesses must hold up nothing else, nor use all processors
            self._threads = ThreadPoolExecutor(2, thread_name_prefix="login")
        self._hashing[client] = self._hashing.get(client, 0) + 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self.password.matches, password)
        finally:
            self._hashing[client] -= 1
            if not self._hashing[client]:
                del self._hashing[client]


def client_of(connection: socket.socket, remote: str | None) -> str:
    """Whose guesses count together: an address, a network of IPv6 (/64, as one host has a whole one), or a uid."""
    if remote is None:
        try:
            return f"uid {peer_of(connection).uid}"
        except OSError:
            return "unknown"
    try:
        address = ip_address(remote.partition("%")[0])
    except ValueError:
        return remote
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
    return str(address)


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
