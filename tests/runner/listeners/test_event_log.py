"""What happened lately, for watchers that read at their own pace."""

import asyncio

from supervisor.core.listeners.event_types import daemon_running, remote_communication
from supervisor.runner.listeners import event_log
from supervisor.runner.listeners.event_log import EventLog


def serials(stream: EventLog, after: int, most: int = 100) -> list[int]:
    return [each.serial for each in stream.read_from(after, most)]


def test_a_watcher_reads_from_where_it_stands():
    stream = EventLog()
    for _ in range(5):
        stream.append(daemon_running())

    assert serials(stream, 0) == [0, 1, 2, 3, 4]
    assert serials(stream, 3) == [3, 4]
    assert serials(stream, 1, most=2) == [1, 2]
    assert serials(stream, 5) == []


def test_only_the_last_are_kept():
    stream = EventLog()
    for _ in range(event_log.KEPT + 3):
        stream.append(daemon_running())

    assert stream.first_serial == 3
    assert serials(stream, 0, most=2) == [3, 4]
    assert serials(stream, stream.next_serial - 1) == [event_log.KEPT + 2]


def test_client_events_are_bounded_in_bytes():
    stream = EventLog()
    for _ in range(3):
        stream.append(remote_communication("t", "x" * (event_log.MAX_BYTES // 2)))

    assert serials(stream, 0) == [2]


def test_watchers_do_not_wait_for_what_will_not_come():
    async def watch() -> bool:
        stream = EventLog()
        waiting = asyncio.create_task(stream.wait_for_more())
        await asyncio.sleep(0)
        stream.close()
        await asyncio.wait_for(asyncio.gather(waiting, stream.wait_for_more()), 5)
        return stream.is_closed

    assert asyncio.run(watch())


def test_waiting_reader_wakes_on_the_next_event():
    async def watch() -> list[int]:
        stream = EventLog()
        waiting = asyncio.create_task(stream.wait_for_more())
        await asyncio.sleep(0)
        stream.append(daemon_running())
        await asyncio.wait_for(waiting, 5)
        return serials(stream, 0)

    assert asyncio.run(watch()) == [0]
