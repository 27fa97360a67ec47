"""Real checkpoints without TensorFlow: what verification sees is files, and these are files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.manifest import Manifest

FILES = {"ckpt.index": b"index" * 100, "ckpt.data-00000-of-00001": bytes(range(256)) * 32, layout.STATE: b"{}"}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    """Commits a checkpoint of a step (and attempt) in `tmp_path`, and gives its directory."""

    def commit(step: int, attempt: int = 1, job: str = "digits") -> Path:
        name = layout.CheckpointName(step, attempt)
        partial = tmp_path / name.partial
        partial.mkdir()
        for file, content in FILES.items():
            (partial / file).write_bytes(content)
        records = manifest.record_files(partial, tuple(FILES))
        whole = Manifest(job, attempt, step, 1.7e9 + step, records, metrics={"loss": 1.0 / step})
        durable.write_file(partial / layout.MANIFEST, whole.to_bytes())
        durable.commit_folder(partial, tmp_path / str(name), FILES)
        return tmp_path / str(name)

    return commit
