"""Whom the chief of a gang lets in: who proves that it belongs to this generation of this allocation, and in time.

Whoever connects has HANDSHAKE_S for that, before which nothing longer than a line is read from it. Few connections are
held that have proved nothing, and fewer of one address: for a new one the oldest of them is dropped, so strangers who
say nothing keep nobody out.
"""

import asyncio
import collections
import ipaddress
import secrets
from collections.abc import Container

from supervisor.protocol import gang
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import MESSAGES, Challenge, Join, Refused
from supervisor.protocol.wire.codec import ProtocolError

HANDSHAKE_S = 5.0
SPARE_CONNECTIONS = 16  # beside those of the gang that have proved nothing yet
OF_ONE_ADDRESS = 8  # that have proved nothing; a proof takes a round trip, and daemons behind one router try again


class GangAdmission:
    """The connections that have proved nothing yet. `allocation`, `secret`: what they have to belong to, and know."""

    def __init__(self, allocation: Allocation, secret: str) -> None:
        self._allocation = allocation
        self._secret = secret
        self._unproven: dict[asyncio.StreamWriter, str] = {}  # where each comes from, oldest first
        self._unproven_of: collections.Counter[str] = collections.Counter()

    def add(self, writer: asyncio.StreamWriter) -> None:
        """A new connection; drops the oldest of its address, if it has many, or of all, if these are many."""
        origin = _origin_of(writer)
        if self._unproven_of[origin] >= OF_ONE_ADDRESS:
            self._drop(next(older for older, other in self._unproven.items() if other == origin))
        elif len(self._unproven) >= self._allocation.size + SPARE_CONNECTIONS:
            self._drop(next(iter(self._unproven)))
        self._unproven[writer] = origin
        self._unproven_of[origin] += 1

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self.forget(writer)
        writer.transport.abort()

    def forget(self, writer: asyncio.StreamWriter) -> None:
        """It has proved that it belongs here, or its connection is over."""
        origin = self._unproven.pop(writer, None)
        if origin is not None:
            self._unproven_of[origin] -= 1
            if not self._unproven_of[origin]:
                del self._unproven_of[origin]

    async def prove(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, joined: Container[int]
    ) -> Join | None:
        """What a daemon says as it joins, once it is proved; None if nothing is said, as by a node that only looks
        whether this daemon lives. `joined`: the ranks that are let in already.

        Raises ProtocolError, OSError and ValueError.
        """
        challenge = Challenge(secrets.token_hex(16))
        writer.write(MESSAGES.encode(challenge))
        if not (line := await reader.readline()):
            return None
        said = MESSAGES.decode(require_whole(line))
        peer = writer.get_extra_info("peername")
        if not isinstance(said, Join):
            raise ProtocolError(f"{peer} did not join")
        if not gang.is_proof(said.proof, gang.proof_of_join(self._secret, challenge, said)):
            # without a proof, which would let a stranger who has a rank's connection refuse it in the chief's name
            writer.write(MESSAGES.encode(Refused("it does not know the secret of this allocation")))
            raise ProtocolError(f"{peer} does not know the secret of this allocation")
        if (reason := self._reason_against(said, joined)) is not None:
            writer.write(MESSAGES.encode(gang.proven_answer(self._secret, said, Refused(reason))))
            raise ProtocolError(f"{peer}: {reason}")
        if writer not in self._unproven:  # its proof was read already when it had to make room
            raise ProtocolError(f"{peer} was dropped for a newer connection")
        self.forget(writer)
        return said

    def _reason_against(self, said: Join, joined: Container[int]) -> str | None:
        if said.generation != self._allocation.generation:
            return f"it belongs to generation {said.generation}, and this is {self._allocation.generation}"
        if not 0 < said.rank < self._allocation.size:
            return f"there is no rank {said.rank}"
        if said.rank in joined:
            return f"rank {said.rank} has joined already"
        if not is_address_of(self._allocation, said.rank, said.address):
            return f"its address is {said.address:.80}, which is not of {self._allocation.nodes[said.rank]}"
        return None


def is_address_of(allocation: Allocation, rank: int, address: str) -> bool:
    """Whether it is an address and port of that rank's node."""
    host, _, port = address.rpartition(":")
    return host == allocation.nodes[rank] and port.isdecimal() and 0 < int(port) < 1 << 16


def require_whole(line: bytes) -> bytes:
    """The line. Raises ProtocolError if the connection ended before its end."""
    if not line.endswith(b"\n"):
        raise ProtocolError("the connection ended")
    return line


def _origin_of(writer: asyncio.StreamWriter) -> str:
    """The address of the other side; of IPv6 the network, as who has one address there has all of them."""
    host = str((writer.get_extra_info("peername") or ("",))[0])
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))
