"""PyTorch tensors among the values of the loop: other references to them see the restored values, as with arrays."""

import subprocess

import pytest

from bench import peer
from tests.places import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_PROGRAM = """
import torch
from worker.state.plain_values import SavedValue
from worker.state.value_restorer import ValueRestorer

def restored(value, present):
    saved = SavedValue(value)
    return ValueRestorer(saved.arrays).restore_value(saved.json, present)

queue = torch.zeros(2, 3)
assert restored(torch.ones(2, 3), queue) is queue and queue.sum() == 6
transposed = torch.zeros(3, 2).t()
assert restored(torch.ones(3, 2).t(), transposed) is transposed and transposed.sum() == 6
weights = torch.zeros(2, requires_grad=True)
assert restored(torch.ones(2), weights) is weights and weights.sum() == 2 and weights.requires_grad
for other in (torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(1).expand(2), None, 0.0):
    made = restored(torch.ones(2), other)
    assert made is not other and made.tolist() == [1.0, 1.0], other
images = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
again = restored(images, torch.zeros(1, 2, 3, 4))
assert torch.equal(again, images) and again.is_contiguous(memory_format=torch.channels_last)
shadow = {"w": torch.zeros(2)}
kept = shadow["w"]
assert restored({"w": torch.ones(2)}, shadow) is shadow and kept.tolist() == [1.0, 1.0]
"""


def test_tensor_of_the_same_kind_is_filled_in_place() -> None:
    try:
        python = peer.binaries(peer.TORCH) / "python"
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [str(python), "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
