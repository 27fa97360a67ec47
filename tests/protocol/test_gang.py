"""What the chief of a gang says at its beginning: all addresses, without a line that has all of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol import gang
from supervisor.protocol.allocation import MAX_NODES, Allocation
from supervisor.protocol.gang import MESSAGES, Begin
from supervisor.protocol.wire.codec import ProtocolError

SECRET = "s" * 64


def place(size: int, generation: int = 1) -> Allocation:
    return Allocation(7, 0, tuple(f"node-{rank}" for rank in range(size)), 0, generation)


def begin(size: int, ports: list[int]) -> Begin:
    addresses = [f"{node}:{port}" for node, port in zip(place(size).nodes, ports, strict=True)]
    return Begin(gang.begin_of(gang.worker_ports(SECRET, place(size)), range(size), addresses), "p" * 64)


@given(st.integers(1, 40).flatmap(lambda size: st.lists(st.integers(1, 65535), min_size=size, max_size=size)))
def test_all_addresses_are_known_wherever_the_workers_listen(ports: list[int]) -> None:
    size = len(ports)
    said = MESSAGES.decode(MESSAGES.encode(begin(size, ports)))
    assert isinstance(said, Begin)
    expected = tuple(f"node-{rank}:{port}" for rank, port in enumerate(ports))
    assert gang.addresses_of(place(size).nodes, gang.worker_ports(SECRET, place(size)), said) == expected


def test_the_beginning_is_as_long_for_a_thousand_ranks_as_for_two() -> None:
    lines = [MESSAGES.encode(begin(size, list(gang.worker_ports(SECRET, place(size))))) for size in (2, MAX_NODES)]
    assert len(lines[0]) == len(lines[1])


def test_a_line_has_room_for_a_thousand_ranks_that_listen_elsewhere() -> None:
    assert MESSAGES.encode(begin(MAX_NODES, [65535] * MAX_NODES))


@pytest.mark.hostile
@pytest.mark.parametrize("other", [(3, 5000), (1, 0), (1, 65536)])
def test_a_rank_or_port_that_can_not_be_is_refused(other: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError):
        gang.addresses_of(place(3).nodes, gang.worker_ports(SECRET, place(3)), Begin((other,), ""))


def test_workers_listen_elsewhere_in_each_generation_and_for_each_secret() -> None:
    ports = [
        gang.worker_ports(SECRET, place(4)),
        gang.worker_ports(SECRET, place(4, generation=2)),
        gang.worker_ports(SECRET, replace(place(4), job_id=8)),
        gang.worker_ports("t" * 64, place(4)),
    ]
    assert len({range_.start for range_ in ports}) == 4
    assert all(range_.start >= 10000 and range_.stop <= 20000 for range_ in ports)
