"""Two states of PyTorch's that a proof compares, in a process that has not imported the script."""

import json
import subprocess
from pathlib import Path

import pytest

from bench import peer
from tests.places import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_SCRIPT = """
import collections, enum, sys, torch
class Phase(enum.Enum):
    WARM, HOT = 1, 2
Best = collections.namedtuple("Best", "step loss")
text = "x" * 40
torch.save({"phase": Phase.WARM, "best": Best(3, 0.5), "a": text, "b": text}, sys.argv[1])
torch.save({"phase": Phase.WARM, "best": Best(3, 0.5), "a": text, "b": "".join(list(text))}, sys.argv[2])
torch.save({"phase": Phase.HOT, "best": Best(3, 0.25), "a": text, "b": text}, sys.argv[3])
"""


def test_values_of_the_scripts_own_classes_are_compared(tmp_path: Path) -> None:
    try:
        python = str(peer.binaries(peer.TORCH) / "python")
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    one, same, other = (str(tmp_path / name) for name in ("one.pt", "same.pt", "other.pt"))
    subprocess.run([python, "-c", _SCRIPT, one, same, other], timeout=120, check=True)

    def differing(with_: str) -> list[list[str]]:
        command = [python, "-m", "worker.torch.compare_states", one, with_]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found: list[list[str]] = json.loads(done.stdout)
        return found

    assert Path(one).read_bytes() != Path(same).read_bytes()
    assert differing(same) == []
    assert differing(other) == [["best.2", "0.5", "0.25"], ["phase.1", "1", "2"]]
