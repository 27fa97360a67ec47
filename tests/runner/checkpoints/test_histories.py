"""Random histories of hosts that train one mirrored job: no start begins behind the newest checkpoint that was reported
on its host, or behind the newest in the store, unless the reason is said.

What a host is made of is in `histories.py`.
"""

import shutil
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from supervisor.core.program import events
from supervisor.core.program.facts import ALIVE, State
from supervisor.protocol.checkpoints import removal
from supervisor.protocol.checkpoints.directory import committed_checkpoints
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.wire.exits import WorkerExit
from tests.fuzzing import cases
from tests.runner.checkpoints.histories import Host
from tests.runner.checkpoints.world import WorldHistories, config

HOSTS = st.sampled_from([0, 0, 1])


class Histories(WorldHistories):
    """Two hosts."""

    @initialize()
    def begin(self) -> None:
        self.begin_world(config())
        self.hosts = self.world.hosts = [Host(self.world, name) for name in "ab"]

    def teardown(self) -> None:
        for host in self.hosts:
            self.loop.do(host.end_daemon)
        self.end_world()

    def post(self, host: Host, *all_events: events.Event) -> None:
        for event in all_events:
            self.loop.do(host.post, event)

    # --- training -----------------------------------------------------------------------------------------------------

    def host_comes_to_train(self, number: int) -> None:
        host = self.hosts[number]
        for _ in range(4):
            if host.trains:
                return
            if host.has_go:
                self.loop.do(host.train, 5, True)
            elif host.job.state is State.BACKOFF:
                self.loop.do(host.expire)
            elif host.job.state not in ALIVE:
                self.post(host, events.StartRequested())

    comes_1 = rule(number=HOSTS)(host_comes_to_train)
    comes_2 = rule(number=HOSTS)(host_comes_to_train)

    @rule(number=HOSTS, steps=st.integers(1, 20), commits=st.booleans())
    def train(self, number: int, steps: int, commits: bool) -> None:
        self.loop.do(self.hosts[number].train, steps, commits)

    @rule(number=HOSTS)
    def worker_is_killed(self, number: int) -> None:
        host = self.hosts[number]
        self.loop.do(host.end_worker, events.WorkerExited(host.job.facts.attempt, signal=9))

    @rule(number=HOSTS)
    def workers_keep_dying(self, number: int) -> None:
        """Right after they have restored, so that the checkpoint becomes suspect, and an older one with it."""
        self.workers_die(number, 8)

    def workers_die(self, number: int, times: int) -> None:
        host = self.hosts[number]
        for _ in range(times):
            if host.job.state is State.BACKOFF:
                self.loop.do(host.expire)
            elif host.has_go:
                self.loop.do(host.train, 1, False)
                self.worker_is_killed(number)

    @rule(number=HOSTS)
    def training_diverges(self, number: int) -> None:
        host = self.hosts[number]
        if host.trains:
            attempt = host.job.facts.attempt
            self.post(host, events.FailureReported(attempt, "nan", host.step, go_back=True))
            self.loop.do(host.end_worker, events.WorkerExited(attempt, WorkerExit.DIVERGED))

    @rule(number=HOSTS)
    def checkpoint_does_not_fit(self, number: int) -> None:
        host = self.hosts[number]
        if host.has_go and not host.trains and host.begun is not None:
            self.loop.do(host.end_worker, events.WorkerExited(host.job.facts.attempt, WorkerExit.CHECKPOINT_UNFIT))

    @rule(number=HOSTS, lives=st.booleans())
    def suspect_that_the_store_learns_of_late(self, number: int, lives: bool) -> None:
        """It goes away while attempts die from its newest, and comes back once another daemon is there."""
        self.host_comes_to_train(number)
        self.train(number, 20, True)
        self.worker_is_killed(number)
        self.world.leaves_at_go = not self.world.is_away
        self.workers_die(number, 4)
        self.train(number, 5, True)
        self.daemon_dies(number, lives, 3, False)
        self.store_comes(number)
        self.train(number, 3, True)

    # --- people -------------------------------------------------------------------------------------------------------

    @rule(number=HOSTS)
    def operator_starts(self, number: int) -> None:
        if self.hosts[number].job.state not in ALIVE:
            self.post(self.hosts[number], events.StartRequested())

    @rule(number=HOSTS)
    def operator_stops(self, number: int) -> None:
        self.post(self.hosts[number], events.StopRequested())

    @rule(number=HOSTS, is_anew=st.booleans(), choice=st.integers(0, 3))
    def operator_chooses(self, number: int, is_anew: bool, choice: int) -> None:
        host = self.hosts[number]
        self.post(host, events.StopRequested())
        names = [*committed_checkpoints(host.folder), *map(parse_name, host.mirror.names)]
        step = 0 if is_anew or not names else names[choice % len(names)].step
        self.post(host, events.BeginAtRequested(step), events.StartRequested())

    # --- machines -----------------------------------------------------------------------------------------------------

    @rule()
    def store_goes_or_comes(self) -> None:
        self.world.is_away = not self.world.is_away
        for host in self.hosts:
            self.loop.do(host.mirror.retry_now)

    @rule(number=HOSTS)
    def store_comes(self, number: int) -> None:
        if self.world.is_away:
            self.store_goes_or_comes()

    @rule(seconds=st.sampled_from([1.0, 9.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.now += seconds
        for host in self.hosts:
            deadline = host.job.deadline()
            if deadline is not None and deadline <= self.loop.now:
                self.loop.do(host.expire)
        self.loop.do(lambda: None)

    @rule(number=HOSTS, resumes=st.booleans())
    def daemon_is_replaced(self, number: int, resumes: bool, mounts: bool = False) -> None:
        """With its worker, as by a reboot, after which the disk `mounts` if it was not there, or is not."""
        host = self.hosts[number]
        self.worker_is_killed(number)
        wanted = host.job.facts.wanted
        self.loop.do(host.end_daemon)
        if mounts:
            host.mount_or_unmount()
        host.begin_daemon()
        if resumes and wanted:
            self.post(host, events.StartRequested(resumes=True))

    @rule(number=HOSTS, lives=st.booleans(), steps=st.integers(0, 5), is_rebooted=st.booleans())
    def daemon_dies(self, number: int, lives: bool, steps: int, is_rebooted: bool) -> None:
        """`steps`: the worker does them, and saves, while no daemon is there; it `lives` until the next one is."""
        host = self.hosts[number]
        if host.trains and host.job.state is State.RUNNING:
            self.loop.do(host.end_daemon)
            if steps:
                host.step += steps
                self.world.write(host.saves_in, CheckpointName(host.step, host.job.facts.attempt))
                host.has_committed = True
                host.given_up.discard(CheckpointName(host.step, host.job.facts.attempt))
            wanted = host.job.facts.wanted
            host.begin_daemon()
            host.job.facts.wanted = wanted
            self.loop.do(*([host.adopt] if lives else [host.lose_worker, is_rebooted]))

    @rule(number=HOSTS, home=st.sampled_from(["j", "k"]), is_other_store=st.booleans())
    def section_is_changed(self, number: int, home: str, is_other_store: bool) -> None:
        """And update is told to discard whatever is in its way."""
        host = self.hosts[number]
        wanted = host.job.facts.wanted
        self.post(host, events.ProgramClosed("update", False))
        while host.job.state in ALIVE:
            self.loop.do(host.expire)
        uploads = host.mirror.waits
        self.loop.do(host.end_daemon)
        host.home = home
        host.begin_daemon()
        if uploads:
            self.loop.do(host.mirror.resume)
        host.job.facts.wanted = wanted
        if wanted:
            self.post(host, events.StartRequested(resumes=True))

    @rule(number=HOSTS)
    def host_reboots_without_its_disk(self, number: int) -> None:
        self.host_comes_to_train(number)
        self.daemon_is_replaced(number, True, mounts=True)

    @rule(number=HOSTS)
    def disk_is_mounted(self, number: int) -> None:
        host = self.hosts[number]
        if not host.is_mounted and host.job.state not in ALIVE:
            host.mount_or_unmount()

    @rule(number=HOSTS)
    def host_is_lost(self, number: int) -> None:
        host = self.hosts[number]
        self.loop.do(host.end_daemon)
        host.lose_all()

    @rule(number=HOSTS, is_deleted=st.booleans())
    def newest_is_damaged_or_deleted(self, number: int, is_deleted: bool) -> None:
        host = self.hosts[number]
        for name in committed_checkpoints(host.folder)[:1]:
            path = host.folder / str(name)
            if is_deleted:
                shutil.rmtree(path)
            else:
                (path / "state.json").write_bytes(b"damaged")

    @rule()
    def store_damages_the_newest(self) -> None:
        for path in sorted((self.world.folder / "store" / "j").glob("e*/*/state.json"))[-1:]:
            path.write_bytes(b"damaged")

    @rule(number=HOSTS)
    def room_is_made(self, number: int) -> None:
        removal.delete_oldest(self.hosts[number].folder)


Histories.TestCase.settings = cases(60, stateful_step_count=40, deadline=None)


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.timeout(900)  # shrinking alone may take five minutes
class TestNoHostBeginsBehindWithoutAReason(Histories.TestCase):
    """Run as hypothesis runs a state machine."""


@pytest.fixture
def histories() -> Iterator[Histories]:
    histories = Histories()
    histories.begin()
    yield histories
    histories.teardown()


def launched_while_it_waits(histories: Histories) -> int:
    """The attempts of twenty looks."""
    host = histories.hosts[0]
    before = host.job.facts.attempt
    for _ in range(20):
        assert host.job.state is State.BACKOFF
        histories.loop.do(host.expire)
    return host.job.facts.attempt - before


def test_disk_that_is_not_mounted_is_waited_for_without_launches_also_if_a_store_has_all(histories: Histories):
    host = histories.hosts[0]
    histories.host_comes_to_train(0)
    histories.loop.do(host.end_worker, events.WorkerExited(1, WorkerExit.STOPPED))
    histories.loop.do(host.post, events.StopRequested())
    host.mount_or_unmount()
    histories.post(host, events.StartRequested())

    assert launched_while_it_waits(histories) == 0

    assert "but the folder is now on the file system below" in (host.job.facts.reason or "")
    host.mount_or_unmount()
    histories.host_comes_to_train(0)
    assert host.trains and histories.world.broken == []


@pytest.mark.parametrize("is_new", [True, False])
def test_store_that_alone_has_what_is_missing_is_waited_for_without_launches(histories: Histories, is_new: bool):
    host = histories.hosts[0]
    histories.host_comes_to_train(0)
    histories.operator_stops(0)
    histories.store_goes_or_comes()
    if is_new:
        histories.host_is_lost(0)
    else:
        shutil.rmtree(host.folder)
    histories.post(host, events.StartRequested())

    assert launched_while_it_waits(histories) == 0

    assert ("cannot reach it" if is_new else "make the store reachable") in (host.job.facts.reason or "")
    histories.store_goes_or_comes()
    histories.host_comes_to_train(0)
    assert host.trains and host.begun == CheckpointName(6, 1)


def test_operator_begins_anew_also_if_a_store_that_alone_may_have_something_is_away(histories: Histories):
    host = histories.hosts[0]
    histories.store_goes_or_comes()
    histories.post(host, events.StartRequested())
    histories.loop.do(host.expire)
    histories.post(host, events.BeginAtRequested(0))
    histories.loop.do(host.expire)
    histories.train(0, 1, True)

    assert host.trains and host.begun is None


@pytest.mark.parametrize("lives", [True, False])
def test_what_a_start_has_passed_over_is_not_taken_for_another_hosts_by_the_next_daemon(
    histories: Histories, lives: bool
):
    histories.host_comes_to_train(0)
    histories.suspect_that_the_store_learns_of_late(0, lives)

    assert histories.world.broken == []
    assert histories.hosts[0].trains and histories.hosts[0].mirror.status.epoch == 2
