"""Ports of workers lie where no other program is given one by chance."""

import random
import socket
from pathlib import Path

import pytest

from supervisor.host.gang.free_port import free_port
from supervisor.protocol.ports import DEFAULT_LOCAL_RANGE, TRIES, local_ports, ports_to_try
from worker.process import local_processes


def test_what_the_kernel_gives_to_whoever_asks_is_read_from_it():
    with socket.socket() as sock:
        sock.bind(("", 0))
        assert sock.getsockname()[1] in local_ports()


@pytest.mark.parametrize("content", [None, "", "1", "a b"])
def test_where_the_kernel_does_not_say_it_is_the_default(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "range").write_text(content)
    assert local_ports(tmp_path / "range") == DEFAULT_LOCAL_RANGE


@pytest.mark.parametrize("lowest", [1024, 12000, 15000, 32768])
def test_ports_are_outside_of_that_range_and_at_last_any(tmp_path: Path, lowest: int):
    (tmp_path / "range").write_text(f"{lowest}\t60999\n")
    *named, last = ports_to_try(tmp_path / "range")

    assert last == 0
    assert all(10000 <= port < min(lowest, 20000) for port in named)
    assert len(named) == len(set(named)) == (0 if lowest == 1024 else TRIES)


def test_the_scripts_own_random_numbers_stay_as_they_are():
    random.seed(7)
    expected = random.Random(7).random()

    list(ports_to_try())

    assert random.random() == expected


def test_ports_of_workers_are_free_different_and_outside_of_that_range():
    ports = [free_port(), *local_processes._free_ports(8)]
    assert len(set(ports[1:])) == 8
    assert not any(port in local_ports() for port in ports)


def test_port_that_is_taken_or_the_kernels_is_not_used():
    with socket.socket() as sock:
        sock.bind(("", free_port()))
        taken = int(sock.getsockname()[1])
        assert free_port(taken) != taken
    assert free_port(taken) == taken
    assert free_port(local_ports()[-1]) not in local_ports()
