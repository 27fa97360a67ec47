"""What an earlier daemon left: how an attempt ended that no daemon saw, and what leads to one that goes on."""

import os
import pwd
import socket
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import structlog

from supervisor.config import ProgramConfig, load_config
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.processes.credentials import look_up
from supervisor.protocol import layout
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import Done, Failed
from supervisor.runner.attempt.adopting import reconstruct_end
from supervisor.runner.attempt.program_io import ProgramIO
from supervisor.runner.attempt.starting import open_control_pipes
from tests.waiting import wait_until_async

ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.mark.parametrize("words", [[Done(1, 9), Failed(1, 4, "no")], [Failed(1, 4, "no"), Done(1, 9)]])
async def test_the_last_word_says_how_it_ended(tmp_path: Path, words: list[Done | Failed]) -> None:
    """The script's first run was done, and its second one failed: the job is not done."""
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\n[program:j]\ncommand=/bin/true\ncheckpoint_dir={tmp_path}/j\n")
    folder = layout.attempt_folder(tmp_path / "run", "j", 1)
    folder.mkdir(parents=True)
    (folder / layout.LAST_WORDS).write_bytes(b"".join(map(encode_message, words)))
    config = load_config(conf, os.environ).programs["j"]

    end = await reconstruct_end(config, 1, False, tmp_path / "run", CheckpointStore())

    assert (end.lost.done, end.lost.error) == ((True, None) if isinstance(words[-1], Done) else (False, "no"))
    assert end.words == words
    assert (folder / layout.LAST_WORDS).exists(), "until the ledger has that end"


_numbers = count()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ProgramConfig, ProgramConfig]]:
    """A program of whoever runs this, as the daemon before knew it, and as one whom no password database answers."""
    answers, asked, late = threading.Event(), pwd.getpwnam, f"late{next(_numbers)}"
    answers.set()

    def of_a_server(name: str) -> pwd.struct_passwd:
        if name == late:
            answers.wait(60)
        return asked(ME if name == late else name)

    monkeypatch.setattr(pwd, "getpwnam", of_a_server)
    conf, configs = tmp_path / "test.conf", []
    for user in (ME, late):
        conf.write_text(
            f"[supervisord]\nruntime_dir=/run/test\n[program:p]\ncommand=/bin/true\nuser={user}\nnotify=true\n"
        )
        configs.append(load_config(conf, {}).programs["p"])
    answers.clear()
    yield configs[0], configs[1]
    answers.set()


async def test_the_pipes_of_a_worker_are_opened_again_while_no_user_can_be_looked_up(
    tmp_path: Path, program: tuple[ProgramConfig, ProgramConfig]
) -> None:
    folder = tmp_path / "run" / "p" / "1"
    await look_up(ME)
    open_control_pipes(program[0], folder, 1, print, print).detach()

    open_control_pipes(program[1], folder, 1, print, print, is_there=True).close()


async def test_what_a_program_notifies_is_heard_again_while_no_user_can_be_looked_up(
    tmp_path: Path, program: tuple[ProgramConfig, ProgramConfig]
) -> None:
    said: list[int] = []
    before, now = (
        ProgramIO(tmp_path, config, 1, "mark", lambda number, _: said.append(number), structlog.get_logger())
        for config in program
    )
    await look_up(ME)
    os.close(before.create())
    before.close()

    now.reopen(os.getpid())

    path = now.notify_path
    assert path is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as program_end:
        program_end.sendto(b"READY=1", str(path))
        await wait_until_async(lambda: bool(said))
    now.close_and_remove()
