"""What two runs differ by: steps, tensors, values, files, and the likely cause."""

import io
import struct
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import FileRecord, Manifest
from supervisor.protocol.proof import Difference, Likely
from supervisor.protocol.proof_plan import Begun, Killed, Named, ReachedValues, StepDone, decode_line, encode_line
from supervisor.protocol.tensorbundle import crc32c, sstable
from supervisor.protocol.tensorbundle.entry import encode_header, encode_tensor
from supervisor.prove.cause import explain
from supervisor.prove.comparison.arrays import differing_arrays, differing_values
from supervisor.prove.comparison.state import TORCH_STATE, CannotCompare, FinalCheckpoint, differing_state
from supervisor.prove.comparison.steps import differing_steps, epoch_goes_back, first_differing_step
from supervisor.prove.comparison.tensors import TensorDifference, differing_tensors
from supervisor.prove.comparison.values import lost_values, watched_steps
from supervisor.prove.record import RunRecord, edges_of
from supervisor.prove.scratch import ProvableJob
from supervisor.prove.torch_states import compare_torch_with
from tests.fuzzing import cases
from worker.state.run_state import RunState

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def step(number: int, loss: float = 0.5, attempt: int = 1, epoch: int = 0, batch: int = 1) -> StepDone:
    return StepDone(attempt, number, float(number), epoch, batch, metrics={"loss": (loss.hex(),)})


def record(*steps: StepDone) -> RunRecord:
    return RunRecord(steps)


# --- steps ---


def test_each_time_that_a_step_was_trained_is_compared():
    undisturbed = record(step(1), step(2), step(3))
    killed = record(step(1), step(2), step(2, loss=0.75, attempt=2), step(3, attempt=2))

    assert differing_steps(undisturbed, killed, is_whole=True) == [Difference("metric loss", 2, "0.5", "0.75")]


def test_one_bit_of_a_metric_is_a_difference():
    near = float(np.nextafter(0.5, 1.0))

    assert differing_steps(record(step(1)), record(step(1, loss=near)), is_whole=True)
    assert differing_steps(record(step(1, loss=0.0)), record(step(1, loss=-0.0)), is_whole=True)


def test_a_training_that_is_longer_differs_by_its_number_of_steps():
    undisturbed, killed = record(step(1), step(2)), record(step(1), step(2), step(3))

    assert differing_steps(undisturbed, killed, is_whole=True)[0] == Difference("number of steps", 3, "2", "3 or more")


def test_a_run_that_was_ended_on_purpose_is_compared_as_far_as_it_goes():
    assert differing_steps(record(step(1)), record(step(1), step(2)), is_whole=False) == []


def test_an_epoch_that_comes_again_is_seen():
    undisturbed = record(step(1, epoch=0), step(2, epoch=1))

    assert epoch_goes_back(undisturbed, record(step(1), step(2, epoch=0, attempt=2)))
    assert not epoch_goes_back(undisturbed, undisturbed)


def test_the_last_step_of_an_epoch_is_known_by_the_position_before_or_behind_it():
    within = [step(1, epoch=0, batch=1), step(2, epoch=0, batch=2), step(3, epoch=1, batch=1)]
    behind = [step(1, epoch=0, batch=1), step(2, epoch=1, batch=0), step(3, epoch=1, batch=1)]

    assert edges_of(within) == edges_of(behind) == (2,)


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=12), st.data())
def test_steps_that_are_trained_again_to_the_same_bits_are_no_difference(losses: list[float], data: st.DataObject):
    whole = [step(number, loss) for number, loss in enumerate(losses, 1)]
    killed: list[StepDone] = []
    at = 0
    while at < len(whole):
        until = data.draw(st.integers(at + 1, len(whole)))
        killed += whole[at:until]
        at = until if until == len(whole) else data.draw(st.integers(at, until))

    assert differing_steps(record(*whole), record(*killed), is_whole=True) == []


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=12), st.data())
def test_one_other_bit_is_found_wherever_it_is(losses: list[float], data: st.DataObject):
    whole = [step(number, loss) for number, loss in enumerate(losses, 1)]
    at = data.draw(st.integers(0, len(whole) - 1))
    (bits,) = struct.unpack("<q", struct.pack("<d", losses[at]))
    (other,) = struct.unpack("<d", struct.pack("<q", bits ^ 1 << data.draw(st.integers(0, 50))))
    changed = [*whole, step(at + 1, other, attempt=2)]

    assert [each.step for each in differing_steps(record(*whole), record(*changed), is_whole=True)] == [at + 1]


# --- state ---


def write_bundle(folder: Path, tensors: Mapping[str, np.ndarray], shards: int = 1) -> Path:
    """A TensorFlow checkpoint with these tensors of float32, in so many data files."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs, contents = [(b"", encode_header(shards))], [b""] * shards
    for number, (name, value) in enumerate(sorted(tensors.items())):
        held, shard = value.astype("<f4").tobytes(), number % shards
        crc = sstable.mask(crc32c.checksum(held))
        record = encode_tensor(1, value.shape, len(contents[shard]), len(held), crc, shard)
        pairs.append((f"{name}{SUFFIX}".encode(), record))
        contents[shard] += held
    (folder / f"{layout.PREFIX}.index").write_bytes(sstable.encode_table(pairs))
    for shard, content in enumerate(contents):
        (folder / f"{layout.PREFIX}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    return folder


def test_a_tensor_is_named_as_the_user_knows_it(tmp_path: Path):
    one = write_bundle(tmp_path / "one", {"model/dense/kernel": np.ones((2, 2)), "model/dense/bias": np.zeros(2)})
    changed = {"model/dense/kernel": np.ones((2, 2)), "model/dense/bias": np.array([0, 4])}
    other = write_bundle(tmp_path / "other", changed)

    (found,) = differing_tensors(one, other)

    assert (found.name, found.one, found.other) == ("model/dense/bias", "element 1: 0.0", "element 1: 4.0")


@cases(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.dictionaries(st.text("abcd", min_size=1, max_size=5), st.integers(1, 6), min_size=1, max_size=6),
    files=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    data=st.data(),
)
def test_exactly_the_tensors_that_differ_are_found_in_however_many_files(
    tmp_path: Path, sizes: dict[str, int], files: tuple[int, int], data: st.DataObject
):
    changed = data.draw(st.sets(st.sampled_from(sorted(sizes))))
    tensors = {name: np.arange(size, dtype="<f4") for name, size in sizes.items()}
    others = {name: value + (name in changed) for name, value in tensors.items()}

    folders = tempfile.mkdtemp(dir=tmp_path)
    one, other = Path(folders, "one"), Path(folders, "other")

    found = differing_tensors(write_bundle(one, tensors, files[0]), write_bundle(other, others, files[1]))

    assert {difference.name for difference in found} == changed


def test_a_value_of_run_state_is_named(tmp_path: Path):
    for name, best, seen in (("one", 0.5, [1, 2]), ("other", 0.25, [1, 2])):
        (tmp_path / name).write_bytes(RunState({"best": best, "seen": seen, "order": np.arange(3)}).to_bytes())

    (found,) = differing_values(tmp_path / "one", tmp_path / "other")

    assert (found.name, found.one, found.other) == ('run.state["best"]', "0.5", "0.25")


def test_an_array_of_run_state_is_compared_by_its_bits(tmp_path: Path):
    for name, last in (("one", 2.0), ("other", 3.0)):
        (tmp_path / name).write_bytes(RunState({"order": np.array([0.0, last])}).to_bytes())

    (found,) = differing_values(tmp_path / "one", tmp_path / "other")

    assert (found.name, found.one, found.other) == ('run.state["order"]', "element 1: 2.0", "element 1: 3.0")


def test_a_value_more_leaves_the_arrays_of_the_others_equal(tmp_path: Path):
    for name, more in (("one", {}), ("other", {"best": 0.5})):
        (tmp_path / name).write_bytes(RunState({**more, "seen": np.arange(3), "worst": float("nan")}).to_bytes())

    (found,) = differing_values(tmp_path / "one", tmp_path / "other")

    assert (found.name, found.one, found.other) == ('run.state["best"]', "absent", "present")


def test_the_order_in_which_an_epoch_is_gone_through_is_compared(tmp_path: Path):
    for name, last in (("one", 2), ("other", 3)):
        state = RunState({"order": 1})
        state.order = np.array([0, 1, last])
        (tmp_path / name).write_bytes(state.to_bytes())

    (found,) = differing_values(tmp_path / "one", tmp_path / "other")

    assert (found.name, found.one, found.other) == ("run.order", "element 2: 2", "element 2: 3")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "int64", "uint16", "bool"])
def test_arrays_of_a_file_are_compared_by_name(kind: str, tmp_path: Path):
    np.savez(tmp_path / "one.npz", weights=np.zeros(3, kind), same=np.ones(2, kind))
    np.savez(tmp_path / "other.npz", weights=np.array([0, 1, 0], kind), same=np.ones(2, kind))

    (found,) = differing_arrays(tmp_path / "one.npz", tmp_path / "other.npz")

    assert found.name == 'one.npz["weights"]'
    assert found.one.startswith("element 1: ")


def test_a_file_that_is_no_archive_raises(tmp_path: Path):
    for name in ("one.npz", "other.npz"):
        (tmp_path / name).write_bytes(io.BytesIO(name.encode()).read())

    with pytest.raises(zipfile.BadZipFile):
        list(differing_arrays(tmp_path / "one.npz", tmp_path / "other.npz"))


# --- causes ---

LOSS = Difference("metric loss", 7, "0.5", "0.6")


def cause(*differences: Difference, named=(), lost=(), repeats=True, goes_back=False) -> Likely:
    return explain(differences, named, lost, repeats=repeats, goes_back=goes_back).likely


def test_runs_that_differ_by_themselves_come_first():
    steps = Difference("number of steps", 13, "12", "13")

    assert cause(steps, named=[Named(1, "lr", "keep it")], repeats=False) is Likely.NOT_DETERMINISTIC


def test_another_number_of_steps_is_a_loop_that_began_anew():
    steps = Difference("number of steps", 13, "12", "13")

    assert cause(steps, LOSS, named=[Named(1, "lr", "keep it")]) is Likely.LOOP_BEGAN_ANEW
    assert cause(LOSS, goes_back=True) is Likely.LOOP_BEGAN_ANEW


def test_what_the_checks_named_is_a_value_that_nobody_keeps():
    assert cause(LOSS, named=[Named(1, "lr", "keep it")]) is Likely.NOT_KEPT


def test_other_batches_are_other_data_and_other_generators_other_numbers():
    assert cause(LOSS, Difference("batch of the epoch", 7, "1", "2")) is Likely.DATA
    assert cause(LOSS, Difference("PyTorch's random state", 9, "1", "2")) is Likely.RANDOMNESS
    assert cause(LOSS) is Likely.UNKNOWN


def reached(number: int, values: Mapping[str, str], attempt: int = 1, begin: bool = False) -> ReachedValues:
    return ReachedValues(attempt, number, begin, values)


def lost_names(begin: dict[str, str], after: dict[str, str], before: dict[str, str], then: dict[str, str]) -> list[str]:
    """What a restart from step 6 did not bring back."""
    killed = RunRecord((reached(6, begin, 2, begin=True), reached(7, after, 2)))
    again = RunRecord((reached(6, before), reached(7, then)))
    return [value.name for value in lost_values(killed, RunRecord(), again, ("loss",))]


def test_a_value_is_lost_if_the_next_step_does_not_make_it_again():
    begin, after = {"model.beta": "1.0", "w": "a", "logits": "x"}, {"model.beta": "0.9", "w": "c", "logits": "z"}
    before, then = {"model.beta": "0.5", "w": "a", "logits": "y"}, {"model.beta": "0.45", "w": "b", "logits": "z"}

    assert lost_names(begin, after, before, then) == ["model.beta"]


def test_what_lasts_from_step_to_step_is_blamed_rather_than_what_follows_from_it():
    after, before, then = {"order": "b", "rows": "4"}, {"order": "a", "rows": "1"}, {"order": "a", "rows": "2"}

    assert lost_names({}, after, before, then) == ["order"]


def test_a_counter_is_blamed_rather_than_gradients():
    begin, after = {"w.grad": "None"}, {"w.grad": "x", "i": "0"}

    assert lost_names(begin, after, {"w.grad": "y", "i": "2"}, {"w.grad": "z", "i": "3"}) == ["i"]


def test_gradients_are_blamed_if_nothing_else_is():
    assert lost_names({"w.grad": "None"}, {"w.grad": "x"}, {"w.grad": "y"}, {"w.grad": "z"}) == ["w.grad"]


def test_what_a_step_makes_of_what_nobody_sees_is_not_to_be_kept():
    killed = RunRecord((reached(6, {}, 2, begin=True), reached(7, {"batch": "c"}, 2)))
    lost = lost_values(killed, RunRecord(), RunRecord((reached(6, {"batch": "a"}), reached(7, {"batch": "b"}))), ())

    explanation = explain([LOSS], [], lost, repeats=True, goes_back=False)
    named = explain([LOSS], [Named(1, "lr", "keep lr")], lost, repeats=True, goes_back=False)

    assert explanation.likely is Likely.UNKNOWN
    assert "made another batch (b undisturbed, c killed)" in explanation.reason
    assert "run.state[" not in explanation.remedy
    assert named.remedy == "keep lr", "what the checks have named explains it"


def test_a_restart_after_the_first_difference_is_not_blamed():
    again = RunRecord(
        (reached(6, {"w": "a"}), reached(7, {"w": "b"}), reached(12, {"w": "c"}), reached(13, {"w": "d"}))
    )
    first = (reached(6, {"w": "a"}, 2, begin=True), reached(7, {"w": "x"}, 2))
    second = (reached(12, {"w": "y"}, 3, begin=True), reached(13, {"w": "z"}, 3))
    undisturbed, killed = record(step(6), step(7, loss=0.5)), record(step(6), step(7, loss=0.6))

    differs_at = first_differing_step(undisturbed, killed)
    lost = lost_values(RunRecord((*first, *second)), RunRecord(), again, (), differs_at)

    assert (differs_at, lost) == (7, [])


def test_an_entry_of_a_container_is_no_counter_of_a_loop():
    killed = RunRecord((reached(6, {}, 2, begin=True), reached(7, {"memo[1]": "1"}, 2)))
    again = RunRecord((reached(6, {"memo[1]": "1"}), reached(7, {"memo[1]": "2"})))

    assert cause(LOSS, lost=lost_values(killed, RunRecord(), again, ())) is not Likely.LOOP_BEGAN_ANEW


def test_values_that_no_two_runs_share_are_not_blamed():
    first = RunRecord(tuple(reached(number, {"started_at": "10"}) for number in (1, 2)))
    again = RunRecord(tuple(reached(number, {"started_at": "20"}) for number in (1, 2, 6, 7)))
    killed = RunRecord((reached(6, {"started_at": "30"}, 2, begin=True), reached(7, {"started_at": "30"}, 2)))

    assert lost_values(killed, first, again, ()) == []
    assert watched_steps(killed) == (1, 2, 6, 7)


# --- the record ---


@pytest.mark.parametrize(
    "line",
    [
        Begun(2, 12, "worker.torch.run.Run", "/usr/bin/python", ("/srv/train.py",)),
        step(3),
        Named(1, "lr", "keep it", left_out=True),
        Killed(1, 0, 12, "step-0000000012.a1"),
        ReachedValues(1, 3, True, {"model.beta": "0.5"}),
    ],
)
def test_a_line_is_read_back(line):
    assert decode_line(encode_line(line)) == line


@pytest.mark.parametrize("text", [b"", b'{"step":{"attempt":1', b'{"later":{}}', b"[1]", b'{"step":{"attempt":"x"}}'])
def test_a_line_that_is_not_whole_or_newer_is_none(text: bytes):
    assert decode_line(text) is None


# --- what can't be compared ---


def checkpoint(folder: Path, **contents: bytes) -> FinalCheckpoint:
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = tuple(
        FileRecord(name, len(content), f"xxh3_128:{content.hex():0>32}") for name, content in contents.items()
    )
    return FinalCheckpoint(folder, 20, Manifest("digits", 1, 20, 0.0, files, {}, {}))


def refuse(one: Path, other: Path) -> list[TensorDifference]:
    raise CannotCompare(f"{one.name} can't be loaded")


def test_a_file_that_pytorch_can_not_load_is_no_difference(tmp_path: Path):
    one, other = (checkpoint(tmp_path / name, **{TORCH_STATE: name.encode()}) for name in ("one", "other"))

    with pytest.raises(CannotCompare, match=r"torch\.pt can't be loaded"):
        differing_state(one, other, refuse)


def test_what_differs_besides_a_file_that_pytorch_can_not_load_is_said(tmp_path: Path):
    one, other = (
        checkpoint(tmp_path / name, **{TORCH_STATE: name.encode(), "notes.txt": name.encode()})
        for name in ("one", "other")
    )

    assert [difference.name for difference in differing_state(one, other, refuse)] == ["file notes.txt"]


@pytest.mark.integration
def test_an_interpreter_that_can_not_load_a_file_says_why(tmp_path: Path):
    begun = Begun(1, 0, "worker.torch.run.Run", sys.executable)
    compare = compare_torch_with(RunRecord((begun,)), ProvableJob("digits", ("python",), tmp_path))

    with pytest.raises(CannotCompare, match=r"PyTorch can.t compare torch\.pt of the two runs: .*torch"):
        compare(tmp_path / TORCH_STATE, tmp_path / "other.pt")
