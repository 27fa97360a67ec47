"""Ports for the servers of TensorFlow, which find their peers by host and port."""

import socket

from supervisor.protocol.ports import local_ports, ports_to_try


def free_port(wanted: int = 0) -> int:
    """`wanted` if it is free at the moment and not one that the kernel may give to another program, or else another.

    If another program takes it first, the next generation gets another. Raises OSError if there is none.
    """
    first = (wanted,) if wanted and wanted not in local_ports() else ()
    for port in (*first, *ports_to_try()):
        with socket.socket() as sock:
            try:
                sock.bind(("", port))  # TensorFlow's server listens on every address
            except OSError:
                if port == 0:
                    raise
                continue
            return int(sock.getsockname()[1])
    raise AssertionError("the last one is any port")
