"""Programs share a limited memory; none that prints without end takes the others' shares."""

from hypothesis import given
from hypothesis import strategies as st

from supervisor.host.logs.shared_room import SharedRoom

ADDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 120)), max_size=60)


def test_who_holds_most_gives_way_with_its_newest():
    room = SharedRoom(100)
    for key in range(9):
        assert room.add("noisy", key, 10) == []

    assert room.add("quiet", 9, 15) == [("noisy", 8)]
    assert room.add("noisy", 10, 10) == [("noisy", 10)]


@given(ADDS)
def test_what_is_held_fits_and_a_program_within_its_share_loses_nothing(adds: list[tuple[str, int]]):
    room, held = SharedRoom(100), dict[int, tuple[str, int]]()

    for key, (program, size) in enumerate(adds):
        held[key] = (program, size)
        gone = room.add(program, key, size)
        for lost, lost_key in gone:
            assert held.pop(lost_key)[0] == lost
        total = sum(size for _, size in held.values())
        assert total <= 100 or len(held) == 1
        for lost in {lost for lost, _ in gone}:
            assert sum(size for name, size in adds[: key + 1] if name == lost) > 100 // 3

    for key, (program, _) in held.items():
        room.remove(program, key)
    assert room.add("d", 1000, 1000) == []
