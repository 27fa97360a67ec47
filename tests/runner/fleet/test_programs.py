"""All programs together: what happens at once."""

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor.config import Config, ConfigError, load_config
from supervisor.control.base.errors import CommandError
from supervisor.control.commands.processes import SignalRequest, send_signal
from supervisor.core.program.effects import SendGo
from supervisor.core.program.facts import State
from supervisor.core.program.persisted_facts import PersistedFacts
from supervisor.host.checkpoint_store import Attempts, CheckpointStore
from supervisor.host.memory_tier import handed_over
from supervisor.host.memory_tier.handed_over import LeftMemory
from supervisor.host.service.loop_share import LoopShare
from supervisor.protocol import layout
from supervisor.protocol.allocation import Allocation
from supervisor.protocol.gang import SeenDivergence
from supervisor.protocol.mirror.folder_epochs import encode_fetched
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.lines import encode_message
from supervisor.protocol.wire.messages import Committed, Done, Failed, Progress
from supervisor.runner.attempt.gang_place import GangPlace
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.programs import Programs
from supervisor.runner.fleet.updating import StepsInMemory
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from tests.host.memory_tier.test_salvage import Job
from tests.host.mirror.test_run import made
from tests.waiting import stays_async, wait_until_async

PATIENCE_S = 60.0  # for what takes milliseconds; the machine may be busy
OFF = "autostart=false\n"
TWO = "[program:first]\ncommand=/bin/true\nautostart=false\n[program:second]\ncommand=/bin/true\nautostart=false\n"


@pytest.fixture
async def programs(tmp_path: Path, services: Services) -> Programs:
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{TWO}")
    return Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)


async def test_shutdown_goes_on_while_an_update_changes_what_there_is(programs: Programs, services: Services):
    await programs.start_all()
    renewed = programs.runners["first"] = Runner(programs.runners["first"].config, services)  # not looked back yet
    leaving = asyncio.create_task(programs.stop_all())
    await asyncio.sleep(0)
    assert not leaving.done()

    del programs.runners["second"]
    renewed.takeover.advance(TakeoverStage.ADOPTION_SETTLED)

    await asyncio.wait_for(leaving, PATIENCE_S)


@pytest.mark.integration
async def test_programs_that_wait_for_the_same_one_start_in_turns_of_the_event_loop(tmp_path: Path, services: Services):
    path = tmp_path / "test.conf"
    keys = "command=/bin/sleep 60\nstdout_logfile=NONE\nstderr_logfile=NONE\n"
    many = f"[program:w]\n{keys}startsecs=0\nnumprocs=9\nprocess_name=w%(process_num)d\ndepends_on=first\n"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n[program:first]\n{keys}startsecs=0.5\n{many}")
    config = load_config(path, os.environ)
    programs = Programs(config, lambda: config, replace(services, loop_share=LoopShare(1e-6)))
    await programs.start_all()
    started, at_once = 0, 0

    async with asyncio.timeout(PATIENCE_S):
        while started < 9:
            await asyncio.sleep(0)
            before, started = started, sum(runner.pid is not None for runner in programs.runners.values()) - 1
            at_once = max(at_once, started - before)

    assert at_once <= 2
    await programs.stop_all()


async def test_an_update_takes_a_program_into_use_only_once_all_are_taken_up(programs: Programs, tmp_path: Path):
    """It would be taken up twice, and started beside a worker that an earlier daemon left."""
    path = tmp_path / "test.conf"
    path.write_text(path.read_text() + "[program:third]\ncommand=/bin/true\nautostart=false\n")
    await programs.configuration.reread()
    updating = asyncio.create_task(programs.updating.update())
    await stays_async(lambda: "third" not in programs.runners, "it waits", 0.1)

    await programs.start_all()
    (added,) = await asyncio.wait_for(updating, PATIENCE_S)

    assert (added.name, added.action) == ("third", "added")
    assert programs.runners["third"].takeover.is_startable


@pytest.mark.integration
@pytest.mark.parametrize("is_wanted", [False, True])
async def test_what_was_ordered_before_a_section_went_holds_when_an_update_brings_it_back(
    programs: Programs, services: Services, tmp_path: Path, is_wanted: bool
):
    """It went while no daemon ran. It was started and recorded as stopped, so that the next daemon did not start it."""
    path = tmp_path / "test.conf"
    (tmp_path / "state").mkdir()
    services.ledger.wanted.record_wanted("third", is_wanted)
    await programs.start_all()
    keys = f"autostart={str(not is_wanted).lower()}\nstdout_logfile=NONE\nstderr_logfile=NONE\n"
    path.write_text(f"{path.read_text()}[program:third]\ncommand=/bin/sleep 60\n{keys}")

    await programs.configuration.reread()
    await programs.updating.update()

    assert programs.runners["third"].wanted == is_wanted
    await programs.stop_all()


async def test_a_signal_waits_until_it_is_known_whether_an_earlier_daemons_worker_runs(
    programs: Programs, services: Services
):
    """It said "not running" of a worker that was about to be adopted."""
    await programs.start_all()
    looking = programs.runners["first"] = Runner(programs.runners["first"].config, services)
    context: Any = SimpleNamespace(programs=programs)

    sending = asyncio.create_task(send_signal(context, SignalRequest("first", "HUP")))
    await stays_async(lambda: not sending.done(), "it waits", 0.1)
    looking.takeover.advance(TakeoverStage.ADOPTION_SETTLED)

    with pytest.raises(CommandError, match="first"):
        await asyncio.wait_for(sending, PATIENCE_S)


async def test_an_update_gives_the_nodes_of_a_gang_no_second_program(tmp_path: Path, services: Services):
    """Its end would be taken for that of the worker that all nodes train, and end the training of all."""
    path = tmp_path / "test.conf"
    text = f"[supervisord]\nstate_dir={tmp_path}/state\n[program:count]\ncommand=/bin/true\nstrategy=multiworker\n"
    path.write_text(f"{text}checkpoint_dir={tmp_path}/checkpoints\nnodes=2\n")
    place = GangPlace(Allocation(7, 0, ("localhost", "127.0.0.1", "127.0.0.2"), 0, 1))
    programs = Programs(
        load_config(path, os.environ), lambda: load_config(path, os.environ), replace(services, gang=place)
    )
    place.allocation = place.allocation.of_turn(0, (0, 1))  # the third is a spare one
    path.write_text(f"{path.read_text()}[program:second]\ncommand=/bin/true\n")

    with pytest.raises(ConfigError, match=r"test\.conf: cannot train on 3 nodes: there are 2 programs"):
        await programs.configuration.reread()

    assert programs.configuration.changes().added == ()


async def test_an_update_of_a_spare_node_alone_is_refused(tmp_path: Path, services: Services):
    """Once it takes a rank, it would train with another section than the other nodes."""
    path = tmp_path / "test.conf"
    text = f"[supervisord]\nstate_dir={tmp_path}/state\n[program:count]\ncommand=/bin/true\nstrategy=multiworker\n"
    path.write_text(f"{text}checkpoint_dir={tmp_path}/checkpoints\nnodes=2\n{OFF}")
    place = GangPlace(Allocation(7, 2, ("localhost", "127.0.0.1", "127.0.0.2"), 0, 1))
    place.become_spare(0, (0, 1))
    services = replace(services, gang=place)
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    await programs.start_all()
    path.write_text(f"{path.read_text()}environment=RATE=2\n")
    await programs.configuration.reread()

    (action,) = await asyncio.wait_for(programs.updating.update(), PATIENCE_S)

    assert action.action == "refused"
    assert "no worker of it runs on this node now" in str(action.text)
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)


async def test_any_child_may_be_a_worker_until_all_that_was_left_is_taken_over(programs: Programs):
    assert programs.has_worker(os.getpid())

    await programs.start_all()

    assert not programs.has_worker(os.getpid())


async def test_pipes_of_another_daemon_that_has_the_same_runtime_dir_stay(programs: Programs, services: Services):
    own, others = (layout.attempt_folder(services.runtime_dir, name, 3) for name in ("first", "others"))
    own.mkdir(parents=True)
    others.mkdir(parents=True)

    await programs.start_all()

    await wait_until_async(lambda: not own.exists(), "what is over is gone")
    assert others.exists()


async def test_a_file_read_again_is_remarked_on_only_for_what_is_new(tmp_path: Path, services: Services):
    path = tmp_path / "test.conf"
    old = f"[supervisord]\nstate_dir={tmp_path}/state\n{TWO}autorestrat=false\n"
    path.write_text(old)
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    path.write_text(f"{old}workdir=/srv\n")

    with capture_logs() as logged:
        said = [(await programs.configuration.reread()).remarks for _ in range(2)]

    assert said == [(logged[0]["text"],), ()]
    assert [each["event"] for each in logged] == ["configuration.remark"]
    assert "has no key 'workdir'" in logged[0]["text"]


async def test_a_file_on_a_disk_that_is_away_is_read_where_no_exit_waits_for_it(tmp_path: Path, services: Services):
    path, readers = tmp_path / "test.conf", list[threading.Thread]()
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{TWO}")

    def read() -> Config:
        readers.append(threading.current_thread())
        return load_config(path, os.environ)

    await Programs(load_config(path, os.environ), read, services).configuration.reread()

    assert [reader.daemon for reader in readers] == [True]


class Failing(CheckpointStore):
    """Raises this when it is asked for the attempts in a directory."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def attempts_in(self, directory: Path, user: str | None = None) -> Attempts:
        raise self._error


@pytest.mark.parametrize(
    ("error", "is_startable"), [(LookupError("a defect"), False), (RuntimeError("can't start new thread"), True)]
)
async def test_a_program_that_can_not_be_taken_up_takes_no_other_with_it(
    tmp_path: Path, services: Services, error: Exception, is_startable: bool
):
    path = tmp_path / "test.conf"
    job = f"[program:job]\ncommand=/bin/true\nautostart=false\ncheckpoint_dir={tmp_path}/ck\n"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{job}[program:plain]\ncommand=/bin/true\n{OFF}")
    services = replace(services, checkpoints=Failing(error))
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)

    await programs.start_all()

    assert programs.runners["plain"].takeover.is_startable
    assert programs.runners["job"].takeover.is_startable is is_startable


async def with_mirror(path: Path, services: Services) -> tuple[Programs, JobMirror]:
    """The programs of a file, whose job `digits` has done a step: its mirror asks for the run."""
    programs = Programs(load_config(path, os.environ), lambda: load_config(path, os.environ), services)
    await programs.start_all()
    mirror = programs.runners["digits"].mirror
    assert mirror is not None
    mirror.on_selected(SendGo(1, None))
    mirror.on_message(Progress(1, 1), 0.0)
    return programs, mirror


@pytest.mark.integration
async def test_a_daemon_killed_as_it_starts_the_next_attempt_forgets_no_end_before_it(
    tmp_path: Path, services: Services
):
    """The ledger knows neither that attempt 3 diverged nor that 4 was begun: what is left of both says so."""
    path, run = tmp_path / "test.conf", services.runtime_dir
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/sleep 60\n"
        f"checkpoint_dir={tmp_path}/digits\n"
    )
    config = load_config(path, os.environ)
    services.state_dir.mkdir()
    services.ledger.wanted.record_wanted("digits", True)
    services.ledger.attempts.attempt_started("digits", 3, 0, 0, 1.0)
    services.ledger.job_states.store("digits", PersistedFacts(attempt=3, start_step=10), "abc")
    for attempt in (2, 3, 4):
        layout.attempt_folder(run, "digits", attempt).mkdir(parents=True)
    words = encode_message(Failed(3, 40, "nan", go_back=True, code=int(WorkerExit.DIVERGED)))
    (layout.attempt_folder(run, "digits", 3) / layout.LAST_WORDS).write_bytes(words)
    programs = Programs(config, lambda: config, services)
    runner = programs.runners["digits"]

    starting = asyncio.create_task(programs.start_all())
    try:
        while runner.facts.divergence is None and not starting.done():  # noqa: ASYNC110 - it is kept for a moment only
            await asyncio.sleep(0)
        assert runner.facts.divergence == SeenDivergence(39, 3)
        await starting
        await wait_until_async(lambda: runner.attempt == 5, "the number of the attempt that nobody knows is not used")
        causes = {attempt.attempt: attempt.cause for attempt in services.ledger.attempts.history("digits")}
        assert causes == {3: "divergence", 5: None}
        await wait_until_async(lambda: layout.attempts_with_folders(run)["digits"] == [5], "what is over is gone")
    finally:
        await asyncio.wait_for(programs.stop_all(), PATIENCE_S)


async def test_an_end_that_no_daemon_saw_has_a_time(tmp_path: Path, services: Services):
    """`status` says that, and not that the job was never started."""
    path = tmp_path / "test.conf"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/sleep 60\n"
        f"checkpoint_dir={tmp_path}/digits\n"
    )
    services.state_dir.mkdir()
    services.ledger.attempts.attempt_started("digits", 3, 0, 0, 1.0)
    folder = layout.attempt_folder(services.runtime_dir, "digits", 3)
    folder.mkdir(parents=True)
    (folder / layout.LAST_WORDS).write_bytes(encode_message(Done(3, 40)))
    config = load_config(path, os.environ)
    programs = Programs(config, lambda: config, services)

    await programs.start_all()

    runner, (attempt,) = programs.runners["digits"], services.ledger.attempts.history("digits")
    assert (runner.state, attempt.cause) == (State.SUCCEEDED, "done")
    assert runner.records.process.ended_wall_at == attempt.ended_wall_at
    await wait_until_async(lambda: not folder.exists(), "the ledger has it: nobody needs the words")


async def test_a_program_that_was_stopped_before_the_daemon_began_says_since_when(tmp_path: Path, services: Services):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n[program:web]\ncommand=/bin/true\n")
    services.state_dir.mkdir()
    services.ledger.wanted.record_wanted("web", False)
    services.ledger.attempts.attempt_started("web", 3, 0, 0, 1.0)
    services.ledger.attempts.attempt_ended("web", 3, "stopped", "stopped", 0, None, None, 12.0, 1.0, None)
    config = load_config(path, os.environ)
    programs = Programs(config, lambda: config, services)

    await programs.start_all()

    runner = programs.runners["web"]
    assert (runner.state, runner.records.process.ended_wall_at) == (State.STOPPED, 12.0)


@pytest.mark.integration
@pytest.mark.parametrize("is_fetched", [True, False])
async def test_what_another_hosts_attempt_of_the_same_number_has_saved_is_not_its_own(
    tmp_path: Path, services: Services, is_fetched: bool
):
    """The daemon was killed after it had fetched, and before it gave up what diverged: that is still to be done."""
    path = tmp_path / "test.conf"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/sleep 60\n"
        f"checkpoint_dir={tmp_path}/digits\nautostart=false\n"
    )
    checkpoint = tmp_path / "digits" / str(made(tmp_path / "digits", 200, 7))
    if is_fetched:
        (checkpoint / layout.FETCHED).write_bytes(encode_fetched(2))
    services.state_dir.mkdir()
    services.ledger.wanted.record_wanted("digits", False)
    services.ledger.attempts.attempt_started("digits", 7, 0, 0, 1.0)
    services.ledger.job_states.store("digits", PersistedFacts(attempt=7, restore_below_step=250), "abc")
    config = load_config(path, os.environ)
    programs = Programs(config, lambda: config, services)

    await programs.start_all()

    facts = programs.runners["digits"].facts
    assert (facts.restore_below_step, facts.current.saved_step) == ((250, None) if is_fetched else (None, 200))
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)


@pytest.mark.integration
@pytest.mark.parametrize("is_moved", [False, True])
async def test_what_was_left_in_memory_goes_on_after_a_reload_unless_checkpoint_dir_is_another(
    tmp_path: Path, services: Services, is_moved: bool
):
    """There may be another run, in which it would pass for the newest state."""
    job = Job(tmp_path / "digits")
    job.copy(10)
    services.runtime_dir.mkdir()
    left = LeftMemory("digits", None, str(job.folder), 3, None, None, job.held)
    handed_over.hand_over(services.runtime_dir, services.state_dir, [left])
    path, directory = tmp_path / "test.conf", tmp_path / ("other" if is_moved else "digits")
    directory.mkdir(exist_ok=True)
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/sleep 60\n"
        f"checkpoint_dir={directory}\nautostart=false\n"
    )
    config = load_config(path, os.environ)
    programs = Programs(config, lambda: config, services)

    with capture_logs() as logged:
        await programs.start_all()
        await asyncio.wait_for(programs.stop_all(), PATIENCE_S)

    assert [entry["event"] for entry in logged if entry["event"].startswith("memory.")] == (
        ["memory.lost"] if is_moved else ["memory.taken_over"]
    )
    assert [path.name for path in directory.iterdir()] == ([] if is_moved else ["step-0000000010.a3"])
    job.file.close()


@pytest.mark.integration
async def test_a_job_that_is_removed_takes_no_run_in_its_mirror_any_more(tmp_path: Path, services: Services):
    """Its store was away; added again, the same job has another mirror, and each would take the run from the other."""
    path, store = tmp_path / "test.conf", tmp_path / "store"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/true\nautostart=false\n"
        f"checkpoint_dir={tmp_path}/digits\nmirror=file://{store}\n"
    )
    programs, mirror = await with_mirror(path, services)
    await wait_until_async(lambda: mirror.failures == 1, "the store is away")

    assert await programs.updating.remove(["digits"]) is None

    await wait_until_async(lambda: mirror.failures == 2, "it was tried a last time", 20.0)
    store.mkdir()
    mirror.retry_now()  # as after half a minute
    await stays_async(lambda: not (store / "digits" / "epoch").exists(), "the run is not taken", 1.0)


@pytest.mark.integration
@pytest.mark.slow  # a start waits for a store that does not answer
@pytest.mark.parametrize("is_uploading", [False, True])
async def test_a_changed_jobs_earlier_mirror_asks_for_the_run_no_more(
    tmp_path: Path, services: Services, is_uploading: bool
):
    """Its store answers late: by then the changed job trains, and would lose the run to its own predecessor."""
    asked = asyncio.Event()
    silent = await asyncio.start_server(lambda reader, writer: asked.set(), "127.0.0.1", 0)
    store = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    path = tmp_path / "test.conf"
    section = (
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/true\nautostart=false\n"
        f'checkpoint_dir={tmp_path}/digits\nmirror=s3://bucket/runs\nenvironment=AWS_ENDPOINT_URL="{store}",'
        f'AWS_ACCESS_KEY_ID="a",AWS_SECRET_ACCESS_KEY="b",AWS_REGION="r"\n'
    )
    path.write_text(section)
    programs, before = await with_mirror(path, services)
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    assert before.status.request is not None
    if is_uploading:
        (tmp_path / "digits" / "step-0000000005.a1").mkdir(parents=True)
        before.on_message(Committed(1, 5, "step-0000000005.a1", 1, 0.1, stall_s=0.0), 0.0)

    path.write_text(f"{section}checkpoint_keep=7\n")
    await programs.configuration.reread()
    await programs.updating.update()

    assert programs.runners["digits"].mirror is not before
    await wait_until_async(lambda: before.status.request is None, "it asks no more", 5.0)
    after = programs.runners["digits"].mirror
    assert after is not None
    assert after.waits is is_uploading, "it goes on with what was not in the store"
    await programs.stop_all()
    silent.close()


@pytest.mark.integration
@pytest.mark.parametrize(("is_late", "host_leaves", "cause"), [
    (False, True, "preemption"), (True, True, "preemption"), (False, False, "stopped"),
])  # fmt: skip
async def test_stop_with_the_host_is_recorded_as_such_even_when_known_late(
    tmp_path: Path, services: Services, is_late: bool, host_leaves: bool, cause: str
):
    conf = tmp_path / "long.conf"
    conf.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:first]\n"
        f"command=/bin/sh -c 'trap \"sleep 0.3; exit\" TERM; touch {tmp_path}/heeds; while :; do sleep 0.05; done'\n"
        "startsecs=0\n"
    )
    config = load_config(conf, os.environ)
    config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
    programs = Programs(config, lambda: config, services)
    await programs.start_all()
    runner = programs.runners["first"]
    await asyncio.wait_for(runner.wait_until(lambda: runner.state is State.RUNNING or None), PATIENCE_S)
    await wait_until_async((tmp_path / "heeds").exists, "it heeds SIGTERM: else it ends before it is known to stop")
    if host_leaves and not is_late:
        programs.retirement.on_host_shutdown()

    leaving = asyncio.create_task(programs.stop_all())
    await asyncio.wait_for(runner.wait_until(lambda: runner.state is State.STOPPING or None), PATIENCE_S)
    if is_late:
        programs.retirement.on_host_shutdown()
    await asyncio.wait_for(leaving, PATIENCE_S)

    assert [attempt.cause for attempt in services.ledger.attempts.history("first")] == [cause]
    assert services.ledger.wanted.wanted_programs() in ({"first": True}, {}), "it runs again after the boot"


@pytest.mark.integration
async def test_an_update_to_a_command_that_is_not_there_leaves_a_plain_program_running(
    tmp_path: Path, services: Services
):
    path = tmp_path / "test.conf"
    section = f"[supervisord]\nstate_dir={tmp_path}/state\n[program:web]\nstartsecs=0\ncommand="
    path.write_text(f"{section}/bin/sleep 600\n")
    config = load_config(path, os.environ)
    config.supervisord.childlogdir.mkdir(parents=True, exist_ok=True)
    programs = Programs(config, lambda: load_config(path, os.environ), services)
    await programs.start_all()
    runner = programs.runners["web"]
    await asyncio.wait_for(runner.wait_until(lambda: runner.state is State.RUNNING or None), PATIENCE_S)
    path.write_text(f"{section}/bin/slepe 600\n")
    await programs.configuration.reread()

    (action,) = await programs.updating.update()

    assert (action.action, runner.state) == ("refused", State.RUNNING)
    assert "/bin/slepe" in str(action.text)
    assert "update --discard web applies it" in str(action.text)
    assert runner.not_applied == action.text
    actions = await programs.updating.update(discard=True)
    assert [action.action for action in actions] == ["stopped", "updated"]
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)


async def _with_memory_that_no_disk_takes(tmp_path: Path, services: Services) -> tuple[Job, Programs, MemoryHolder]:
    """A job that does not run, whose checkpoint directory is gone, with what attempt 3 had in memory."""
    job = Job(tmp_path / "digits")
    job.copy(10)
    path = tmp_path / "test.conf"
    path.write_text(
        f"[supervisord]\nstate_dir={tmp_path}/state\n[program:digits]\ncommand=/bin/sleep 60\n"
        f"checkpoint_dir={tmp_path}/digits\nautostart=false\n"
    )
    config = load_config(path, os.environ)
    programs = Programs(config, lambda: load_config(path, os.environ), services)
    await programs.start_all()
    memory = programs.runners["digits"].memory
    assert memory is not None
    job.folder.rmdir()
    memory.take_over(LeftMemory("digits", None, str(job.folder), 3, None, None, job.held))
    await wait_until_async(lambda: not memory.is_writing)
    return job, programs, memory


@pytest.mark.integration
@pytest.mark.parametrize("is_back", [False, True])
async def test_a_program_is_removed_once_a_disk_has_what_its_dead_worker_left_in_memory(
    tmp_path: Path, services: Services, is_back: bool
):
    job, programs, memory = await _with_memory_that_no_disk_takes(tmp_path, services)
    if is_back:
        job.folder.mkdir()

        assert await programs.updating.remove(["digits"]) is None

        assert job.committed == ["step-0000000010.a3"]
    else:
        with pytest.raises(StepsInMemory, match=r"the steps that attempt 3 left in memory; .*remove --discard digits"):
            await programs.updating.remove(["digits"])
        assert memory.unwritten == 3

        assert await programs.updating.remove(["digits"], discard=True) is None

        assert memory.unwritten is None
    assert not programs.runners
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
    job.file.close()


@pytest.mark.integration
@pytest.mark.parametrize("is_back", [False, True])
async def test_an_update_that_would_drop_what_a_dead_worker_left_in_memory_is_refused_until_a_disk_takes_it(
    tmp_path: Path, services: Services, is_back: bool
):
    job, programs, memory = await _with_memory_that_no_disk_takes(tmp_path, services)
    path = tmp_path / "test.conf"
    path.write_text(path.read_text().replace("[program:digits]", "[program:other]"))
    await programs.configuration.reread()
    if is_back:
        job.folder.mkdir()

    actions = await programs.updating.update()

    assert [action.action for action in actions] == (
        ["stopped", "removed", "added"] if is_back else ["refused", "refused"]
    )
    if is_back:
        assert job.committed == ["step-0000000010.a3"]
    else:
        assert "no disk has taken the steps that attempt 3 left in memory" in str(actions[0].text)
        assert "digits has its checkpoint_dir as long as its own section is not applied" in str(actions[1].text)
        assert memory.unwritten == 3
    await asyncio.wait_for(programs.stop_all(), PATIENCE_S)
    job.file.close()


async def test_failed_takeover_leaves_the_other_programs_of_an_update_alone(tmp_path: Path, services: Services):
    path = tmp_path / "more.conf"
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n")

    def refuse(runner: Runner) -> None:
        if runner.name == "first":
            raise OSError("the disk")

    config = load_config(path, os.environ)
    programs = Programs(config, lambda: load_config(path, os.environ), services, on_added=refuse)
    await programs.start_all()
    path.write_text(f"[supervisord]\nstate_dir={tmp_path}/state\n{TWO}")
    await programs.configuration.reread()

    with pytest.raises(OSError, match="the disk"):
        await asyncio.wait_for(programs.updating.update(), PATIENCE_S)

    for name in ("first", "second"):
        await asyncio.wait_for(programs.runners[name].takeover.until(TakeoverStage.STARTABLE), PATIENCE_S)
