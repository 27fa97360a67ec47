"""supervisord --init: what it sees in a script, and a file that runs it."""

import os
import sys
from pathlib import Path

import pytest

from supervisor.config import Config, load_config
from supervisor.config.first_file.interpreters import missing_worker
from supervisor.config.first_file.script_survey import ScriptError, ScriptKind, survey_script
from supervisor.config.first_file.starter import write_starter
from supervisor.config.keys.program import ProgramConfig
from supervisor.daemon import main
from tests.system.harness import Daemon

EXAMPLES = Path(__file__).parents[3] / "examples"


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def started(path: Path, *arguments: str) -> tuple[Config, str]:
    """The configuration that is written for a script, and what is said."""
    target = path.parent / "supervisord.conf"
    said = write_starter([str(path), *arguments], target, {})
    return load_config(target, {}), said


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import worker\nwith worker.Run(c) as run: pass", ScriptKind.RUN),
        ("from worker import Run as R\nR(c)", ScriptKind.RUN),
        ("import worker.torch\nworker.torch.Run(model=m)", ScriptKind.TORCH),
        ("import worker.torch as wt\nwt.Run(model=m)", ScriptKind.TORCH),
        ("from worker import keras\nkeras.fit(m, x)", ScriptKind.KERAS),
        ("from worker.keras import fit\nfit(m, x)", ScriptKind.KERAS),
        ("from worker.tf1 import Run\nRun()", ScriptKind.TF1),
        ("from worker.files import FilesRun\nFilesRun({})", ScriptKind.FILES),
        ("import worker\ndef go():\n    return worker.Training(a)", ScriptKind.TRAINING),
        ("import os\nos.environ['STEPKEEPER_LAUNCH']", ScriptKind.PIPE),
        ("import worker\ndef go(path):\n    return worker.Training(a)", ScriptKind.PLAIN),
        ("from mine import worker\nworker.Run(c)", ScriptKind.PLAIN),
        ("from .worker import Run\nRun(c)", ScriptKind.PLAIN),
        ("class Run: pass\nRun()", ScriptKind.PLAIN),
    ],
)
def test_it_sees_how_a_script_trains(tmp_path: Path, text: str, kind: ScriptKind):
    assert survey_script(script(tmp_path, text)).kind is kind


@pytest.mark.parametrize("name", ["digits", "charlm", "fit", "torch_digits", "tf1_loop", "plain"])
def test_every_example_becomes_a_job(tmp_path: Path, name: str):
    config, said = started(script(tmp_path, (EXAMPLES / f"{name}.py").read_text(), f"{name}.py"))

    assert config.programs[name].job is not None
    assert config.programs[name].directory == tmp_path
    assert "status --watch" in said


def test_the_command_is_what_was_given(tmp_path: Path):
    arguments = ["--name", "100% ;x", "a #b", "it's", ""]

    config, _ = started(script(tmp_path, "print()"), *arguments)

    assert config.programs["train"].command == (sys.executable, "train.py", *arguments)
    assert config.programs["train"].job is None


def test_checkpoints_stay_where_the_script_has_them(tmp_path: Path):
    config, _ = started(script(tmp_path, "import worker\nworker.Run(c, directory='kept')"))

    job = config.programs["train"].job
    assert job is not None
    assert job.checkpoint_dir == tmp_path / "kept"


def test_arguments_that_are_missing_are_named(tmp_path: Path):
    text = "p.add_argument('data')\np.add_argument('-e', '--epochs', required=True)\np.add_argument('--seed')"
    path = script(tmp_path, text)

    assert survey_script(path).needed == ("data", "--epochs")
    assert survey_script(path, ["x", "-e", "3"]).needed == ()
    assert "requires data, --epochs: add it to 'command'" in started(path)[1]


@pytest.mark.integration
def test_an_environment_beside_the_script_runs_it(tmp_path: Path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)

    config, said = started(script(tmp_path, "import worker\nworker.Run(c)"))

    assert config.programs["train"].command[0] == str(python)
    assert missing_worker(python) in said


@pytest.mark.parametrize(
    ("text", "is_offered"),
    [
        ("import worker\nwith worker.Run(c) as run: pass", True),
        ("import worker.torch\nworker.torch.Run(model=m)", True),
        ("import os\nos.environ['STEPKEEPER_LAUNCH']", True),
        ("print()", False),
    ],
)
def test_it_offers_to_prove_a_job(tmp_path: Path, text: str, is_offered: bool):
    _, said = started(script(tmp_path, text))

    offered = [line for line in said.splitlines() if f"supervisord --prove {tmp_path / 'supervisord.conf'} " in line]
    assert len(offered) == is_offered
    assert all(line.endswith("# proves that a kill changes no bit") for line in offered)


def test_a_shell_script_is_run_by_the_shell(tmp_path: Path):
    path = script(tmp_path, "echo hello\n", "run.sh")

    assert started(path)[0].programs["run"].command == ("/bin/sh", str(path))


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # in one, its interpreter is asked what it has
    target = tmp_path / "supervisord.conf"
    target.write_text("mine")

    assert main(["-c", str(target), "--init", str(script(tmp_path, "print()"))]) == 71
    assert target.read_text() == "mine"
    assert "it exists already" in capsys.readouterr().err


def test_deep_folder_gets_a_socket_that_can_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # in one, its interpreter is asked what it has
    target = tmp_path / ("deep" * 25) / "supervisord.conf"
    target.parent.mkdir()

    assert main(["-c", str(target), "--init", str(script(tmp_path, "print()"))]) == 0
    assert "the path of a socket" not in capsys.readouterr().out
    (server,) = load_config(target, {}).unix_http_servers
    assert len(str(server.file)) < 100


def test_without_a_script_the_file_is_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "new" / "mine.conf"

    assert main(["-c", str(target), "--init"]) == 0
    assert load_config(target, {}).programs == {}
    assert f"supervisord -c {target}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train.py", "def (", "line 1: invalid syntax"),
        ("train.ipynb", "{}", "jupyter nbconvert"),
        ("train.py", "(" * 100_000, "correct the script"),
        ("train.py", "x\0y", "correct the script"),
        ("train.py", "-" * 90_000 + "1", "train.py"),
        ("train.py", "#" * (1 << 21), "larger than"),
    ],
)
def test_what_is_no_script_is_refused(tmp_path: Path, name: str, text: str, says: str):
    with pytest.raises(ScriptError, match=says):
        survey_script(script(tmp_path, text, name))


def test_a_pipe_and_a_missing_script_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.py")

    with pytest.raises(ScriptError, match="not a regular file"):
        survey_script(tmp_path / "pipe.py")
    with pytest.raises(ScriptError, match="No such file"):
        survey_script(tmp_path / "none.py")


# --- how a person starts it ---


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tree(folder: Path, **texts: str) -> None:
    """Files by their paths, with two underscores for a slash."""
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/').replace('/init/', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def program(here: Path, *words: str) -> tuple[ProgramConfig, str]:
    said = write_starter(words, here / "supervisord.conf", {})
    (made,) = load_config(here / "supervisord.conf", {}).programs.values()
    return made, said


def test_a_module_is_started_by_its_name_where_it_is_found(here: Path):
    tree(here, pkg__train="print()")

    made, _ = program(here, "-m", "pkg.train", "--epochs", "3")

    assert (made.name, made.directory) == ("train", here)
    assert made.command == (sys.executable, "-m", "pkg.train", "--epochs", "3")


def test_a_package_is_started_by_its_name(here: Path):
    tree(here, pkg____main__="print()")
    (here / "pkg").mkdir(exist_ok=True)
    (here / "pkg" / "__main__.py").write_text("from . import x")

    made, _ = program(here, "-m", "pkg")

    assert made.command == (sys.executable, "-m", "pkg") and made.directory == here


def test_a_module_that_is_not_there_is_refused_with_where_it_was_looked_for(here: Path):
    for words in (["-m", "pkg.none"], ["-m"], ["-m", "pkg..x"], ["-m", ""]):
        with pytest.raises(ScriptError, match=r"cannot find the module .* below"):
            write_starter(words, here / "supervisord.conf", {})
    assert not (here / "supervisord.conf").exists()


@pytest.mark.parametrize(
    ("text", "has_init", "name", "above"),
    [
        ("from . import x", False, "pkg.train", "src"),
        ("from . import x", True, "pkg.train", "src"),
        ("from .. import x", False, "src.pkg.train", "."),
    ],
)
def test_a_script_with_relative_imports_is_started_as_part_of_its_package(
    here: Path, text: str, has_init: bool, name: str, above: str
):
    tree(here, src__pkg__train=text)
    if has_init:
        (here / "src/pkg/__init__.py").touch()

    made, _ = program(here, "src/pkg/train.py", "7")

    assert made.command == (sys.executable, "-m", name, "7")
    assert made.directory == (here / above).resolve()


def test_modules_of_sibling_folders_are_put_into_the_path(here: Path):
    tree(here, scripts__train="import mine.net\nimport other, os, beside", mine____init__="", scripts__beside="")
    (here / "mine").mkdir(exist_ok=True)
    (here / "mine/__init__.py").touch()
    (here / "src").mkdir()
    (here / "src/other.py").touch()

    made, said = program(here, "scripts/train.py")

    assert made.environment["PYTHONPATH"] == f"{here}:{here}/src"
    assert made.command[1:] == ("train.py",) and "lacks" not in said


def test_a_script_that_reads_files_of_the_present_folder_is_started_there(here: Path):
    tree(here, scripts__train="open('data/x.npz')\nopen('beside.txt')")
    (here / "data").mkdir()
    (here / "data/x.npz").touch()

    made, _ = program(here, "scripts/train.py")

    assert (made.directory, made.command[1:]) == (here, ("scripts/train.py",))


def test_packages_that_the_interpreter_lacks_are_named_at_once(here: Path):
    text = "import no_such_package\nimport os, numpy\ntry:\n    import optional_one\nexcept ImportError: pass"
    tree(here, train=text)

    _, said = program(here, "train.py")

    assert f"{sys.executable} lacks no_such_package, which" in said


def test_a_second_script_is_said_to_be_an_argument(here: Path):
    tree(here, launcher="print()", train="print()")

    made, said = program(here, "launcher.py", "train.py", "no.py")

    assert made.command[1:] == ("launcher.py", "train.py", "no.py")
    assert "train.py became an argument of launcher.py" in said
    assert "no.py became" not in said


@pytest.mark.parametrize(
    ("text", "arguments", "needed"),
    [
        ("import sys\nopen(sys.argv[1])", [], "requires sys.argv[1]:"),
        ("from sys import argv\nx(argv[2])", ["a"], "requires sys.argv[2]:"),
        ("import sys\nopen(sys.argv[1])", ["a"], None),
        ("import sys\nif len(sys.argv) > 1: open(sys.argv[1])", [], None),
    ],
)
def test_positions_that_nobody_gives_are_named(here: Path, text: str, arguments: list[str], needed: str | None):
    tree(here, train=text)

    _, said = program(here, "train.py", *arguments)

    assert (needed in said) if needed else "requires" not in said


def test_an_exported_notebook_is_told_what_only_ipython_has(here: Path):
    tree(here, train="x = 1\nget_ipython().run_line_magic('matplotlib', 'inline')\n")

    assert "line 2 of train.py calls get_ipython()" in program(here, "train.py")[1]


def test_a_script_that_restores_a_state_itself_is_not_said_to_begin_anew(here: Path):
    tree(here, train="import tensorflow as tf\nm = tf.train.CheckpointManager(c, d, 3)\nc.restore(m.latest_checkpoint)")

    program(here, "train.py")

    text = (here / "supervisord.conf").read_text()
    assert "restores a state of its own (CheckpointManager in line 2)" in text and "begins anew" not in text


def test_a_shell_script_keeps_its_first_line(here: Path):
    (here / "run.sh").write_text("#!/usr/bin/env -S bash -e\necho\n")

    assert program(here, "run.sh")[0].command == ("/usr/bin/env", "-S bash -e", str(here / "run.sh"))


SHAPES = {
    "a script": ("train.py", {}),
    "a module": ("-m pkg.train", {"pkg__net": "SIZE = 3"}),
    "a package": ("-m pkg", {"pkg__net": "SIZE = 3"}),
    "relative imports": ("pkg/train.py", {"pkg__net": "SIZE = 3"}),
    "a sibling folder": ("scripts/train.py", {"mine__net": "SIZE = 3"}),
    "files of the present folder": ("scripts/train.py 3", {}),
    "an argument": ("train.py 3", {}),
    "a shell script": ("run.sh", {}),
}
HEAD = {
    "a module": "from pkg.net import SIZE\n",
    "a package": "from .net import SIZE\n",
    "relative imports": "from .net import SIZE\n",
    "a sibling folder": "from mine.net import SIZE\n",
    "files of the present folder": "SIZE = int(open('data/size.txt').read())\n",
    "an argument": "import sys\nSIZE = int(sys.argv[1])\n",
}
LOOP = """
import numpy as np
from worker.files import FilesRun


class Weights:
    versions, topology = {"weights": "1"}, {}

    def __init__(self):
        self.value = np.zeros(SIZE)

    def write(self, folder):
        np.save(folder / "weights.npy", self.value)

    def read(self, folder):
        self.value = np.load(folder / "weights.npy")


weights = Weights()
with FilesRun(weights, total_steps=6) as run:
    while not run.reached:
        weights.value += run.step
        run.step_done(epoch=0, batch=run.step + 1, loss=float(run.step))
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_of_script_trains_as_it_is_written(here: Path, shape: str):
    typed, texts = SHAPES[shape]
    tree(here, **texts)
    (here / "data").mkdir()
    (here / "data/size.txt").write_text("3")
    words = typed.split()
    files = {"a module": "pkg/train.py", "a package": "pkg/__main__.py", "a shell script": "train.py"}
    file = files.get(shape, words[0])
    (here / file).parent.mkdir(exist_ok=True)
    (here / file).write_text(HEAD.get(shape, "SIZE = 3\n") + LOOP)
    (here / "run.sh").write_text(f"#!/bin/bash\n[[ 1 ]] && exec {sys.executable} train.py\n")
    write_starter(words, here / "own.conf", {})
    sections = (here / "own.conf").read_text().partition("[program:")

    with Daemon(here, sections[1] + sections[2]) as daemon:
        name = sections[2].partition("]")[0]
        ended = daemon.until_state(name, "SUCCEEDED", "EXITED", "FAILED", patience_s=60)

        assert ended["state"] == "SUCCEEDED", ended


def test_a_script_that_trains_in_a_module_beside_it_is_a_job(tmp_path: Path):
    script(tmp_path, "import worker\ndef main():\n    with worker.Run(c) as run: pass", "trainer.py")

    config, said = started(script(tmp_path, "from trainer import main\nmain()", "main.py"))

    assert config.programs["main"].job is not None
    assert "the training job 'main'" in said


def test_an_option_behind_init_is_no_script(tmp_path: Path):
    with pytest.raises(ScriptError, match=r"cannot use '-c' as a script: .*supervisord -c FILE --init train.py"):
        write_starter(["-c", "x.conf", "train.py"], tmp_path / "supervisord.conf", {})
