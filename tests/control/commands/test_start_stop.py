"""`start` where things change while it waits for its turn."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from supervisor.config import load_config
from supervisor.control.base.context import CommandContext
from supervisor.control.base.errors import Code, CommandError
from supervisor.control.commands import start_stop
from supervisor.control.supervisor_api import actions
from supervisor.control.supervisor_api.faults import FaultCode, RpcFault
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.protocol.allocation import Allocation
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.ordering import StartTurns
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.program.changes import ChangeWaiters
from supervisor.runner.program.takeover_progress import TakeoverProgress, TakeoverStage

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy
OFF = "".join(f"[program:{name}]\ncommand=/bin/sleep 100000\nautostart=false\n" for name in ("first", "second"))
OFF += "[program:needy]\ncommand=/bin/sleep 100000\nautostart=false\ndepends_on=first\n"
OFF += "[program:broken]\ncommand=/bin/sh -c 'printf \"no disk\\ngiving up\\n\" >&2; exit 3'\n"
OFF += "autostart=false\nstartretries=0\n"
JOB = "[program:job]\ncommand=/bin/sleep 100000\nautostart=false\nstopwaitsecs=1\nstandby=off\n"


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    yield ledger
    ledger.close()


@pytest.fixture
async def daemon(tmp_path: Path, ledger: Ledger) -> AsyncIterator[CommandContext]:
    """What the commands need of a daemon, with programs of its own that are taken up."""
    logs = LogCapture(tmp_path / "state")
    logs.start()
    services = Services(ledger, logs, CheckpointStore(), tmp_path / "state", tmp_path / "run", {}, server_url=None)
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{OFF}{JOB}checkpoint_dir={tmp_path}/job\n")
    config = load_config(path, os.environ)
    config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
    programs = Programs(config, lambda: load_config(path, os.environ), services)
    await programs.start_all()
    background = BackgroundTasks(structlog.get_logger())
    yield SimpleNamespace(programs=programs, ledger=ledger, background=background)  # type: ignore[misc]
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
    logs.close()


async def test_on_a_spare_node_start_and_stop_are_refused_at_once(tmp_path: Path, ledger: Ledger):
    place = GangPlace(Allocation(7, 2, ("n1", "n2", "n3"), 0, 1), spare_of=("n1", "n2"))
    logs = LogCapture(tmp_path / "state")
    services = Services(
        ledger, logs, CheckpointStore(), tmp_path / "state", tmp_path / "run", {}, server_url=None, gang=place
    )
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{OFF}")
    spare = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    context: CommandContext = SimpleNamespace(programs=spare, ledger=ledger)  # type: ignore[assignment]

    with pytest.raises(CommandError, match="this is a spare node of the gang: it trains by itself") as start:
        await asyncio.wait_for(start_stop.start(context, start_stop.StartRequest("first")), PATIENCE_S)
    with pytest.raises(CommandError, match="nothing runs here; to end the job, use scancel") as stop:
        await asyncio.wait_for(start_stop.stop(context, start_stop.StopRequest("first")), PATIENCE_S)

    assert (start.value.code, stop.value.code) == (Code.WAITING, Code.NOT_RUNNING)


@pytest.mark.integration
async def test_a_start_whose_turn_comes_while_the_daemon_leaves_is_refused_and_not_remembered(
    daemon: CommandContext, ledger: Ledger
):
    _, turn = StartTurns(2)
    starting = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("second"), turn))
    await asyncio.wait_for(turn.wait_ready(PATIENCE_S), PATIENCE_S)

    await asyncio.wait_for(daemon.programs.stop_all(), PATIENCE_S)
    turn.release()

    with pytest.raises(CommandError) as refused:
        await asyncio.wait_for(starting, PATIENCE_S)
    assert refused.value.code is Code.SHUTDOWN_STATE
    ledger.close()
    assert ledger.wanted.wanted_programs() == {}


@pytest.mark.integration
async def test_program_removed_meanwhile_fails_alone(daemon: CommandContext):
    turns = StartTurns(2)
    first, second = turns

    async with asyncio.timeout(PATIENCE_S):
        assert await daemon.programs.updating.remove(["first"]) is None
        with pytest.raises(RpcFault) as fault:
            await actions._start(daemon, "first", wait=False, turn=first)

    assert fault.value.code is FaultCode.BAD_NAME
    assert first.is_ready and not second.is_ready


@pytest.mark.integration
@pytest.mark.parametrize("has_leftovers", [False, True])
async def test_one_that_is_being_taken_over_gives_its_turn_up_only_if_processes_may_have_to_end(
    daemon: CommandContext, has_leftovers: bool
):
    takeover = daemon.programs.runners["first"].takeover = TakeoverProgress(ChangeWaiters())
    turn, _ = StartTurns(2)
    starting = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("first"), turn))
    await asyncio.sleep(0)
    assert not turn.is_ready  # nothing is known yet

    takeover.has_leftovers = has_leftovers
    takeover.advance(TakeoverStage.ADOPTION_SETTLED)
    for _ in range(3):
        await asyncio.sleep(0)
    assert turn.is_ready == has_leftovers

    takeover.advance(TakeoverStage.STARTABLE)
    turn.release()
    await asyncio.wait_for(starting, PATIENCE_S)


@pytest.mark.integration
async def test_program_removed_while_it_waits_is_not_started(daemon: CommandContext):
    needy, first = (daemon.programs.runners[name] for name in ("needy", "first"))
    first.takeover = TakeoverProgress(ChangeWaiters())
    starting = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("needy", wait=False)))
    await asyncio.sleep(0)

    assert await daemon.programs.updating.remove(["needy"]) is None
    first.takeover.advance(TakeoverStage.STARTABLE)

    with pytest.raises(CommandError):
        await asyncio.wait_for(starting, PATIENCE_S)
    assert (needy.wanted, needy.waits_for, needy.pid) == (False, None, None)


@pytest.mark.integration
async def test_a_start_that_another_client_stops_says_so(daemon: CommandContext):
    first = daemon.programs.runners["first"]
    async with asyncio.timeout(PATIENCE_S):
        starting = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("first")))
        await first.wait_until(lambda: first.state is State.STARTING or None)
        await start_stop.stop(daemon, start_stop.StopRequest("first"))

        with pytest.raises(CommandError, match="it was told to stop before it ran") as stopped:
            await starting
    assert stopped.value.code is Code.ABNORMAL_TERMINATION


@pytest.mark.integration
async def test_a_start_that_waits_for_its_turn_is_ended_by_a_stop(daemon: CommandContext, ledger: Ledger):
    """Also that of a restart, whose stop has recorded that the program is to run."""
    first, (_, turn) = daemon.programs.runners["first"], StartTurns(2)
    async with asyncio.timeout(PATIENCE_S):
        await _stopped_for_a_restart(daemon)
        starting = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("first"), turn))
        await turn.wait_ready(PATIENCE_S)
        with pytest.raises(CommandError) as refused:
            await start_stop.stop(daemon, start_stop.StopRequest("first"))
        turn.release()

        with pytest.raises(CommandError, match="it was told to stop before it ran") as stopped:
            await starting
        assert (refused.value.code, stopped.value.code) == (Code.NOT_RUNNING, Code.ABNORMAL_TERMINATION)
        assert first.state is State.STOPPED
        assert await ledger.wanted.until_recorded() is None
        assert ledger.wanted.wanted_programs()["first"] is False


@pytest.mark.integration
async def test_a_start_that_an_update_ends_says_that_its_order_where_to_begin_holds(daemon: CommandContext):
    job = daemon.programs.runners["job"]
    async with asyncio.timeout(PATIENCE_S):
        starting = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("job", from_scratch=True)))
        await job.wait_until(lambda: job.state is State.STARTING or None)
        job.post(events.ProgramClosed("update"))

        with pytest.raises(CommandError, match="before it trained; its next start begins anew, unless a stop"):
            await starting


@pytest.mark.integration
async def test_a_start_that_is_under_way_is_joined_but_not_by_supervisors_clients(daemon: CommandContext):
    first = daemon.programs.runners["first"]
    begun = asyncio.create_task(start_stop.start(daemon, start_stop.StartRequest("first")))
    async with asyncio.timeout(PATIENCE_S):
        await first.wait_until(lambda: first.state is State.STARTING or None)

        with pytest.raises(RpcFault) as fault:
            await actions._start(daemon, "first", wait=True)
        await start_stop.start(daemon, start_stop.StartRequest("first"))

        assert fault.value.code is FaultCode.ALREADY_STARTED
        assert first.state is State.RUNNING
        await begun
        with pytest.raises(CommandError):
            await start_stop.start(daemon, start_stop.StartRequest("first"))


@pytest.mark.integration
async def test_a_start_that_fails_quotes_the_end_of_standard_error(daemon: CommandContext):
    async with asyncio.timeout(PATIENCE_S):
        await start_stop.start(daemon, start_stop.StartRequest("first"))  # then the logger runs
        with pytest.raises(CommandError) as failed:
            await start_stop.start(daemon, start_stop.StartRequest("broken"))

    assert str(failed.value).splitlines()[-3:] == ["the end of its standard error:", "no disk", "giving up"]


@pytest.mark.integration
async def test_a_restart_of_what_could_not_be_started_again_leaves_it_running(daemon: CommandContext, tmp_path: Path):
    first = daemon.programs.runners["first"]
    sound, gone = first.config, tmp_path / "gone"
    stale = tmp_path / "stale"
    stale.touch(0o755)
    stale.write_text(f"#!{gone}/bin/python\n")  # as of a virtual environment that was moved
    lacking = {
        "there is no command": replace(sound, command=(str(gone), "1")),
        f"there is no '{gone}/bin/python'": replace(sound, command=(str(stale), "1")),
        f"its directory {gone} does not exist": replace(sound, directory=gone),
        "this host has no such user": replace(sound, user="nobody-of-this-name"),
    }
    async with asyncio.timeout(PATIENCE_S):
        await start_stop.start(daemon, start_stop.StartRequest("first"))
        for missing, config in lacking.items():
            first.config = config
            with pytest.raises(CommandError, match=missing) as refused:
                await start_stop.stop(daemon, start_stop.StopRequest("first", only_if_saved=True, restarts=True))
            assert (refused.value.code, first.state) == (Code.CANT_RESTART, State.RUNNING)
            assert str(refused.value).endswith("first runs on; restart --discard stops it nevertheless")

        await start_stop.stop(daemon, start_stop.StopRequest("first", restarts=True))

        assert first.state is State.STOPPED


async def _stopped_for_a_restart(daemon: CommandContext) -> None:
    await start_stop.start(daemon, start_stop.StartRequest("first"))
    await start_stop.stop(daemon, start_stop.StopRequest("first", restarts=True))


@pytest.mark.integration
async def test_a_restart_whose_client_is_gone_after_the_stop_is_finished_by_the_daemon(
    daemon: CommandContext, ledger: Ledger
):
    async with asyncio.timeout(PATIENCE_S):
        await _stopped_for_a_restart(daemon)
        first = daemon.programs.runners["first"]
        assert (first.state, await ledger.wanted.until_recorded()) == (State.STOPPED, None)
        assert ledger.wanted.wanted_programs()["first"] is True  # a daemon that dies now leaves it to the next one

        start_stop.start_if_client_gone(daemon, ["first", "second", "gone"], patience_s=0)

        await first.wait_until(lambda: first.state is State.RUNNING or None)
        assert daemon.programs.runners["second"].state is State.STOPPED


@pytest.mark.integration
async def test_an_update_between_the_stop_and_the_start_of_a_restart_forgets_neither(
    daemon: CommandContext, tmp_path: Path
):
    async with asyncio.timeout(PATIENCE_S):
        await _stopped_for_a_restart(daemon)
        path = tmp_path / "test.conf"
        path.write_text(path.read_text().replace("autostart=false", "autostart=false\nstopwaitsecs=5", 1))
        await daemon.programs.configuration.reread()
        await daemon.programs.updating.update(["first"])

        start_stop.start_if_client_gone(daemon, ["first"], patience_s=0)

        first = daemon.programs.runners["first"]
        await first.wait_until(lambda: first.state is State.RUNNING or None)
        assert first.config.stopwaitsecs == 5


@pytest.mark.integration
async def test_a_program_that_somebody_stops_while_it_is_restarted_stays_stopped(
    daemon: CommandContext, ledger: Ledger
):
    async with asyncio.timeout(PATIENCE_S):
        await _stopped_for_a_restart(daemon)
        with pytest.raises(CommandError) as refused:
            await start_stop.stop(daemon, start_stop.StopRequest("first"))

        start_stop.start_if_client_gone(daemon, ["first"], patience_s=0)

        await asyncio.sleep(0)
        assert refused.value.code is Code.NOT_RUNNING
        assert daemon.programs.runners["first"].state is State.STOPPED
        assert await ledger.wanted.until_recorded() is None
        assert ledger.wanted.wanted_programs()["first"] is False


@pytest.mark.integration
async def test_order_where_to_begin_is_refused_if_somebody_starts_the_job_meanwhile(daemon: CommandContext):
    """It would begin from its newest checkpoint, and be said to be started."""
    job = daemon.programs.runners["job"]
    _, turn = StartTurns(2)
    request = start_stop.StartRequest("job", wait=False, from_scratch=True)
    async with asyncio.timeout(PATIENCE_S):
        starting = asyncio.create_task(start_stop.start(daemon, request, turn))
        await turn.wait_ready(PATIENCE_S)
        await start_stop.start(daemon, start_stop.StartRequest("job", wait=False))
        assert job.state is State.STARTING
        turn.release()

        with pytest.raises(CommandError) as refused:
            await starting
    assert refused.value.code is Code.ALREADY_STARTED
    assert str(refused.value) == "job runs, so its checkpoints are left as they are; stop it, then start it so"
