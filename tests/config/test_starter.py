"""supervisord --init: what it sees in a script, and a file that runs it."""

import os
import sys
from pathlib import Path

import pytest

from supervisor.config import Config, load_config
from supervisor.config.script_survey import ScriptError, ScriptKind, survey_script
from supervisor.config.starter import missing_worker, write_starter
from supervisor.daemon import main

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def started(path: Path, *arguments: str) -> tuple[Config, str]:
    """The configuration that is written for a script, and what is said."""
    target = path.parent / "supervisord.conf"
    said = write_starter(path, arguments, target, {})
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


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "supervisord.conf"
    target.write_text("mine")

    assert main(["-c", str(target), "--init", str(script(tmp_path, "print()"))]) == 71
    assert target.read_text() == "mine"
    assert "it exists already" in capsys.readouterr().err


def test_deep_folder_gets_a_socket_that_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
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
