"""Whether a job's command leads to the package `worker`: no false alarm for what can't be seen."""

from pathlib import Path

import pytest

from supervisor.config.first_file.command_survey import WorkerUse, survey_command
from supervisor.config.first_file.script_survey import ScriptError

USES = "import worker\nwith worker.Run(c) as run: pass\n"
YES, NO, UNKNOWN = WorkerUse.YES, WorkerUse.NO, WorkerUse.UNKNOWN


def files(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("texts", "use", "may_use_it"),
    [
        ({"train": USES}, YES, ()),
        ({"train": "import tensorflow as tf\nimport os, sys\nprint(1)"}, NO, ()),
        ({"train": "import loop\nloop.main()", "loop": USES}, YES, ()),
        ({"train": "from loop import main", "loop": "from deep import x", "deep": "from worker import Run"}, YES, ()),
        ({"train": "from pkg import loop", "pkg__init": "", "pkg__loop": USES}, YES, ()),
        ({"train": "from pkg.loop import main", "pkg__loop": "from . import inner", "inner": ""}, NO, ()),
        ({"train": "import loop", "loop": "import tensorflow"}, NO, ()),
        ({"train": "import numpy, ourlib.training"}, UNKNOWN, ("numpy", "ourlib")),
        ({"train": "import importlib\nimportlib.import_module('x')"}, UNKNOWN, ("importlib",)),
        ({"train": "import subprocess"}, UNKNOWN, ("subprocess",)),
        ({"train": "import os\nprint(os.environ['STEPKEEPER_LAUNCH'])"}, YES, ()),
        ({"train": "import loop", "loop": "def broken(:"}, NO, ()),
    ],
)
def test_a_script_and_what_lies_beside_it(tmp_path: Path, texts: dict[str, str], use: WorkerUse, may_use_it: tuple):
    files(tmp_path, **texts)

    survey = survey_command(["/usr/bin/python3", "-u", "train.py", "--epochs", "3"], tmp_path)

    assert (survey.use, survey.may_use_it) == (use, may_use_it)


@pytest.mark.parametrize(
    ("command", "use"),
    [
        (["bash", "-c", "source env && python train.py"], UNKNOWN),
        (["bash", "-c", "exec python good.py"], YES),
        (["torchrun", "--nproc-per-node=2", "train.py"], UNKNOWN),
        (["torchrun", "good.py"], YES),
        (["env", "X=1", "python", "good.py"], YES),
        (["python", "-m", "good"], YES),
        (["python", "-m", "train"], UNKNOWN),
        (["python", "-m", "somewhere.else"], UNKNOWN),
        (["/usr/bin/train"], UNKNOWN),
        (["python", "-c", "import train"], UNKNOWN),
        (["python", "gone.py"], UNKNOWN),
        (["bash", "-c", "unbalanced ' quote.py"], UNKNOWN),
    ],
)
def test_behind_a_wrapper_only_a_use_is_certain(tmp_path: Path, command: list[str], use: WorkerUse):
    files(tmp_path, good=USES, train="print(1)")

    assert survey_command(command, tmp_path).use is use


def test_a_script_that_cannot_be_read_is_an_error(tmp_path: Path):
    files(tmp_path, train="def broken(:")

    with pytest.raises(ScriptError, match="correct the script"):
        survey_command(["python", "train.py"], tmp_path)
