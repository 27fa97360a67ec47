"""Random sequences of commands and faults on three jobs of real daemons, with one claim: no attempt begins behind the
newest checkpoint that any answer ever named, unless the reason is said.

Run it for long with `python -m tests.system.random_histories --minutes 15`; the suite runs it for a minute. A failure
prints the seed and the actions so far. The third job is mirrored, and a second host takes it over and is lost again.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.layout import parse_name
from tests.reading import records
from tests.system.harness import Daemon, Refused
from tests.waiting import wait_until

JOBS = ("alpha", "beta", "gamma")
MIRRORED = JOBS[2]
JOB = """
import time
from worker.files import FilesRun

class Counting:
    versions = {"counting": "1"}
    topology = {}
    def write(self, folder):
        (folder / "count").write_bytes(bytes(40_000))
    def read(self, folder):
        pass

with FilesRun(Counting(), total_steps=100_000_000) as run:
    while True:
        time.sleep(0.01)
        run.step_done(epoch=0, batch=run.step)
"""
SECTION = """[program:{name}]
command={python} {folder}/train.py
checkpoint_dir={checkpoint_dir}
checkpoint_interval={every} steps
checkpoint_keep=4
flush_timeout=6
startup_timeout=60
startretries=1000
standby=off
environment=MARK="{mark}",PYTHONPATH="{root}"
{keys}
"""
PATIENCE_S = 90.0
REFUSES_TO_START = 71  # EX_OSERR: it can't use what is in its state folder
SETTLED_S = 3.0  # a worker that was told to leave has left by then
STATES_OF_REST = ("STOPPED", "FAILED", "EXITED", "SUCCEEDED")


@dataclass
class Told:
    """What answers have said of one job. `newest`: the highest step that was ever named as committed, since the last
    start from an older one that said why. `attempts`: by (host, number), where those that were judged began."""

    newest: int = 0
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)


class Host:
    """One host: a daemon with its state folder and disks. Its configuration can be changed."""

    def __init__(self, name: str, folder: Path, store: Path, jobs: tuple[str, ...]) -> None:
        self.name, self.folder, self.store, self.jobs = name, folder, store, jobs
        self.disk = folder / "disk"
        self.directories = {job: self.disk / job for job in jobs}
        self.marks = dict.fromkeys(jobs, 0)
        folder.mkdir(exist_ok=True)
        self.disk.mkdir(exist_ok=True)
        (folder / "train.py").write_text(JOB)
        self.daemon = Daemon(folder, self.sections())

    def sections(self) -> str:
        return "".join(self.section(job) for job in self.jobs)

    def section(self, job: str) -> str:
        return SECTION.format(
            name=job,
            python=sys.executable,
            folder=self.folder,
            checkpoint_dir=self.directories[job],
            every=20 + 7 * JOBS.index(job),
            mark=self.marks[job],
            root=Path(__file__).parents[2],
            keys=f"mirror=file://{self.store}\n" if job == MIRRORED else "",
        )

    def write(self) -> None:
        self.daemon.write(self.sections())

    @property
    def runs(self) -> bool:
        return self.daemon.process is not None and self.daemon.process.poll() is None


class Histories:
    """The two hosts, what was told, and the actions so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.seed = random.Random(seed), seed
        self.folder, self.store = folder, folder / "store"
        (self.store / MIRRORED).mkdir(parents=True)  # a store of files is never made by itself
        self.here = Host("here", folder / "here", self.store, JOBS)
        self.there = Host("there", folder / "there", self.store, (MIRRORED,))
        self.told = {job: Told() for job in JOBS}
        self.log: list[str] = []
        self.reasons: dict[str, int] = {}
        self.began_at = time.monotonic()

    # --- the claim ---------------------------------------------------------------------------------------------------

    def look(self, host: Host) -> dict[str, dict[str, Any]]:
        """The status of all jobs, held to the claim; an attempt is judged before what it has committed is believed."""
        found = {program["name"]: program for program in host.daemon.call("status")["programs"]}
        for job, status in found.items():
            self._judge(host, job, status["job"])
            self._believe(job, status["job"])
        return found

    def _judge(self, host: Host, job: str, status: dict[str, Any]) -> None:
        if status["step"] is None:
            return  # it has not begun
        told, key = self.told[job], (host.name, status["attempt"])
        if key in told.attempts:
            return
        name = None if status["restored"] is None else parse_name(status["restored"])
        begins_at = 0 if name is None else name.step
        told.attempts[key] = begins_at
        if begins_at >= told.newest:
            return
        because = status["older_because"] or self._reason_of_unseen(host, job, status["attempt"])
        if because is None:
            raise AssertionError(
                f"{job}, attempt {status['attempt']} on {host.name}, began at step {begins_at} although step "
                f"{told.newest} was named before, and no reason is said\n{self.story()}"
            )
        self.reasons[because] = self.reasons.get(because, 0) + 1
        told.newest = begins_at

    def _reason_of_unseen(self, host: Host, job: str, attempt: int) -> str | None:
        """What the log says of an earlier attempt that was over before anybody looked; this one goes on from there."""
        judged = {number for name, number in self.told[job].attempts if name == host.name}
        said = (record for record in records(host.folder / "daemon.log") if record["event"] == "checkpoint.older")
        unseen = (record for record in said if record["program"] == job and int(record["attempt"]) not in judged)
        return next((str(record["because"]) for record in unseen if int(record["attempt"]) < attempt), None)

    def _believe(self, job: str, status: dict[str, Any]) -> None:
        named = [status["newest"], status["checkpoint"]]
        steps = [each["step"] for each in named if each is not None]
        if status["mirror"] is not None and status["mirror"]["newest_step"] is not None:
            steps.append(status["mirror"]["newest_step"])
        newest = max(steps, default=0)
        began_at = max(self.told[job].attempts.values(), default=0)
        if newest >= began_at:  # else it is of a line that was given up
            self.told[job].newest = max(self.told[job].newest, newest)

    def story(self) -> str:
        return f"seed {self.seed}; actions: " + "; ".join(self.log[-40:])

    # --- helpers -----------------------------------------------------------------------------------------------------

    def until(self, look: Callable[[], Any], what: str, host: Host | None = None) -> Any:
        daemon = (host or self.here).daemon
        return wait_until(look, what, PATIENCE_S, lambda: f"{self.story()}\n{daemon.errors()}")

    def status(self, job: str, host: Host | None = None) -> dict[str, Any]:
        return self.look(host or self.here)[job]

    def trains(self, job: str, host: Host | None = None) -> bool:
        status = self.status(job, host)
        return status["state"] == "RUNNING" and status["job"]["newest"] is not None

    def call(self, command: str, **arguments: Any) -> str | None:
        """The words of a refusal; None if the command was carried out."""
        try:
            self.here.daemon.call(command, **arguments)
        except Refused as refused:
            return refused.message
        return None

    def kill(self, job: str, number: int = signal.SIGKILL, host: Host | None = None) -> None:
        pid = self.status(job, host)["pid"]
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def settle(self, job: str) -> None:
        """Brings a job back to training, by what its status tells an operator to do."""
        host = self.here
        ends_at = time.monotonic() + PATIENCE_S
        while not self.trains(job):
            status = self.status(job)
            if time.monotonic() > ends_at:
                raise AssertionError(f"{job} does not train again: {status['description']}\n{self.story()}")
            if status["state"] in STATES_OF_REST:
                self.call("start", name=job, wait=False)
            elif said := re.search(r"set checkpoint_dir back to (\S+),", status["description"]):
                host.directories[job] = Path(said[1])  # where it trained when an update back was refused
                host.write()
                self.call("update")
            time.sleep(0.05)

    # --- what happens ------------------------------------------------------------------------------------------------

    def worker_is_killed(self, job: str) -> None:
        self.kill(job, self.random.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV]))

    def worker_is_stopped_and_the_job_too(self, job: str) -> None:
        self.kill(job, signal.SIGSTOP)
        self.call("stop", name=job)

    def job_is_stopped_and_started(self, job: str) -> None:
        self.call("stop", name=job)
        self.status(job)
        self.call("start", name=job, wait=False)

    def job_is_restarted_by_supervisorctl(self, job: str) -> None:
        command = [sys.executable, "-m", "supervisor.ctl.main", "-c", str(self.here.daemon.conf), "restart", job]
        subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE_S, cwd=Path(__file__).parents[2])

    def checkpoint_is_asked_for(self, job: str) -> None:
        with contextlib.suppress(Refused):
            step = self.here.daemon.call("checkpoint", name=job)["step"]
            self.told[job].newest = max(self.told[job].newest, step)

    def section_is_changed(self, job: str) -> None:
        self.here.marks[job] += 1
        self.here.write()
        self.call("update")

    def section_is_changed_by_two_operators(self, job: str) -> None:
        """The second one comes while the job of the first one stops, and says it once more when that is over."""
        self.here.marks[job] += 1
        self.here.write()
        first = threading.Thread(target=self.call, args=("update",))
        first.start()
        time.sleep(self.random.choice([0.0, 0.05, 0.3]))
        self.here.marks[job] += 1
        self.here.write()
        self.call("update", discard=self.random.random() < 0.3)
        first.join()
        self.call("update")

    def checkpoint_dir_is_changed_by_a_letter(self, job: str) -> None:
        self.here.directories[job] = self.here.disk / f"{job}s"
        self.here.write()
        self.call("update")
        self.wait_a_moment(job)
        self.here.directories[job] = self.here.disk / job
        self.here.write()
        self.call("update")

    def folder_is_moved_away_and_back(self, job: str) -> None:
        home, away = self.here.disk / job, self.here.disk / f"{job}.away"
        if not home.exists() or away.exists():
            return
        home.rename(away)
        self.kill(job)
        self.wait_a_moment(job)
        if home.exists():
            shutil.rmtree(home)
        away.rename(home)

    def newest_checkpoint_is_damaged(self, job: str) -> None:
        self._change_newest(job, lambda folder: (folder / "count").write_bytes(b"garbage"))

    def newest_checkpoint_is_deleted(self, job: str) -> None:
        self._change_newest(job, shutil.rmtree)

    def _change_newest(self, job: str, change: Callable[[Path], object]) -> None:
        if job == MIRRORED:
            return  # the store has it
        self.kill(job, signal.SIGSTOP)
        home = self.here.disk / job
        names = selection.committed_checkpoints(home)
        if len(names) > 1:
            change(home / str(names[0]))
        self.kill(job)

    def operator_chooses_an_older_step(self, job: str) -> None:
        names = selection.committed_checkpoints(self.here.disk / job)
        if len(names) > 1:
            self.call("stop", name=job)
            self.call("start", name=job, wait=False, from_step=names[1].step)

    def operator_begins_anew(self, job: str) -> None:
        self.call("stop", name=job)
        self.call("start", name=job, wait=False, from_scratch=True)

    def disk_is_full(self, job: str) -> None:
        with self._full_disk():
            how = self.random.choice(["stop", "kill", "checkpoint", "update"])
            if how == "update":
                self.section_is_changed(job)
            elif how == "kill":
                self.kill(job)
            else:
                self.call(how, name=job)
            self.wait_a_moment(job)

    @contextlib.contextmanager
    def _full_disk(self) -> Iterator[None]:
        filler = self.here.disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()

    def daemon_is_killed(self, job: str) -> None:
        self.here.daemon.stop(signal.SIGKILL)
        self.here.daemon.start(PATIENCE_S)

    def daemon_is_stopped(self, job: str) -> None:
        self.here.daemon.stop()
        self.here.daemon.start(PATIENCE_S)

    def daemon_is_reloaded(self, job: str) -> None:
        if self.random.random() < 0.5:
            self.here.marks[job] += 1
            self.here.write()
        if self.call("reload") is None:
            self.until(self._is_reloaded, "the next daemon answers")

    def _is_reloaded(self) -> bool:
        try:
            return bool(self.here.daemon.call("pid"))
        except OSError:
            return False

    def host_is_rebooted(self, job: str) -> None:
        pids = self.pids().values()
        self.here.daemon.stop(signal.SIGKILL)
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.clean_runtime_dir()
        self.here.daemon.start(PATIENCE_S)

    def runtime_dir_is_cleaned(self, job: str) -> None:
        """By somebody who takes what is in /run for old."""
        self.clean_runtime_dir()
        self.random.choice([self.worker_is_killed, self.daemon_is_killed, self.daemon_is_reloaded])(job)

    def clean_runtime_dir(self) -> None:
        shutil.rmtree(self.here.folder / "state" / "run", ignore_errors=True)

    def order_is_given_and_the_daemon_is_killed(self, job: str) -> None:
        names = selection.committed_checkpoints(self.here.disk / job)
        self.call("stop", name=job)
        order = {"from_step": names[-1].step} if names and self.random.random() < 0.7 else {"from_scratch": True}
        self.call("start", name=job, wait=False, **order)
        time.sleep(self.random.choice([0.0, 0.01, 0.05, 0.2, 0.6]))  # it may be carried out, or not yet
        self.daemon_is_killed(job)

    def command_of_its_section_is_missing(self, job: str) -> None:
        wrong = self.here.section(job).replace("/train.py", "/trian.py")
        self.here.daemon.write("".join(wrong if name == job else self.here.section(name) for name in JOBS))
        self.call("update", discard=self.random.random() < 0.5)
        self.wait_a_moment(job)
        self.here.write()
        self.call("update")

    def inodes_are_used_up(self, job: str) -> None:
        used = os.statvfs(self.here.disk)
        self._limit_inodes(str(used.f_files - used.f_ffree + 3))
        self.random.choice([self.worker_is_killed, self.job_is_stopped_and_started, self.section_is_changed])(job)
        self.wait_a_moment(job)
        self._limit_inodes("100k")

    def _limit_inodes(self, number: str) -> None:
        command = ["mount", "-o", f"remount,nr_inodes={number}", str(self.here.disk)]
        subprocess.run(command, check=False, capture_output=True)

    def record_is_damaged_and_the_folder_away(self, job: str) -> None:
        """One of the two records, while no daemon runs; and the checkpoints are out of reach at the next start."""
        self.here.daemon.stop()
        file = self.here.folder / "state" / self.random.choice(["ledger.sqlite3", "wanted.json"])
        how = self.random.choice(["garbage", "deleted", "other version"])
        if how == "deleted":
            file.unlink()
        elif how == "other version" and file.name == "ledger.sqlite3":
            with closing(sqlite3.connect(file)) as ledger:
                ledger.execute("PRAGMA user_version = 7")
        else:
            file.write_bytes(self.random.randbytes(3000))
        home, away = self.here.disk / job, self.here.disk / f"{job}.away"
        home.rename(away)
        if how == "other version" and file.name == "ledger.sqlite3":
            self.here.daemon.launch()
            assert self.here.daemon.process is not None
            assert self.here.daemon.process.wait(PATIENCE_S) == REFUSES_TO_START, self.story()
            file.rename(file.with_suffix(".other"))  # as it says
        self.here.daemon.start(PATIENCE_S)
        self.wait_a_moment(job)
        if home.exists():
            shutil.rmtree(home)
        away.rename(home)

    def project_is_copied_and_a_daemon_started_in_the_copy(self, job: str) -> None:
        """The workers of the original are not the copy's."""
        before = self.settled_pids()
        copy = self.folder / "copy"
        command = ["cp", "-a", "--reflink=auto", str(self.here.folder), str(copy)]
        subprocess.run(command, check=False, capture_output=True)  # pipes and sockets among it
        (copy / "s.sock").unlink(missing_ok=True)
        sections = "".join(self.here.section(name) for name in JOBS if name != MIRRORED)  # the store can't be copied
        other = Daemon(copy, sections.replace(str(self.here.folder), str(copy)))
        try:
            other.start(PATIENCE_S)
            time.sleep(1.0)
        finally:
            if other.process is not None and other.process.poll() is None:
                other.stop()
            shutil.rmtree(copy, ignore_errors=True)
        after = self.pids()
        if before != after:
            raise AssertionError(f"a daemon in a copy ended workers of the original: {before}, {after}\n{self.story()}")

    def pids(self) -> dict[str, int | None]:
        return {name: status["pid"] for name, status in self.look(self.here).items()}

    def settled_pids(self) -> dict[str, int | None]:
        """The workers, once none is on its way out, as after a SIGTERM of before."""
        before, since = self.pids(), time.monotonic()
        while time.monotonic() - since < SETTLED_S:
            time.sleep(0.1)
            if (now := self.pids()) != before:
                before, since = now, time.monotonic()
        return before

    def another_host_takes_over_and_is_lost(self, job: str) -> None:
        """The mirrored job goes on elsewhere, while this host is down with its disk; then that host is lost."""
        here, there = self.here, self.there
        self.until(lambda: self.status(MIRRORED)["job"]["mirror"]["newest_step"], "the store has something")
        self.told[MIRRORED].newest = self.lose(here)  # nobody can reach what only its disk has
        there.write()
        there.daemon.start(PATIENCE_S)
        newest = self.told[MIRRORED].newest
        self.until(lambda: self.trains(MIRRORED, there), "the other host trains", there)
        if self.random.random() < 0.7:
            self.until(
                lambda: self.status(MIRRORED, there)["job"]["mirror"]["newest_step"] > newest, "it uploads", there
            )
        in_store = self.lose(there)
        for folder in (there.folder / "state", there.disk):  # the logger leaves by itself, and tidies up meanwhile
            self.until(lambda folder=folder: remove(folder), "the disk of the lost host is gone", there)
        there.disk.mkdir()
        for key in [attempt for attempt in self.told[MIRRORED].attempts if attempt[0] == there.name]:
            del self.told[MIRRORED].attempts[key]
        self.told[MIRRORED].newest = in_store  # what only the disk of the lost host had is lost with it
        here.daemon.start(PATIENCE_S)

    def lose(self, host: Host) -> int:
        """The host is gone at once: daemon and workers. Returns the newest step that it told to be in the store."""
        status = self.look(host)
        host.daemon.stop(signal.SIGKILL)
        for each in status.values():
            if each["pid"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each["pid"], signal.SIGKILL)
        return int(status[MIRRORED]["job"]["mirror"]["newest_step"] or 0)

    def wait_a_moment(self, job: str) -> None:
        ends_at = time.monotonic() + self.random.uniform(0.3, 3.0)
        while time.monotonic() < ends_at:
            if self.here.runs:
                self.status(job)
            time.sleep(0.05)

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, minutes: float, without: Collection[str] = ()) -> None:
        """`without`: names of actions to leave out."""
        actions: dict[Callable[[str], None], int] = {
            self.worker_is_killed: 4,
            self.worker_is_stopped_and_the_job_too: 1,
            self.job_is_stopped_and_started: 2,
            self.job_is_restarted_by_supervisorctl: 2,
            self.checkpoint_is_asked_for: 2,
            self.section_is_changed: 2,
            self.section_is_changed_by_two_operators: 2,
            self.checkpoint_dir_is_changed_by_a_letter: 2,
            self.folder_is_moved_away_and_back: 2,
            self.newest_checkpoint_is_damaged: 2,
            self.newest_checkpoint_is_deleted: 1,
            self.operator_chooses_an_older_step: 1,
            self.operator_begins_anew: 1,
            self.disk_is_full: 3,
            self.daemon_is_killed: 2,
            self.daemon_is_stopped: 1,
            self.daemon_is_reloaded: 2,
            self.host_is_rebooted: 1,
            self.runtime_dir_is_cleaned: 1,
            self.order_is_given_and_the_daemon_is_killed: 1,
            self.command_of_its_section_is_missing: 1,
            self.inodes_are_used_up: 1,
            self.record_is_damaged_and_the_folder_away: 2,
            self.project_is_copied_and_a_daemon_started_in_the_copy: 1,
            self.another_host_takes_over_and_is_lost: 2,
        }
        with small_disk(self.here.disk):
            try:
                self.here.daemon.start(PATIENCE_S)
                for job in JOBS:
                    self.settle(job)
                while time.monotonic() - self.began_at < minutes * 60:
                    (action,) = self.random.choices(list(actions), list(actions.values()))
                    if action.__name__ in without:
                        continue
                    job = self.random.choice(JOBS)
                    self.log.append(f"{action.__name__} {job}")
                    action(job)
                    for each in JOBS:
                        self.settle(each)
                    self.wait_a_moment(job)
            finally:
                for host in (self.here, self.there):
                    if host.runs:
                        host.daemon.stop()


def remove(folder: Path) -> bool:
    """Whether a folder is gone now."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@contextlib.contextmanager
def small_disk(where: Path) -> Iterator[None]:
    """A file system of 8 MB for the checkpoints, which can be filled."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", where], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", where], check=False, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--without", action="append", default=[], help="an action to leave out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="histories-") as folder:
        histories = Histories(Path(folder), options.seed)
        try:
            histories.run(options.minutes, options.without)
        except BaseException:
            print(histories.story(), file=sys.stderr)
            raise
    began = {job: len(told.attempts) for job, told in histories.told.items()}
    print(f"seed {options.seed}: {len(histories.log)} actions, attempts {began}, older starts {histories.reasons}")


if __name__ == "__main__":
    main()
