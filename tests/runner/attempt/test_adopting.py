"""How an attempt ended that no daemon saw, from what it left behind."""

import os
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.protocol import layout
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import Done, Failed
from supervisor.runner.attempt.adopting import reconstruct_end


@pytest.mark.parametrize("words", [[Done(1, 9), Failed(1, 4, "no")], [Failed(1, 4, "no"), Done(1, 9)]])
async def test_the_last_word_says_how_it_ended(tmp_path: Path, words: list[Done | Failed]) -> None:
    """The script's first run was done, and its second one failed: the job is not done."""
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\n[program:j]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/j\n")
    folder = layout.attempt_folder(tmp_path / "run", "j", 1)
    folder.mkdir(parents=True)
    (folder / layout.LAST_WORDS).write_bytes(b"".join(map(encode_message, words)))
    config = load_config(conf, os.environ).programs["j"]

    lost, unread, _ = await reconstruct_end(config, 1, False, tmp_path / "run", CheckpointStore())

    assert (lost.done, lost.error) == ((True, None) if isinstance(words[-1], Done) else (False, "no"))
    assert unread == words
    assert (folder / layout.LAST_WORDS).exists(), "until the ledger has that end"
