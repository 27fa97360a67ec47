"""Whatever reads a checkpoint of which each worker wrote its share: one that is whole, or of which a part is not."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from supervisor.ctl.main import main
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.tensorbundle import verify
from tests import forked
from tests.places import ROOT
from tests.system.harness import Daemon, job
from tests.system.page.browser import row, server
from tests.system.page.conftest import browser as browser
from tests.system.page.conftest import page as page
from tests.system.page.conftest import port as port
from worker import export

pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("two_replicas"),
]

SCRIPT = ROOT / "tests" / "worker" / "children" / "together.py"
STEPS = 20
START_S = 240.0  # of two workers, on a machine that does other work
PARTS = ("ckpt.data-00000-of-00002", "ckpt.data-00001-of-00002", "worker-1.npz")
DAMAGES = ("missing", "cut", "of another step")


@dataclass(frozen=True)
class Trained:
    """A job that two workers have trained. `exported`: what `export` answered while they trained."""

    folder: Path
    exported: dict[str, Any]

    @property
    def checkpoints(self) -> Path:
        return self.folder / "ckpt"

    @property
    def newest(self) -> Path:
        return self.checkpoints / str(selection.committed_checkpoints(self.checkpoints)[0])

    @property
    def older(self) -> Path:
        return self.checkpoints / str(selection.committed_checkpoints(self.checkpoints)[1])

    @property
    def store(self) -> Path:
        return self.folder / "store" / "pair"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "store" / "pair").mkdir(parents=True)
    section = (
        f"[program:pair]\ncommand={sys.executable} {SCRIPT} {folder} {STEPS}\ndirectory={ROOT}\n"
        f"checkpoint_dir={folder}/ckpt\nexport_dir={folder}/models\nmirror=file://{folder}/store\n"
        f"strategy=multiworker\nworkers=2\nsave_shards=always\ndeterministic=true\ncheckpoint_interval=7 steps\n"
        f'redirect_stderr=true\nenvironment=PYTHONPATH="{ROOT}",PAUSE="0.2"\n'
    )
    with Daemon(folder, section, scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until_step("pair", 2, START_S)
        exported = daemon.call("export", name="pair")
        daemon.until_state("pair", "SUCCEEDED", patience_s=START_S)
        daemon.until(lambda: daemon.status("pair")["job"]["mirror"]["newest_step"] == STEPS, "it is in the store")
    return Trained(folder, exported)


def spoil(part: Path, damage: str, other: Path) -> None:
    """Damages a part of a checkpoint. `other`: the same part of another step."""
    match damage:
        case "missing":
            part.unlink()
        case "cut":
            part.write_bytes(part.read_bytes()[:-1])
        case "of another step":
            shutil.copy(other, part)


def verified(capsys: pytest.CaptureFixture[str], place: object) -> tuple[int, list[dict[str, Any]]]:
    """What `supervisorctl checkpoints --verify` answers: its exit status, and the checkpoints."""
    status = main(["--json", "checkpoints", "--verify", str(place)])
    return status, json.loads(capsys.readouterr().out)["checkpoints"]


def test_export_while_they_train_and_at_the_end_hold_the_model_of_its_step(trained: Trained) -> None:
    assert export.verify(Path(trained.exported["path"]))["step"] == trained.exported["step"] >= 2
    reader = tf.train.load_checkpoint(str(trained.newest / "ckpt"))
    values = [reader.get_tensor(name) for name in reader.get_variable_to_dtype_map()]
    saved = {value.tobytes() for value in values if not isinstance(value, bytes)}  # a text is TensorFlow's object graph
    model = tf.saved_model.load(str(trained.folder / "models" / str(STEPS)))

    assert verify.verify_bundle(trained.newest / "ckpt").shards == 2
    # the seeds of a model's layers are kept beside its tensors
    variables = {variable.numpy().tobytes() for variable in model.variables if variable.dtype.is_floating}
    assert len(variables) >= 4
    assert variables <= saved


@pytest.mark.parametrize("place", ["{0.checkpoints}", "{0.newest}", "{0.newest}/ckpt", "file://{0.store}"])
def test_verify_proves_all_parts_of_it_and_counts_their_bytes(
    trained: Trained, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, checkpoints = verified(capsys, place.format(trained))

    files = [path for path in trained.newest.iterdir() if path.name not in (layout.MANIFEST, layout.FETCHED)]
    assert status == 0
    assert checkpoints[0]["name"].endswith(trained.newest.name)
    assert checkpoints[0]["size_bytes"] == sum(path.stat().st_size for path in files)
    assert checkpoints[0]["kind"] == "stepkeeper"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("where", ["folder", "prefix", "store"])
def test_verify_names_the_part_that_is_not_whole(
    tmp_path: Path, trained: Trained, where: str, part: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained.store if where == "store" else trained.checkpoints, tmp_path / "copy")
    (folder,) = (tmp_path / "copy").rglob(trained.newest.name)
    spoil(folder / part, damage, trained.older / part)
    place = {"folder": folder.parent, "prefix": folder / "ckpt", "store": f"file://{tmp_path}/copy"}[where]
    status, (newest, *others) = verified(capsys, place)

    assert status == 1
    assert newest["valid"] is False
    assert part in newest["reason"]
    assert all(checkpoint["valid"] for checkpoint in others)
    assert where == "prefix" or others


Refusal = Callable[[Path, Trained], tuple[Path, str]]


def _part(part: str, damage: str) -> Refusal:
    def refusal(copy: Path, trained: Trained) -> tuple[Path, str]:
        spoil(copy / part, damage, trained.older / part)
        return copy, part

    return refusal


def _prefix_beside_a_damaged_part(copy: Path, trained: Trained) -> tuple[Path, str]:
    spoil(copy / "worker-1.npz", "of another step", trained.older / "worker-1.npz")
    return copy / "ckpt", "worker-1.npz"


def _copy_under_another_name(copy: Path, trained: Trained) -> tuple[Path, str]:
    return copy.rename(copy.with_name("best")), f"says {trained.newest.name}: give it that name"


def _what_an_interrupted_save_left(copy: Path, _: Trained) -> tuple[Path, str]:
    (copy / layout.MANIFEST).unlink()
    return copy.rename(copy.with_name(f"{copy.name}.partial")), "an interrupted save left it"


def _one_nodes_part(copy: Path, _: Trained) -> tuple[Path, str]:
    (copy / PARTS[1]).unlink()
    return copy.rename(copy.with_name(f"{copy.name}.part")), "one node's part"


REFUSALS: dict[str, Refusal] = {
    **{f"{part} {damage}": _part(part, damage) for part in PARTS for damage in DAMAGES},
    "the prefix beside a damaged part": _prefix_beside_a_damaged_part,
    "a copy under another name": _copy_under_another_name,
    "what an interrupted save left": _what_an_interrupted_save_left,
    "one node's part": _one_nodes_part,
}


@pytest.mark.parametrize("case", REFUSALS)
def test_job_that_is_to_begin_from_a_damaged_one_of_another_folder_is_refused(
    tmp_path: Path, trained: Trained, case: str
) -> None:
    copy = Path(shutil.copytree(trained.newest, tmp_path / "old" / trained.newest.name))
    initial, reason = REFUSALS[case](copy, trained)
    with Daemon(tmp_path, job("next", tmp_path, f"initial_checkpoint={initial}")) as daemon:
        failed = daemon.until_state("next", "FAILED")
        attempts = daemon.call("history", name="next")["attempts"]

    assert reason in failed["description"]
    assert not attempts or attempts[0]["to_step"] in (None, 0)
    assert not list((tmp_path / "next").glob("step-*"))


@pytest.mark.parametrize("named", ["", "/ckpt"])
def test_another_job_begins_from_it_by_its_folder_or_its_prefix(tmp_path: Path, trained: Trained, named: str) -> None:
    """By one process: it has the place in the data, which is beside the tensors."""
    section = (
        f"[program:next]\ncommand={sys.executable} {SCRIPT} {tmp_path} {STEPS + 3}\ndirectory={ROOT}\n"
        f"checkpoint_dir={tmp_path}/ckpt\ninitial_checkpoint={trained.newest}{named}\nrestore_from_jobs=pair\n"
        f'strategy=multiworker\nworkers=2\ndeterministic=true\nstandby=off\nenvironment=PYTHONPATH="{ROOT}"\n'
    )
    with Daemon(tmp_path, section, scripts_have=forked.TENSORFLOW) as daemon:
        daemon.until_state("next", "SUCCEEDED", patience_s=START_S)
        (attempt,) = daemon.call("history", name="next")["attempts"]

    assert (attempt["restored"], attempt["from_step"]) == (trained.newest.name, STEPS)
    position = json.loads((tmp_path / "ckpt" / f"step-{STEPS + 3:010}.a1" / layout.STATE).read_bytes())["position"]
    assert position == {**position, "epoch": 3, "batch": (STEPS + 3) % 6}


def test_page_shows_the_size_of_all_parts(tmp_path: Path, trained: Trained, port: int, page: Any) -> None:
    shutil.copytree(trained.newest, tmp_path / "pair" / trained.newest.name)
    size = manifest.read_manifest(trained.newest).size_bytes
    with Daemon(tmp_path, server(port) + job("pair", tmp_path, "autostart=false")):
        page.goto(f"http://127.0.0.1:{port}/")
        row(page, "pair").get_by_role("link").first.click()
        shown = page.get_by_text("1 checkpoint, ")
        shown.wait_for()
        text = shown.inner_text()

    assert text == f"1 checkpoint, {size / 1024:.1f} KB"
