"""Which checkpoints count: a late write of a host that was taken for dead never does."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.keys import (
    Epoch,
    RemoteCheckpoint,
    decode_epoch,
    encode_epoch,
    epoch_key,
    parse_epoch_key,
    parse_file_key,
)
from supervisor.protocol.mirror.line import (
    checkpoints_on_line,
    given_up,
    left_behind,
    newest_at_or_before,
    to_delete,
)
from supervisor.protocol.wire.codec import ProtocolError
from tests.fuzzing import cases


def at(epoch: int, step: int, attempt: int = 1) -> RemoteCheckpoint:
    return RemoteCheckpoint(epoch, CheckpointName(step, attempt))


def epochs(*parents: RemoteCheckpoint | None) -> dict[int, Epoch]:
    return {number: Epoch(number, parent) for number, parent in enumerate(parents, 1)}


def test_late_write_of_the_older_epoch_does_not_count():
    held = epochs(None, at(1, 200))

    line = checkpoints_on_line(held, [at(1, 100), at(1, 200), at(1, 900), at(2, 300)])

    assert line == (at(2, 300), at(1, 200), at(1, 100))


def test_run_that_began_anew_has_no_past():
    assert checkpoints_on_line(epochs(None, None), [at(1, 100)]) == ()


def test_line_goes_through_an_epoch_that_wrote_nothing():
    held = epochs(None, at(1, 200), at(1, 200))

    assert checkpoints_on_line(held, [at(1, 100), at(1, 200), at(2, 300)]) == (at(1, 200), at(1, 100))


def test_what_the_line_has_passed_over_is_given_up_by_the_epoch_that_did():
    held = epochs(None, at(1, 200), at(1, 100))  # training diverged twice, or was taken over
    there = [at(1, 100), at(1, 200), at(1, 300), at(2, 150), at(2, 350), at(3, 110)]

    assert given_up(held, there) == {at(1, 200): 3, at(1, 300): 3, at(2, 150): 3, at(2, 350): 3}


def test_what_is_older_than_all_that_the_store_has_is_a_beginning_too():
    """Training diverged, and of what it goes on from the store has nothing: retention was faster."""
    held = {1: Epoch(1, None), 2: Epoch(2, None, start=CheckpointName(50, 1)), 3: Epoch(3, at(2, 60))}
    there = [at(1, 80), at(1, 90), at(2, 60), at(2, 70)]

    assert checkpoints_on_line(held, there) == (at(2, 60),)
    assert given_up(held, there) == {at(1, 80): 2, at(1, 90): 2, at(2, 70): 3}
    assert given_up({1: Epoch(1, None, start=CheckpointName(50, 1))}, [at(1, 80)]) == {}
    assert decode_epoch(2, encode_epoch(held[2])) == held[2]
    assert decode_epoch(2, b'{"parent": null, "format": 1}').start is None, "as an earlier version wrote it"


def test_what_an_operator_gave_up_to_begin_anew_is_left_alone():
    assert given_up(epochs(None, None), [at(1, 100), at(2, 50)]) == {}
    assert given_up(epochs(None, None, at(2, 50)), [at(1, 100), at(2, 50), at(2, 60)]) == {at(2, 60): 3}
    assert given_up({}, [at(1, 100)]) == {}


@cases(300)
@given(st.data())
def test_what_is_given_up_counts_never_again(data: st.DataObject):
    """Whatever follows: hosts that commit, late or not, and epochs that go on from whatever counts, or begin anew."""
    held: dict[int, Epoch] = {1: Epoch(1, None)}
    committed: set[RemoteCheckpoint] = set()
    passed_over: set[RemoteCheckpoint] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            committed.add(at(data.draw(st.sampled_from(sorted(held))), data.draw(st.integers(1, 9))))
        else:
            line = checkpoints_on_line(held, committed)
            start = data.draw(st.none() | st.builds(CheckpointName, st.integers(1, 9), st.just(1)))
            number = max(held) + 1
            held[number] = Epoch(number, newest_at_or_before(line, start), start=start)
        line = checkpoints_on_line(held, committed)
        behind = given_up(held, committed)

        assert not (passed_over & set(line)), "it was given up before"
        assert not (behind.keys() & set(line))
        assert all(checkpoint.epoch < by for checkpoint, by in behind.items())
        passed_over |= behind.keys()


def test_local_checkpoints_behind_the_successors_start_are_left_behind():
    names = [CheckpointName(100, 1), CheckpointName(200, 1), CheckpointName(250, 1)]

    assert left_behind(dict.fromkeys(names, 1), epochs(None, at(1, 200))) == (CheckpointName(250, 1),)
    assert left_behind(dict.fromkeys(names, 2), epochs(None, at(1, 200))) == ()
    assert left_behind(dict.fromkeys(names), epochs(None, at(1, 200))) == ()
    assert left_behind(dict.fromkeys(names, 1), epochs(None, None)) == tuple(names)


def test_fetched_checkpoint_counts_by_the_epoch_it_was_fetched_from():
    own, fetched = CheckpointName(250, 1), CheckpointName(828, 2)

    assert left_behind({own: 1, fetched: 2}, epochs(None, at(1, 200))) == (own,)
    assert left_behind({fetched: 2}, epochs(None, at(1, 200), at(2, 400, 2))) == (fetched,)


def test_parent_is_the_newest_remote_one_not_after_the_start():
    line = [at(1, 100), at(1, 200)]

    assert newest_at_or_before(line, CheckpointName(250, 1)) == at(1, 200)
    assert newest_at_or_before(line, CheckpointName(150, 3)) == at(1, 100)
    assert newest_at_or_before(line, None) is None


def test_parent_stays_until_the_epoch_has_two_of_its_own():
    one = dict.fromkeys([at(1, 100), at(1, 200), at(2, 300)], False)
    two = one | {at(2, 400): False}

    assert to_delete(one, epoch=2, keep=1) == ()
    assert to_delete(two, epoch=2, keep=1) == (at(1, 100), at(1, 200))


def test_the_newest_that_a_live_worker_saved_stays_beside_what_dead_ones_left_in_memory():
    """Nobody has looked for NaN in these: a divergence, or a suspect one, is to have something to go back to."""
    line = {at(1, 100): False, at(1, 200, 2): False, at(1, 250, 3): True, at(2, 300, 4): True, at(2, 350, 5): True}

    assert to_delete(line, epoch=2, keep=2) == (at(1, 100), at(1, 250, 3))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), max_size=30), st.integers(1, 5), st.integers(1, 4))
def test_retention_keeps_the_newest(mirrored: list[tuple[int, int]], epoch: int, keep: int):
    line = {at(*epoch_and_step) for epoch_and_step in mirrored}
    gone = to_delete(dict.fromkeys(line, False), epoch, keep)

    left = line - set(gone)
    assert len(left) >= min(len(line), keep)
    assert not gone or max(gone) < min(left)


def test_keys_read_back():
    name = at(4, 12800, 3)

    assert name.manifest == "e0004/step-0000012800.a3/MANIFEST.json"
    assert parse_file_key(name.key("ckpt.index")) == (name, "ckpt.index")
    assert parse_epoch_key(epoch_key(12)) == 12
    epoch = Epoch(5, name, "gpu-7", 12.5)
    assert decode_epoch(5, encode_epoch(epoch)) == epoch


@pytest.mark.hostile
@pytest.mark.parametrize(
    "key",
    ["epoch/4", "epoch/00004", "e0004/step-1.a1/x", "e4/step-0000000001.a1/x", "e0004/step-0000000001.a1/a/b", "", "x"]
    + [f"e0004/step-0000000001.a1/{name}" for name in (".", "..", "a\0b", "n" * 256, "\udcff")],
)
def test_other_keys_are_none_of_ours(key: str):
    assert (parse_epoch_key(key), parse_file_key(key)) == (None, None)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"parent": 3}', b'{"parent": "e0009/step-0000000001.a1"}', b'{"parent": "../x"}']
)
def test_epoch_that_is_damaged_is_an_error(content: bytes):
    with pytest.raises(ProtocolError):
        decode_epoch(5, content)


@pytest.mark.fuzz
@cases(300)
@given(st.binary(max_size=300), st.text(max_size=60))
def test_whatever_a_store_answers_is_read_or_refused(content: bytes, key: str):
    with contextlib.suppress(ProtocolError):
        decode_epoch(3, content)
    for parsed in (parse_epoch_key(key), parse_file_key(key)):
        assert parsed is None or isinstance(parsed, int | tuple)
