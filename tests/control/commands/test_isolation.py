"""One of three programs can't be shown: `status`, XML-RPC, metrics, the page, `top` and `--watch` show the others."""

import io
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from rich.console import Console

from supervisor.config import load_config
from supervisor.control.base import isolation
from supervisor.control.base.json_types import to_json
from supervisor.control.commands.status import ProgramStatus, status
from supervisor.control.commands.top import top
from supervisor.control.metrics.page import exposition
from supervisor.control.metrics.sampling import take_sample
from supervisor.control.page import live
from supervisor.control.supervisor_api.actions import all_info
from supervisor.core.notices.active import ActiveNotices
from supervisor.core.program.facts import State
from supervisor.ctl import render, watch
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.host.service.loop_share import LoopShare
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.expected_times import ExpectedTimes
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from tests.gpu_host import no_gpus

NAMES = ["a", "b", "c"]


@asynccontextmanager
async def three_jobs(folder: Path) -> AsyncIterator[tuple[Any, dict[str, Runner]]]:
    """A context with three jobs that train; nothing runs."""
    path = folder / "test.conf"
    sections = "".join(f"[program:{name}]\ncommand=/bin/true\ncheckpoint_dir={folder}/{name}\n" for name in NAMES)
    path.write_text(f"[supervisord]\nstate_dir={folder}/state\n{sections}")
    config = load_config(path, {})
    ledger, logs = Ledger(folder / "ledger.sqlite3"), LogCapture(folder / "logs")
    services = Services(ledger, logs, CheckpointStore(), folder / "state", folder / "run", {}, server_url=None)
    runners = {name: Runner(config.programs[name], services) for name in NAMES}
    for runner in runners.values():
        runner.takeover.advance(TakeoverStage.STARTABLE)
        runner._job.facts.state = State.RUNNING
        training = runner.records.training
        training.on_message(messages.Restored(1, 0, None, 0.1), 0.0)
        training.on_message(messages.Progress(1, 7, step_s=0.5, metrics={"loss": 1.5}), 0.0)
        training.on_message(messages.Committed(1, 7, "step-0000000007.a1", 10, 0.1, 0.1), 0.0)
    active = ActiveNotices(60.0)
    expected_times = ExpectedTimes(active, runners)
    context = SimpleNamespace(
        programs=SimpleNamespace(runners=runners, closing=False, configuration=SimpleNamespace(remarks=[])),
        ledger=ledger,
        logs=SimpleNamespace(failures={}),
        hooks=SimpleNamespace(failure_summary=None),
        gpus=no_gpus(),
        notices=NoticeDispatcher(active, expected_times, runners, LoopShare()),
        expected_times=expected_times,
        listening=SimpleNamespace(pool_counts=dict),
        disks=BlockingCalls(),
        settings=SimpleNamespace(identifier="test", logfile=None),
        proofs=Proofs(runners, services),
    )
    try:
        yield context, runners
    finally:
        ledger.close()


def break_description(runner: Runner) -> None:
    """As `ago_s` of 1e14 once did: no calendar reaches so far back."""
    runner.records.training.changed = (7,)  # type: ignore[assignment]
    runner.records.training.left_out = (7,)  # type: ignore[assignment]


async def test_status_says_why_it_can_show_one_of_three_programs_no_better(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, runners):
        break_description(runners["b"])

        answer = await status(context)

        a, b, c = answer.programs
        assert b.description.startswith("cannot be shown: TypeError(")
        assert (b.state, b.wire_state, b.job) == (State.RUNNING, "RUNNING", None)
        assert a.job is not None and a.job.step == 7 and "step 7" in c.description
        lines = render.status_lines(json.loads(to_json(answer))["programs"])
        assert [line.split()[0] for line in lines] == NAMES


async def test_xml_rpc_says_why_it_can_show_one_of_three_programs_no_better(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, runners):
        break_description(runners["b"])

        a, b, c = await all_info(context)

        assert b["description"].startswith("cannot be shown: TypeError(")
        assert (b["name"], b["statename"], b["state"]) == ("b", "RUNNING", 20)
        assert a.keys() == b.keys() == c.keys()
        assert "step 7" in a["description"] and "step 7" in c["description"]


async def test_metrics_lack_one_value_of_one_of_three_programs_and_say_so(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, runners):
        runners["b"].records.training.step = "seven"  # type: ignore[assignment]

        text = exposition(take_sample(context), "")[0].decode()

        shown = {
            sample.labels["program"]: sample.value
            for family in parse(text)
            for sample in family.samples
            if sample.name == "stepkeeper_program_shown"
        }
        steps = {
            sample.labels["program"]: sample.value
            for family in parse(text)
            for sample in family.samples
            if sample.name == "stepkeeper_step"
        }
        assert shown == {"a": 1, "b": 0, "c": 1}
        assert steps == {"a": 7, "c": 7}
        assert 'stepkeeper_program_up{program="b"}' in text


async def test_the_page_shows_two_of_three_programs_and_why_not_the_third(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, runners):
        runners["b"].records.training.metrics = {"loss": object()}  # type: ignore[dict-item]
        pages = live.LivePages(context)

        await pages._look_once()
        event = pages._event(0).decode()

        shown = json.loads(event.partition("data: ")[2])["programs"]
        assert sorted(shown) == NAMES
        assert shown["b"]["description"].startswith("cannot be shown: ")
        assert shown["a"]["job"]["step"] == shown["c"]["job"]["step"] == 7
        assert shown["b"].keys() == shown["a"].keys()


async def test_top_shows_all_three_programs(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, runners):
        runners["b"].records.training = None  # type: ignore[assignment]

        answer = await top(context)

        assert [program.name for program in answer.programs] == NAMES
        assert [program.step for program in answer.programs] == [7, None, 7]


async def test_watch_shows_two_of_three_programs_and_why_not_the_third(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, _):
        programs = json.loads(to_json(await status(context)))["programs"]
        programs[1]["job"]["step_s"] = "half"

        for columns in (80, 160):
            console = Console(width=columns, file=io.StringIO())
            console.print(watch.frame(programs, [], 0.0, columns))
            text = console.file.getvalue()  # type: ignore[attr-defined]

            assert "cannot be shown: TypeError" in text
            assert [line.split()[0] for line in text.splitlines()[1:4]] == NAMES


async def test_a_number_that_is_not_finite_becomes_null(tmp_path: Path):
    async with three_jobs(tmp_path) as (context, runners):
        runners["b"].records.training.metrics = {"loss": math.inf, "lr": 0.5}

        answer = json.loads(to_json(await status(context)), parse_constant=pytest.fail)

        assert answer["programs"][1]["job"]["metrics"] == {"loss": None, "lr": 0.5}
        assert isinstance((await status(context)).programs[1], ProgramStatus)


def test_programs_that_could_not_be_shown_are_not_remembered_for_good():
    for number in range(isolation.MAX_REMEMBERED + 5):
        isolation.not_shown(f"removed-{number}", ValueError())

    assert len(isolation._logged) == isolation.MAX_REMEMBERED
