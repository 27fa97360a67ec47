"""What is found of a script's imports without running it: only what it would import before any effect, in its order."""

import sys
from pathlib import Path

import pytest

from worker.process.import_survey import Survey, survey


def read(tmp_path: Path, script: str, **beside: str) -> Survey:
    (tmp_path / "train.py").write_text(script)
    for name, content in beside.items():
        path = tmp_path / f"{name.replace('__', '/', 1) if '__' in name else name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return survey(tmp_path / "train.py", [str(tmp_path), *sys.path])


def modules(found: Survey) -> list[str]:
    return [each.module for each in found.imports]


def test_imports_are_found_in_their_order_through_modules_beside_the_script(tmp_path: Path):
    found = read(
        tmp_path,
        '"""Trains."""\nfrom __future__ import annotations\nimport sys, tqdm\nimport model\nimport tensorflow as tf\n'
        "import worker\nRATE = 1e-3\nclass A(tf.Module):\n    n = 1\n    def f(self, x=RATE): pass\n"
        'if __name__ == "__main__":\n    worker.Run(tf.keras.Model())\n',
        model="import numpy.linalg\nfrom parts import blocks\n",
        parts____init__="from . import other\nif __name__ == '__main__':\n    raise SystemExit\n",
        parts__blocks="from scipy import signal\n",
        parts__other="import h5py\n",
    )

    assert modules(found) == ["numpy.linalg", "h5py", "scipy", "tensorflow", "worker"]
    assert found.imports[2].from_names == ("signal",)
    assert found.ends_at == "train.py:11: if __name__ == '__main__':"
    assert found.imports_worker and found.worker_names == {"Run"} and found.uses_keras and found.is_settled


@pytest.mark.parametrize(
    "effect",
    [
        'os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"',
        "os.environ |= {}",
        "print()",
        "x = open('f')",
        "sys.path.insert(0, '..')",
        "import mpi4py",
        "import comet_ml.start",
        "from . import sibling",
        "import not_there",
        "def f(x=print()): pass",
        "strategy = worker.strategy(print())",
        "@register\ndef f(): pass",
        "class A(metaclass=B): pass",
        "class A:\n    print()",
        "x = [print(n) for n in y]",
        "x: f() = 1",
        "for n in range(3): pass",
        "del x",
        "with a: pass",
        "import sets_environment",
        "from data import sets_environment",
        "x = 1 +",
    ],
)
def test_nothing_is_imported_that_comes_after_an_effect(tmp_path: Path, effect: str):
    found = read(
        tmp_path,
        f"import os, sys\nimport numpy\n{effect}\nimport tensorflow\nimport worker\n",
        sets_environment="import os\nos.environ['A'] = 'b'\n",
        data__sets_environment="import os\nos.environ['A'] = 'b'\n",
    )

    assert modules(found) == ([] if effect == "x = 1 +" else ["numpy"])
    assert found.ends_at is not None


@pytest.mark.parametrize(
    "later",
    [
        "def main():\n    import os\n    os.environ['A'] = 'b'",
        "from os import environ\nenviron |= {}",
        "main(os.environ)",
        "given = os.environ",
        "os.environ.setdefault('A', 'b')",
        "del os.environ['A']",
        "def main():\n    import lazily",
        "def main():\n    import comet_ml",
        "main(keras.set_backend)",
    ],
)
def test_what_may_change_the_environment_later_is_noticed(tmp_path: Path, later: str):
    found = read(tmp_path, f"import tensorflow\n{later}\n", lazily="import os\n")

    assert modules(found) == ["tensorflow"] and not found.is_settled


def test_a_script_may_take_its_strategy_and_read_its_environment_before_it_imports(tmp_path: Path):
    found = read(
        tmp_path,
        "import os, worker\nfrom pathlib import Path\nROOT = Path(__file__).resolve().parent\n"
        "N = int(os.environ.get('N', '3')) + int(os.environ['M'])\nstrategy = worker.strategy(replicas=N)\n"
        "import tensorflow as tf\nwith worker.Run(tf.Module()) as run:\n    import numpy\n",
    )

    assert [(each.module, each.from_names) for each in found.imports] == [
        ("worker", ()),
        ("worker", ("strategy",)),
        ("tensorflow", ()),
        ("worker", ("Run",)),
    ]
    assert found.is_settled and "with worker.Run" in str(found.ends_at)


def test_a_module_beside_the_script_is_read_and_never_taken_for_the_package_of_its_name(tmp_path: Path):
    found = read(tmp_path, "import numpy\nimport random\nimport worker\n", numpy="import scipy\n", random="print()\n")

    assert modules(found) == ["scipy"]
    assert found.ends_at == "random.py:1: print()"


def test_hostile_sources_end_the_reading(tmp_path: Path):
    deep, large = "x = " + "-" * 100_000 + "1", "#" * (1 << 21)

    assert read(tmp_path, f"import numpy\nimport a\n{deep}\n").imports == []
    assert modules(read(tmp_path, "import numpy\nimport a\nimport scipy", a=large)) == ["numpy"]
    assert set(modules(read(tmp_path, "import numpy\nimport a\nimport scipy", a="import train, a\n"))) == {
        "numpy",
        "scipy",
    }
