"""The reason of an exit quotes the last line that the process wrote to standard error."""

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from supervisor.config import load_config
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.logs.files.positions import LogPosition
from supervisor.runner.attempt.last_output import read_end
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from tests.waiting import wait_until_async

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy


async def reason_of(
    tmp_path: Path, services: Services, script: str, keys: str = "", *, waits_for_logger: bool = True
) -> str:
    """The reason of a program that runs this Python script once."""
    path, source = tmp_path / "test.conf", tmp_path / "script.py"
    source.write_text(script)
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\nchildlogdir={tmp_path}\n"
        f"[program:main]\ncommand={sys.executable} {source}\nautorestart=false\nstartsecs=0\nexitcodes=0\n{keys}\n"
    )
    if waits_for_logger:
        await logger_runs(tmp_path, services)
    runner = Runner(load_config(path, os.environ).programs["main"], services)
    runner.takeover.advance(TakeoverStage.STARTABLE)
    runner.post(events.StartRequested())
    ended = (State.EXITED, State.FAILED, State.SUCCEEDED, State.BACKOFF)
    await asyncio.wait_for(runner.wait_until(lambda: runner.state in ended or None), PATIENCE_S)
    reason = runner.reason or ""
    await asyncio.wait_for(retire(runner, "shutdown"), PATIENCE_S)
    return reason


async def logger_runs(tmp_path: Path, services: Services) -> None:
    """Returns once the logger, which starts with the first pipe, has written something."""
    (tmp_path / "state").mkdir(exist_ok=True)
    log = tmp_path / "first.log"
    pipe = services.logs.open_pipe(log, 0, 0)
    os.write(pipe, b"first\n")
    os.close(pipe)
    await wait_until_async(lambda: log.exists() and log.stat().st_size > 0, "the logger writes")


async def test_an_uncaught_exception_is_quoted(tmp_path: Path, services: Services):
    reason = await reason_of(tmp_path, services, "import no_such_module")

    assert reason == "exit status 1: ModuleNotFoundError: No module named 'no_such_module'"


async def test_an_exit_while_the_logger_starts_is_quoted(tmp_path: Path, services: Services):
    (tmp_path / "state").mkdir()

    reason = await reason_of(tmp_path, services, "import sys; sys.exit('early')", waits_for_logger=False)

    assert reason == "exit status 1: early"


async def test_a_job_that_never_reaches_its_run_is_quoted(tmp_path: Path, services: Services):
    reason = await reason_of(
        tmp_path, services, "import no_such_module", f"checkpoint_dir={tmp_path}/checkpoints\nstartretries=0"
    )

    assert "exit status 1: ModuleNotFoundError: No module named 'no_such_module'; it exited before it reached" in reason


async def test_a_job_whose_interpreter_lacks_stepkeeper_gets_the_command(tmp_path: Path, services: Services):
    script = "import sys; sys.exit(\"ModuleNotFoundError: No module named 'worker'\")"

    reason = await reason_of(tmp_path, services, script, f"checkpoint_dir={tmp_path}/checkpoints\nstartretries=0")

    assert f"installed where the job runs: {sys.executable} -m pip install " in reason


async def test_the_combined_log_is_read_where_stderr_is_redirected(tmp_path: Path, services: Services):
    script = "import sys; print('out', flush=True); sys.exit('no GPU found')"

    assert await reason_of(tmp_path, services, script, "redirect_stderr=true") == "exit status 1: no GPU found"


@pytest.mark.parametrize("keys", ["stderr_logfile=NONE", "stderr_logfile=NONE\nstderr_syslog=true"])
async def test_without_a_file_nothing_is_quoted(tmp_path: Path, services: Services, keys: str):
    assert await reason_of(tmp_path, services, "import sys; sys.exit('lost')", keys) == "exit status 1"


async def test_lines_of_an_earlier_attempt_are_not_quoted(tmp_path: Path, services: Services):
    log = tmp_path / "main.err"
    log.write_text("an old error\n")
    os.utime(log, (0.0, 0.0))

    assert await reason_of(tmp_path, services, "import os; os._exit(3)", f"stderr_logfile={log}") == "exit status 3"


async def test_success_quotes_nothing(tmp_path: Path, services: Services):
    assert await reason_of(tmp_path, services, "import sys; print('a warning', file=sys.stderr)") == ""


async def test_a_quoted_line_is_short_and_printable(tmp_path: Path, services: Services):
    script = r"import sys; sys.stderr.write('\x1b[31m' + 'x' * 5000 + '\x00\n\n \n'); sys.exit(3)"

    reason = await reason_of(tmp_path, services, script)

    _, _, line = reason.partition("exit status 3: ")
    assert line.endswith("xxx...")
    assert len(line) <= 200
    assert line.isprintable()


async def test_a_stop_that_comes_meanwhile_finds_the_exit_handled(tmp_path: Path, services: Services):
    path = tmp_path / "test.conf"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\nchildlogdir={tmp_path}\n"
        "[program:main]\ncommand=/bin/sh -c 'exit 3'\nautorestart=false\nstartsecs=0\n"
    )
    runner = Runner(load_config(path, os.environ).programs["main"], services)
    runner.takeover.advance(TakeoverStage.STARTABLE)
    runner.post(events.StartRequested())
    await wait_until_async(lambda: runner.records.process.last_exit is not None, "the process exits")

    runner.post(events.StopRequested())

    assert runner.state is State.EXITED
    await asyncio.wait_for(retire(runner, "shutdown"), PATIENCE_S)


class Looks:
    """The log file at each look, and whether a pipe still leads to it: stands in for `blocking_calls` and `logs`."""

    logger_pid = 1

    def __init__(self, *looks: tuple[bytes | None, bool]) -> None:
        self._looks = looks
        self.count = 0

    def is_captured(self, _path: Path) -> bool:
        return self._at()[1]

    async def run(self, *_arguments: object) -> tuple[int, int, bytes] | None:
        text, _ = self._at()
        self.count += 1
        return None if text is None else (len(text), 0, text)

    def _at(self) -> tuple[bytes | None, bool]:
        return self._looks[min(self.count, len(self._looks) - 1)]


async def end_of(tmp_path: Path, looks: Looks, *, begin_is_known: bool = True) -> bytes:
    section = f"[program:main]\ncommand=/bin/true\nstderr_logfile={tmp_path}/e.log\n"
    (tmp_path / "test.conf").write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{section}")
    config = load_config(tmp_path / "test.conf", os.environ).programs["main"]
    begin = LogPosition(1, 0, 0, 0) if begin_is_known else None
    services = SimpleNamespace(logs=looks, blocking_calls=looks)
    return await read_end(config, services, None, lambda: begin)  # type: ignore[arg-type]


@pytest.mark.parametrize("nothing", [None, b""], ids=["no file", "an empty file"])
async def test_the_end_of_a_silent_program_is_not_waited_for_once_its_pipe_has_ended(tmp_path: Path, nothing: bytes):
    looks = Looks((nothing, True), (nothing, False))

    assert await end_of(tmp_path, looks) == b""
    assert looks.count == 3


async def test_a_file_that_the_logger_has_made_and_not_written_yet_proves_nothing(tmp_path: Path):
    looks = Looks((b"", True), (b"", True), (b"", True), (b"late\n", True))

    assert await end_of(tmp_path, looks) == b"late\n"


async def test_nothing_is_believed_of_a_logger_that_does_not_know_the_attempt_yet(tmp_path: Path):
    looks = Looks((None, False), (None, False), (None, False), (b"late\n", False))

    assert await end_of(tmp_path, looks, begin_is_known=False) == b"late\n"
