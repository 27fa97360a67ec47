"""What a death leaves behind reaches the reason, the record of its end, and nothing of the attempt before it."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor.config import load_config
from supervisor.core.diagnosis.evidence import DeathKind, Diagnosis, Source
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.logs.files.positions import position_in
from supervisor.runner.attempt.death_evidence import Deceased, gather
from supervisor.runner.attempt.services import DEATHS_AT_ONCE, Services
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from tests.runner.attempt.test_last_output import logger_runs

pytestmark = pytest.mark.integration

PATIENCE_S = 60.0
ENDED = (State.EXITED, State.FAILED, State.BACKOFF)


async def diagnosis_of(tmp_path: Path, services: Services, *scripts: str) -> tuple[Diagnosis, str]:
    """Runs these Python scripts one after the other as one program; gives the last diagnosis, and the reason.

    The logger's word on where the output of an attempt begins is given in its place.
    """
    path, source = tmp_path / "test.conf", tmp_path / "script.py"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\nchildlogdir={tmp_path}\n"
        f"[program:main]\ncommand={sys.executable} {source}\nautorestart=false\nstartsecs=0\nexitcodes=0\n"
        f"stderr_logfile={tmp_path}/main-stderr.log\n"
    )
    await logger_runs(tmp_path, services)
    runner = Runner(load_config(path, os.environ).programs["main"], services)
    runner.takeover.advance(TakeoverStage.STARTABLE)
    log = tmp_path / "main-stderr.log"
    for script in scripts:
        source.write_text(script)
        if log.exists():
            with log.open("rb") as written:
                begin = position_in(written.fileno(), log.stat().st_size)
            services.ledger.output_begins.store("main", runner.attempt + 1, "stderr", begin)
        runner.post(events.StartRequested())
        attempt = runner.attempt
        await asyncio.wait_for(
            runner.wait_until(lambda at=attempt: (runner.attempt == at and runner.state in ENDED) or None), PATIENCE_S
        )
    diagnosis, reason = runner.records.process.diagnosis, runner.reason or ""
    await asyncio.wait_for(retire(runner, "shutdown"), PATIENCE_S)
    assert diagnosis is not None
    [*_, record] = services.ledger.attempts.history("main")
    assert record.diagnosis == diagnosis
    return diagnosis, reason


async def test_an_exception_in_the_middle_of_the_output_is_the_reason(tmp_path: Path, services: Services):
    script = "import atexit\natexit.register(lambda: print('closing', flush=True))\nimport sys\n"
    script += "atexit.register(lambda: [print('closing', i, file=sys.stderr) for i in range(300)])\n1/0"

    diagnosis, reason = await diagnosis_of(tmp_path, services, script)

    assert diagnosis.line == "ZeroDivisionError: division by zero"
    assert reason == "exit status 1: ZeroDivisionError: division by zero"


async def test_a_full_disk_says_whose_turn_it_is(tmp_path: Path, services: Services):
    diagnosis, reason = await diagnosis_of(tmp_path, services, "raise OSError(28, 'No space left on device', 'x')")

    assert (diagnosis.kind, diagnosis.who, diagnosis.source) == (
        DeathKind.DISK_FULL,
        "the host's operator",
        Source.STDERR,
    )
    assert diagnosis.follows == "it is not started again, as autorestart says"
    assert reason.startswith("a disk is full: OSError: [Errno 28] No space left on device: 'x'")


async def test_the_kernel_is_asked_about_a_fault_in_native_code(tmp_path: Path, services: Services):
    diagnosis, reason = await diagnosis_of(tmp_path, services, "import ctypes\nctypes.string_at(0)")

    assert diagnosis.kind is DeathKind.SEGFAULT
    assert "segmentation fault in native code" in reason
    assert "terminated by SIGSEGV" in reason


async def test_a_kill_from_outside_is_told_from_one_for_memory(tmp_path: Path, services: Services):
    diagnosis, reason = await diagnosis_of(tmp_path, services, "import os\nos.kill(os.getpid(), 9)")

    assert (diagnosis.kind, diagnosis.who) == (DeathKind.KILLED, "nobody")
    assert reason.startswith("terminated by SIGKILL: killed by somebody")


async def test_a_message_is_shown_printable(tmp_path: Path, services: Services):
    diagnosis, _ = await diagnosis_of(tmp_path, services, "raise ValueError('\\x1b[31mred\\x07 ' + 'x' * 5000)")

    assert diagnosis.line.isprintable()
    assert len(diagnosis.line) <= 200


async def test_what_the_attempt_before_printed_explains_nothing(tmp_path: Path, services: Services):
    first = "raise OSError(28, 'No space left on device')"
    second = "import os, sys\nprint('the dataset is empty', file=sys.stderr, flush=True)\nos._exit(3)"

    diagnosis, reason = await diagnosis_of(tmp_path, services, first, second)

    assert (diagnosis.kind, reason) == (DeathKind.EXIT_TEXT, "exit status 3: the dataset is empty")


class CountedReads(BlockingCalls):
    """Counts how many logs are read at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.most = 0, 0

    async def run(self, path: Path | None, work: Any, *args: Any, **kwargs: Any) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().run(path, work, *args, **kwargs)
        finally:
            self.now -= 1


async def test_of_many_deaths_at_once_a_few_are_looked_into_at_a_time(tmp_path: Path, services: Services):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n[program:main]\ncommand=/bin/true\n")
    config, reads = load_config(path, os.environ).programs["main"], CountedReads()
    counted = replace(services, blocking_calls=reads)
    exited = events.WorkerExited(1, signal=9)

    ends = await asyncio.gather(
        *(gather(exited, config, counted, Deceased(1, None, None, None)) for _ in range(3 * DEATHS_AT_ONCE))
    )

    assert all(end.evidence is not None for end in ends)
    assert 0 < reads.most <= DEATHS_AT_ONCE
