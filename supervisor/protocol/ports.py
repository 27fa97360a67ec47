"""Where workers that train together listen: not where the kernel lets clients listen and connect from.

A port is chosen before TensorFlow binds it. The kernel gives those of its own range to whoever asks for any, so within
seconds one of them may be another program's. Outside of that range somebody has to name the very port.
"""

import random
from collections.abc import Iterator
from pathlib import Path

LOWEST_WORKER_PORT, WORKER_PORTS = 10000, 10000  # below the chief daemon's, and below what Linux gives to clients
LOCAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
DEFAULT_LOCAL_RANGE = range(32768, 61000)
TRIES = 200  # so many in a row that are taken are no accident

_random = random.SystemRandom()  # the script's own generator is part of its state


def local_ports(path: Path = LOCAL_RANGE) -> range:
    """The ports that the kernel gives to whoever asks for any (ip(7), ip_local_port_range)."""
    try:
        lowest, highest = map(int, path.read_text().split())
    except (OSError, ValueError):
        return DEFAULT_LOCAL_RANGE
    return range(lowest, highest + 1)


def ports_to_try(path: Path = LOCAL_RANGE) -> Iterator[int]:
    """Ports for a worker, in an order by chance; at last 0: any, where an operator has left no others."""
    taken = local_ports(path)
    ports = [port for port in range(LOWEST_WORKER_PORT, LOWEST_WORKER_PORT + WORKER_PORTS) if port not in taken]
    yield from _random.sample(ports, min(TRIES, len(ports)))
    yield 0
