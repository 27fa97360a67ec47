"""DataLoaders of every kind resume exactly, and so do the loops in place of those that libraries have."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import peer
from supervisor.protocol.wire.launch import without_launch_variables
from tests import forked
from tests.worker.run.test_multiworker import CHILDREN, ROOT

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
OF_TORCH = (
    "weighted", "replaced", "subset sampler", "own generator", "subset", "batch sampler", "batches of subset",
    "own sampler", "buckets", "adaptive", "a list", "distributed", "no batches", "bulk",
)  # fmt: skip
STREAMS = (
    "stream", "stream of processes", "stream without batches", "positioned", "positioned, full batches",
    "positioned, in processes",
)  # fmt: skip
OF_LIBRARIES = (
    "accelerated", "accelerated, seedable", "accelerated, in order", "accelerated, weighted", "accelerated stream",
    "accelerated stream read again", "stateful", "stateful stream", "stateful stream of processes",
)  # fmt: skip


def read_in_parts(kinds: Sequence[str], packages: peer.Peer, folder: Path) -> tuple[dict[str, Any], str]:
    """What is read of each kind, and what was said on standard error."""
    return run_child("torch_loaders.py", kinds, packages, folder)


def run_child(child: str, arguments: Sequence[str], packages: peer.Peer, folder: Path) -> tuple[dict[str, Any], str]:
    """What a child prints, and its standard error."""
    try:
        python = peer.binaries(packages) / "python"
    except peer.NotInstalled as error:
        pytest.skip(str(error))
    environment = {**without_launch_variables(os.environ), "PYTHONPATH": str(ROOT)}
    command = [str(python), str(CHILDREN / child), str(folder), *arguments]
    done = forked.run(command, forked.TORCH, env=environment, cwd=ROOT, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(
    ("kinds", "packages"),
    [(OF_TORCH, peer.TORCH), (STREAMS, peer.TORCH), (OF_LIBRARIES, peer.LIBRARIES)],
    ids=["samplers", "streams", "libraries"],
)
def test_loader_of_any_kind_resumes_with_the_next_batch(
    kinds: Sequence[str], packages: peer.Peer, tmp_path: Path
) -> None:
    found, said = read_in_parts(kinds, packages, tmp_path)

    assert {kind: runs["parts"] == runs["whole"] for kind, runs in found.items()} == dict.fromkeys(kinds, True)
    for kind, runs in found.items():
        first, second = ([run[1] for run in runs["whole"] if run[0] == epoch] for epoch in (0, 1))
        assert first != second, f"{kind}: the epochs differ, else the comparison would prove less"
    assert "do not include" not in said, "the state of what is read is in the checkpoint"


def test_prepared_loader_knows_its_last_batch(tmp_path: Path) -> None:
    """What `accelerator.accumulate` needs to end its last group."""
    found, _ = read_in_parts(["accelerated ends"], peer.LIBRARIES, tmp_path)
    (runs,) = found.values()

    ends = [part[1] for part in runs["parts"] if part[0] != "tail"]
    assert ends == [False, False, False, False, True] * 3


def test_every_kind_of_the_child_is_tested() -> None:
    source = (CHILDREN / "torch_loaders.py").read_text()
    kinds = set(re.findall(r'^    "([^"]+)":', source, re.MULTILINE))

    assert kinds == {*OF_TORCH, *STREAMS, *OF_LIBRARIES, "accelerated ends"}


def test_loops_of_libraries_are_refused_in_their_words_and_what_is_to_be_written_is_exact(tmp_path: Path) -> None:
    found, said = run_child("torch_library_loops.py", [], peer.LIBRARIES, tmp_path)

    for name, text in found["texts"].items():
        library = "transformers.Trainer.train" if name.startswith("called") else "lightning.Trainer.fit"
        assert text.startswith(f"cannot resume {library} (torch_library_loops.py:"), name
        assert "write the loop in the script" in text and "run.batches(" in text
    for name, runs in found["loops"].items():
        assert runs["parts"] == runs["whole"], name
    assert "checkpoints do not include" not in said
    assert "cannot resume exactly" not in said, "what is to be written has nothing that is named"
