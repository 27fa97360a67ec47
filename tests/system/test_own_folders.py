"""Nodes of a gang have disks of their own, and a mirror: whoever dies at whatever moment, all go on from one checkpoint
that is whole in the mirror, with the same bits."""

import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from supervisor.protocol import layout
from supervisor.protocol.allocation import StepExit
from supervisor.protocol.checkpoints.manifest import verify_checkpoint
from supervisor.protocol.mirror.folder_epochs import encode_fetched
from tests.mirror.faulty_proxy import Fault, FaultyProxy, Moment
from tests.mirror.stores import ObjectStore
from tests.system.own_folders import INTERVAL, PATIENCE_S, STEPS, Nodes
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.tensorflow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    """A gang that has trained to its end without any disturbance."""
    nodes = Nodes(tmp_path_factory.mktemp("own") / "undisturbed")
    nodes.run_to_end()
    return nodes


def test_checkpoint_is_in_the_mirror_alone_with_the_files_of_all_nodes(undisturbed: Nodes) -> None:
    remote = undisturbed.folder / "store" / "train" / "e0001" / f"step-{STEPS:010}.a1"

    assert undisturbed.committed() == [STEPS, 35, 28, 21, 14]
    data = [f"ckpt.data-0000{rank}-of-00002" for rank in (0, 1)]
    assert {path.name for path in remote.iterdir()} >= {*data, "ckpt.index", "state.json", "worker-1.npz"}
    verify_checkpoint(remote)
    for rank, file in enumerate(data):
        assert undisturbed.copies(rank) == []
        (part,) = undisturbed.parts(rank)
        assert part == f"{remote.name}{layout.PART}"
        names = {path.name for path in (undisturbed.disk(rank) / part).iterdir()}
        assert {name for name in names if name.startswith("ckpt.data")} == {file}


@pytest.mark.nightly  # test_killed_in_every_phase_of_a_commit_all_begin_from_one_whole_checkpoint kills all of them
def test_nodes_that_lose_workers_daemons_and_disks_end_with_the_same_bits(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = Nodes(tmp_path / "gang", pause=0.2)
    with nodes.running() as pods:
        assert nodes.until_begun() == 0
        wait_until(lambda: nodes.committed()[:1] >= [14], "two checkpoints", PATIENCE_S, details=nodes.said)
        nodes.kill_worker(1)  # a worker alone: no daemon ends
        assert nodes.until_begun(2) >= 14
        wait_until(lambda: nodes.committed()[0] >= 21, "it has trained on", PATIENCE_S, details=nodes.said)
        nodes.kill_worker(0)
        assert nodes.until_begun(3) >= 21
        pods[1].kill()
        assert [pod.wait(PATIENCE_S) for pod in pods] == [StepExit.AGAIN, -signal.SIGKILL]
    nodes.lose_disk(1)  # another node has its place
    with nodes.running() as pods:
        assert nodes.until_begun() >= 21
        assert nodes.copies(1) == nodes.copies(0)[-1:]
        pods[0].kill()
        assert [pod.wait(PATIENCE_S) for pod in pods] == [-signal.SIGKILL, StepExit.AGAIN]
    nodes.lose_disk(0)
    nodes.pause = 0.0
    nodes.run_to_end()

    assert nodes.ends() == undisturbed.ends()
    assert nodes.committed()[0] == STEPS


def test_nodes_whose_files_differ_train_nothing_and_say_why(tmp_path: Path) -> None:
    """Else one would wait until startup_timeout for what the other never says."""
    nodes = Nodes(tmp_path)
    nodes.sharing = {1}
    with nodes.running() as pods:
        assert {pod.wait(PATIENCE_S) for pod in pods} == {StepExit.FAILED, StepExit.AGAIN}, nodes.said()
        (over,) = nodes.log(0, "gang.over")

    assert over["why"].startswith("cannot train: checkpoint_dir_shared is not false in the configuration of rank 1")


def test_node_with_an_older_or_another_checkpoint_of_its_own_begins_from_the_chiefs(
    tmp_path: Path, undisturbed: Nodes
) -> None:
    nodes = Nodes(tmp_path / "gang", pause=0.2, steps=2 * STEPS)
    shutil.copytree(undisturbed.folder / "store", nodes.folder / "store", dirs_exist_ok=True)
    newest, *_, oldest = nodes.committed()
    (stored,) = (nodes.folder / "store" / "train").glob(f"e*/step-{newest:010}.*")
    (old,) = (nodes.folder / "store" / "train").glob(f"e*/step-{oldest:010}.*")
    other = nodes.disk(1) / stored.name
    # a disk that comes back from long ago, and a checkpoint with the newest one's name, of other content
    for copy in (nodes.disk(0) / old.name, nodes.disk(1) / old.name, other):
        shutil.copytree(old, copy)
        (copy / layout.FETCHED).write_bytes(encode_fetched(1))
    with nodes.running():
        assert nodes.until_begun() == newest

        assert nodes.copies(1) == nodes.copies(0)[-1:] == [stored.name]
        assert [path.name for path in (nodes.disk(1) / "quarantine").iterdir()] == [other.name]


@pytest.mark.nightly  # the next one's takes over from a node that leaves; test_jobset.py kills nodes with a spare one
def test_spare_node_with_an_empty_folder_takes_over(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = Nodes(tmp_path / "gang", count=3, pause=0.3)
    nodes.keys += "nodes=2\n"
    nodes.standby = "auto"
    with nodes.running() as pods:
        wait_until(lambda: all(nodes.begun()[:2]), "two train", PATIENCE_S, details=nodes.said)
        wait_until(lambda: nodes.committed()[:1] >= [7], "a checkpoint", PATIENCE_S, details=nodes.said)
        pods[1].kill()
        counts = [2, 1, 1]
        wait_until(lambda: list(map(len, nodes.begun())) == counts, "the spare one trains", PATIENCE_S, nodes.said)
        first = nodes.begun()[2][-1][1]
        assert first == nodes.begun()[0][-1][1] >= 7
        assert nodes.copies(2) == nodes.copies(0)[-1:]
        assert [pods[0].wait(PATIENCE_S), pods[2].wait(PATIENCE_S)] == [0, 0], nodes.said()

    assert nodes.ends()[:2] == undisturbed.ends()
    assert nodes.committed()[0] == STEPS


def test_node_that_gets_a_notice_leaves_once_its_part_is_in_the_mirror(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = Nodes(tmp_path / "gang", count=3, pause=1.0)
    nodes.keys += "nodes=2\n"
    nodes.standby = "auto"
    nodes.notices = "file"
    with nodes.running() as pods:
        wait_until(lambda: all(nodes.begun()[:2]), "two train", PATIENCE_S, details=nodes.said)
        wait_until(lambda: nodes.committed()[:1] >= [7], "a checkpoint", PATIENCE_S, details=nodes.said)
        nodes.give_notice(1, in_s=12)
        wait_until(lambda: nodes.log(1, "gang.left"), "it has left", PATIENCE_S, details=nodes.said)
        saved = nodes.committed()[0]
        counts = [2, 1, 1]
        wait_until(lambda: list(map(len, nodes.begun())) == counts, "the spare one trains", PATIENCE_S, nodes.said)
        assert [begun[-1][1] for begun in nodes.begun()] == [saved, 0, saved], "nothing was lost"
        assert nodes.copies(2) == nodes.copies(0)[-1:], "its folder was empty"
        assert [pods[0].wait(PATIENCE_S), pods[2].wait(PATIENCE_S)] == [0, 0], nodes.said()

    assert nodes.ends()[:2] == undisturbed.ends()


@pytest.mark.nightly  # as the next one, whose chief sees nothing itself
def test_training_that_diverges_goes_back_to_one_step_on_all_nodes(tmp_path: Path, undisturbed: Nodes) -> None:
    """To one that neither node has on its disk: both have trained on since."""
    nodes = Nodes(tmp_path / "gang", pause=0.2)
    nodes.keys += "on_nan=rollback\n"
    nodes.environments = [{"NAN_AT": "22"}] * 2
    with nodes.running() as pods:
        assert nodes.until_begun(2) == 14
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0], nodes.said()

    assert nodes.ends() == undisturbed.ends()
    assert nodes.committed()[:4] == [STEPS, 35, 28, 21]


def test_divergence_that_only_another_rank_sees_takes_all_nodes_back(tmp_path: Path, undisturbed: Nodes) -> None:
    """The chief has committed a step after the bad one by then, and its own loss is as it should be."""
    nodes = Nodes(tmp_path / "gang", pause=0.2)
    nodes.keys += "on_nan=rollback\n"
    nodes.environments = [{}, {"NAN_AT": "22"}]
    with nodes.running() as pods:
        assert nodes.until_begun(2) == 14
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0], nodes.said()

    assert nodes.ends() == undisturbed.ends()
    assert nodes.committed()[:4] == [STEPS, 35, 28, 21]


@dataclass(frozen=True)
class Kill:
    """`node`: at whose request to the store; `request`: which, where SAVE stands for the name of a save; `victim`:
    `worker` or `pod`, and of which node. `goes_on`: the request reaches the store all the same."""

    node: int
    request: str
    moment: Moment
    victim: tuple[str, int]
    goes_on: bool = False


MANIFEST = r"PUT \S*/SAVE/MANIFEST\.json"
KILLS = {
    "a worker, before its node's part is uploaded": Kill(
        1, r"P\w+ \S*/SAVE/ckpt\.data-00001", Moment.BEFORE, ("worker", 1)
    ),
    "a daemon, before its part is uploaded": Kill(1, r"P\w+ \S*/SAVE/ckpt\.data-00001", Moment.BEFORE, ("pod", 1)),
    "a daemon, once its part is there and before it reports": Kill(
        1, r"HEAD \S*/SAVE/worker-1\.npz", Moment.AFTER, ("pod", 1)
    ),
    "the chief's worker, while parts are uploaded": Kill(
        0, r"P\w+ \S*/SAVE/ckpt\.data-00000", Moment.BEFORE, ("worker", 0), goes_on=True
    ),
    "the chief's daemon, before its part is uploaded": Kill(
        0, r"P\w+ \S*/SAVE/ckpt\.data-00000", Moment.BEFORE, ("pod", 0)
    ),
    "the chief's daemon, before the manifest": Kill(0, MANIFEST, Moment.BEFORE, ("pod", 0)),
    "the chief's daemon, after the manifest": Kill(0, MANIFEST, Moment.AFTER, ("pod", 0)),
    "the chief's worker, as the manifest is on its way": Kill(0, MANIFEST, Moment.BEFORE, ("worker", 0), goes_on=True),
    "another worker, as the manifest is on its way": Kill(0, MANIFEST, Moment.BEFORE, ("worker", 1), goes_on=True),
    "the chief's worker, after the manifest": Kill(0, MANIFEST, Moment.AFTER, ("worker", 0), goes_on=True),
}
SOME = (
    "a worker, before its node's part is uploaded",
    "the chief's daemon, before the manifest",
    "a daemon, once its part is there and before it reports",
    "the chief's worker, while parts are uploaded",
)
"""Those of `make test`: each node loses its worker and its daemon."""


@pytest.fixture
def proxies(s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FaultyProxy]]:
    """Each node's way to the store."""
    for name, value in s3_store.environment.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        yield [stack.enter_context(FaultyProxy(s3_store.endpoint)) for _ in range(2)]


def strike(nodes: Nodes, pods: list[subprocess.Popen[bytes]], proxy: FaultyProxy, kill: Kill, step: int) -> None:
    """Kills the victim at its moment in the save of that step."""
    request = kill.request.replace("SAVE", rf"step-{step:010}[^/]*")
    is_done = threading.Event()

    def act() -> None:
        what, rank = kill.victim
        if what == "pod":
            pods[rank].kill()
        else:
            nodes.kill_worker(rank)
        is_done.set()

    proxy.fault = Fault(1, kill.moment, request, action=act, goes_on=kill.goes_on)
    wait_until(is_done.is_set, request, PATIENCE_S, details=nodes.said)
    proxy.fault = None


@pytest.mark.parametrize(
    ("names", "lose_disks"),
    [
        (SOME, (0,)),
        *(pytest.param(tuple(KILLS), ranks, marks=pytest.mark.nightly) for ranks in ((), (0, 1))),
    ],
    ids=["some", "all", "all, and disks"],
)
def test_killed_in_every_phase_of_a_commit_all_begin_from_one_whole_checkpoint(
    tmp_path: Path,
    s3_store: ObjectStore,
    proxies: list[FaultyProxy],
    undisturbed: Nodes,
    names: tuple[str, ...],
    lose_disks: tuple[int, ...],
) -> None:
    """`lose_disks`: the nodes whose place one with an empty folder takes when their daemon is killed."""
    steps, calm = STEPS, undisturbed
    if names != SOME:
        steps = 2 * INTERVAL * (len(names) + 1)
        calm = Nodes(tmp_path / "calm", steps=steps)
        calm.run_to_end()
    nodes = Nodes(tmp_path / "gang", pause=0.1, steps=steps, store=s3_store.url)
    nodes.environments = [s3_store.behind(proxy.endpoint).environment for proxy in proxies]
    waiting, newest = list(names), 0
    last = (steps - 1) // INTERVAL * INTERVAL  # a killed daemon's upload may have been tried again, and be in the store
    empty: int | None = None
    while waiting:
        with nodes.running() as pods:
            begins = 1
            while waiting:
                first = nodes.until_begun(begins)
                assert first >= newest and first in (0, *nodes.committed()), nodes.said()
                assert empty is None or nodes.copies(empty) == nodes.copies(1 - empty)[-1:]
                name = waiting[0]
                kill, empty = KILLS[name], None
                what, rank = kill.victim
                step = min(first + 2 * INTERVAL, last)  # which begins after a commit
                strike(nodes, pods, proxies[kill.node], kill, step)
                waiting.remove(name)
                newest = nodes.committed()[0]
                if what == "pod":
                    statuses = [pod.wait(PATIENCE_S) for pod in pods]
                    assert statuses[rank] == -signal.SIGKILL, (name, statuses)
                    assert statuses[1 - rank] == StepExit.AGAIN, (name, statuses)
                    break
                begins += 1
        if what == "pod" and rank in lose_disks:
            nodes.lose_disk(rank)
            empty = rank
    nodes.pause = 0.0
    nodes.run_to_end()

    assert nodes.ends() == calm.ends()
    assert nodes.committed()[0] == steps


@pytest.mark.nightly
def test_store_that_is_away_for_long_costs_a_save_and_no_step(tmp_path: Path, undisturbed: Nodes) -> None:
    nodes = Nodes(tmp_path / "gang", pause=0.5)
    store, away = nodes.folder / "store", nodes.folder / "away"
    with nodes.running() as pods:
        nodes.until_begun()
        wait_until(nodes.committed, "a commit", PATIENCE_S, details=nodes.said)
        store.rename(away)
        wait_until(lambda: "earlier checkpoints are untouched" in nodes.said(), "a save fails", PATIENCE_S)
        assert all(pod.poll() is None for pod in pods)
        assert [len(begun) for begun in nodes.begun()] == [1, 1], "nobody begins again"
        away.rename(store)
        assert [pod.wait(PATIENCE_S) for pod in pods] == [0, 0], nodes.said()

    assert nodes.ends() == undisturbed.ends()
    assert nodes.committed()[0] == STEPS
