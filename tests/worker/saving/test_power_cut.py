"""A power cut at any instant leaves the old checkpoint or the new one, whole; once it is committed, the new one.

Of each kind of job that writes checkpoints, and of an export.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.protocol.checkpoints import manifest, removal
from supervisor.protocol.checkpoints import selection as checkpoints
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Go
from tests.worker.daemon_end import DaemonEnd
from tests.worker.power import Cut, Disk, Tree, write
from tests.worker.power_jobs import KINDS, Kind
from tests.worker.saving.test_durable_order import weight_in, weighted
from worker.export import export

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    made = Disk(root)
    yield made
    made.close()


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def newest(tree: Tree, folder: Path, kind: Kind) -> int:
    """The step of the checkpoint that a start after the cut would restore, with its values proven; 0 for none."""
    directory = write(tree, folder) / "jobs" / "count"
    selection = checkpoints.select_checkpoint(directory)
    assert not selection.rejected, "a name without its content is no loss, but it would look like one"
    if selection.path is None:
        return 0
    step = manifest.verify_checkpoint(selection.path).step
    assert kind.held(selection.path) == step
    removal.delete_partials(directory)
    return step


@pytest.fixture
def cuts(begin: Begin, disk: Disk, daemon: DaemonEnd, kind: Kind) -> list[Cut]:
    """What cuts during three saves, the folder's making and two deletions would leave; the last is after the end."""
    directory = disk.root / "jobs" / "count"
    launch = Launch(control=daemon.control(), checkpoint_dir=directory, checkpoint_keep=1)
    begin(launch)
    daemon.send(Go(1, restore=None))
    with pytest.MonkeyPatch.context() as patch:
        disk.watch(patch)
        with kind.begin(daemon, launch) as job:
            for _ in range(3):
                job.save()
        disk.cuts.append(disk.cut("end"))
    return disk.cuts


@pytest.mark.parametrize("model", ["synced", "names", "torn"])
def test_power_cut_before_any_system_call_leaves_the_old_or_the_new_whole(
    model: str, kind: Kind, cuts: list[Cut], tmp_path: Path
) -> None:
    left = [newest(getattr(cut, model), tmp_path / "after", kind) for cut in cuts]

    assert [step for step, _ in itertools.groupby(left)] == [0, 1, 2, 3]
    assert len(left) > 40


def test_committed_checkpoint_survives_whatever_follows(kind: Kind, cuts: list[Cut], tmp_path: Path) -> None:
    """Committed is what is said once its folder's name is synced: from the sync of the parent on."""
    committing = [
        number for number, cut in enumerate(cuts) if cut.before.startswith("rename") and ".partial" in cut.before
    ]

    assert len(committing) == 3
    for step, number in enumerate(committing, 1):
        assert newest(cuts[number].synced, tmp_path / "after", kind) == step - 1
        assert newest(cuts[number + 2].synced, tmp_path / "after", kind) == step, "after rename and the parent's sync"


@pytest.mark.parametrize("model", ["synced", "names", "torn"])
def test_power_cut_in_an_export_leaves_the_old_or_the_new_whole(model: str, disk: Disk, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk.watch(patch)
        for weight in (1.0, 2.0):
            export(weighted(weight), disk.root / "models" / "digits", 7)
        disk.cuts.append(disk.cut("end"))

    left = []
    for cut in disk.cuts:
        folder = write(getattr(cut, model), tmp_path / "after") / "models" / "digits" / "7"
        left.append(weight_in(folder) if folder.exists() else 0.0)
    assert [weight for weight, _ in itertools.groupby(left)] == [0.0, 1.0, 2.0]
