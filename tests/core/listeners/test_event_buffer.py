"""Which of the waiting events go where there is no room."""

from supervisor.core.listeners.event_buffer import MAX_BYTES, EventBuffer, PoolEvent


def dropped(buffer: EventBuffer, number: int, program: str, size: int) -> list[str | None]:
    buffer.add(PoolEvent(number, number, "PROCESS_LOG_STDOUT", bytes(size), program))
    return [event.program for event in buffer.drop_beyond_room()]


def test_who_fills_the_memory_with_few_events_drops_no_other_s():
    buffer = EventBuffer(1000)
    for number in range(500):
        assert dropped(buffer, number, "small", 10) == []

    lost = [name for number in range(500, 540) for name in dropped(buffer, number, "large", MAX_BYTES // 10)]

    assert set(lost) == {"large"}


def test_who_has_most_events_gives_way_where_they_are_too_many():
    buffer = EventBuffer(20)
    for number in range(5):
        dropped(buffer, number, "large", MAX_BYTES // 10)

    lost = [name for number in range(5, 40) for name in dropped(buffer, number, "small", 10)]

    assert lost == ["small"] * 20
