"""Random histories of a daemon's start: it is killed or stopped, workers die meanwhile, a section changes, and the next
daemon gets orders from its first moment on, from several clients.

Two claims. No program ever has two workers: each holds a lock as long as it lives, and says so if another has it. And
once all is quiet each program does what the last order says that the daemon accepted.

Run it for long with `python -m tests.system.start_histories --minutes 15`; the suite runs it for a moment. A failure
prints the seed and what was done.
"""

import argparse
import contextlib
import copy
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.places import ROOT
from tests.system.harness import Daemon, Refused

PROGRAMS = ("plain", "slow", "job")
CHANGED = "slow"
"""The program whose section changes, goes and comes back; one client alone gives it orders and says `update`."""
WORK = """
exec 9>>"$1.lock"
flock -n 9 || echo "$$" >>"$1.two"
if [ "$1" = slow ]; then trap 'sleep 0.3; exit 0' TERM; while :; do sleep 0.05; done; fi
exec sleep 1000
"""
JOB = """
import fcntl, time
from worker.files import FilesRun

lock = open("job.lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open("job.two", "a").write("two")

class Counting:
    versions = {"counting": "1"}
    topology = {}
    def write(self, folder):
        (folder / "count").write_bytes(bytes(1000))
    def read(self, folder):
        pass

with FilesRun(Counting(), total_steps=100_000_000) as run:
    while True:
        time.sleep(0.02)
        run.step_done(epoch=0, batch=run.step)
"""
KEYS = "stdout_logfile=NONE\nstderr_logfile=NONE\nstartsecs=0\nstopwaitsecs=5\nstartretries=1000\n"
PATIENCE_S = 60.0
TAKEN_OVER_S = 1.5  # what takes a few milliseconds: then a daemon has begun to start what is to run
UP = ("RUNNING", "STARTING", "FLUSHING", "BACKOFF")
DOWN = ("STOPPED", "EXITED", "SUCCEEDED", "FAILED", "FATAL")
ALREADY, NOT_THERE = "ALREADY_STARTED", "NOT_RUNNING"


@dataclass
class Order:
    """What a program has to do. `is_up` is None while an order's answer was lost with its daemon: both are right."""

    is_up: bool | None = True
    is_configured: bool = True
    """Whether it has a section in the configuration that is in use."""


@dataclass
class StartHistories:
    """The programs, what was ordered, and what was done so far."""

    folder: Path
    seed: int
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        (self.folder / "work.sh").write_text(WORK)
        (self.folder / "train.py").write_text(JOB)
        self.orders = {name: Order() for name in PROGRAMS}
        self.mark, self.is_written = 0, True
        self.daemon = Daemon(self.folder, self.sections())

    def sections(self) -> str:
        job = f"{sys.executable} {self.folder}/train.py\ncheckpoint_dir={self.folder}/job\ncheckpoint_interval=10 steps"
        written = {
            "plain": f"command=/bin/sh {self.folder}/work.sh plain\nautorestart=true\n",
            "slow": f"command=/bin/sh {self.folder}/work.sh slow\nautorestart=true\nenvironment=MARK={self.mark}\n",
            "job": f'command={job}\nstandby=off\nenvironment=PYTHONPATH="{ROOT}"\n',
        }
        names = [name for name in PROGRAMS if name != CHANGED or self.is_written]
        return "".join(f"[program:{name}]\n{written[name]}{KEYS}directory={self.folder}\n" for name in names)

    def run(self, minutes: float) -> None:
        ends_at = time.monotonic() + 60 * minutes
        with self.daemon:
            self.require_as_ordered()
            while time.monotonic() < ends_at:
                self.round()
                self.require_as_ordered()

    def round(self) -> None:
        """A daemon ends, some time passes, the next one starts amid orders; now and then it is killed amid them too."""
        self.end_daemon()
        if self.random.random() < 0.4:
            self.change_section()
        self.daemon.launch()
        plans = [[self.random.random() for _ in range(2 * self.random.randrange(4))] for _ in PROGRAMS]
        clients = [
            threading.Thread(target=self.give_orders, args=(name, random.Random(f"{self.seed} {plan}"), len(plan) // 2))
            for name, plan in zip(PROGRAMS, plans, strict=True)
        ]
        for client in clients:
            client.start()
        if self.random.random() < 0.3:
            time.sleep(self.random.choice([0.05, 0.2, 0.5, 1.0]))
            self.note("daemon killed amid orders")
            self.daemon.stop(signal.SIGKILL)
            self.daemon.launch()
        for client in clients:
            client.join()
        self.daemon.until(self.daemon._answers, "the daemon answers")

    def end_daemon(self) -> None:
        pids = [program["pid"] for program in self.daemon.call("status")["programs"]]
        number = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        self.note(f"daemon gets {number.name}")
        self.daemon.stop(number)
        for pid in pids:
            if pid and self.random.random() < 0.25:
                self.note(f"{pid} killed")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, self.random.choice([signal.SIGKILL, signal.SIGTERM]))

    def change_section(self) -> None:
        """Before a daemon starts: it reads it, whoever says `update`."""
        self.is_written = not self.is_written or self.random.random() < 0.6
        self.mark += 1
        self.write()
        self.orders[CHANGED].is_configured = self.is_written  # what was ordered before it went holds when it is back

    def write(self) -> None:
        self.note(f"{CHANGED} has mark {self.mark}" if self.is_written else f"{CHANGED} has no section")
        new = copy.copy(self.daemon)
        new.conf = self.folder / "new.conf"
        new.write(self.sections())
        new.conf.replace(self.daemon.conf)  # a daemon that starts meanwhile reads one or the other

    def give_orders(self, name: str, chance: random.Random, count: int) -> None:
        """One client's, one after the other, from the daemon's first answer on."""
        order = self.orders[name]
        for _ in range(count):
            time.sleep(chance.choice([0.0, 0.0, 0.003, 0.02, 0.1]))
            if name == CHANGED and chance.random() < 0.5:
                self.is_written, self.mark = not self.is_written or chance.random() < 0.5, self.mark + 1
                self.write()
                self.call(order, "update")
            else:
                command = chance.choice(["start", "stop", "signal"])
                self.call(order, command, name=name, **({"signal": "CONT"} if command == "signal" else {}))

    def call(self, order: Order, command: str, **arguments: object) -> None:
        ends_at = time.monotonic() + PATIENCE_S
        while True:
            said = " ".join([command, *map(str, arguments.values())])
            try:
                self.daemon.call(command, **arguments)
            except (ConnectionRefusedError, FileNotFoundError):  # it does not listen yet
                assert time.monotonic() < ends_at, f"no daemon answers\n{self.story()}"
                time.sleep(0.002)
                continue
            except Refused as refused:
                self.note(f"{said}: {refused}")
                if refused.code == ALREADY:
                    order.is_up = True
                elif refused.code == NOT_THERE and command == "stop":
                    order.is_up = False
                return
            except (OSError, ValueError):  # the daemon died: with the order carried out, or not
                self.note(f"{said}: no answer")
                if command != "signal":
                    order.is_up = None
                if command == "update":
                    order.is_configured = self.is_written  # the next daemon reads it
                return
            self.note(said)
            if command == "update":
                if not self.is_written:
                    order.is_up = None  # whether it was in use, and its order is forgotten, depends on who was first
                order.is_configured = self.is_written
            elif command != "signal":
                order.is_up = command != "stop"
            return

    def require_as_ordered(self) -> None:
        """Waits until all programs do what they should; and no worker has found another of its program."""
        if any(order.is_up is None for order in self.orders.values()):
            time.sleep(TAKEN_OVER_S)  # what is about to start is still down
        ends_at = time.monotonic() + PATIENCE_S
        while wrong := self.not_as_ordered():
            assert time.monotonic() < ends_at, f"{'; '.join(wrong)}\n{self.story()}\n{self.daemon.errors()}"
            time.sleep(0.05)
        self.note("quiet")
        for name in PROGRAMS:
            assert not (self.folder / f"{name}.two").exists(), f"{name} had two workers\n{self.story()}"

    def not_as_ordered(self) -> list[str]:
        programs = {program["name"]: program for program in self.daemon.call("status")["programs"]}
        wrong = [
            f"{name} is {'in' if name in programs else 'not in'} use"
            for name, order in self.orders.items()
            if order.is_configured != (name in programs)
        ]
        for name, program in programs.items():
            order = self.orders[name]
            is_up = program["state"] == "RUNNING"
            if not is_up and program["state"] not in DOWN:
                wrong.append(f"{name} is {program['state']}")
            elif order.is_up is None:
                order.is_up = is_up
            elif order.is_up != is_up:
                wrong.append(f"{name} is {program['state']}")
        return wrong

    def note(self, what: str) -> None:
        self.done.append(what)

    def story(self) -> str:
        return f"seed {self.seed}; done: " + "; ".join(self.done[-60:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="starts-") as folder:
        histories = StartHistories(Path(folder), options.seed)
        histories.run(options.minutes)
        print(f"{histories.done.count('quiet')} starts, as ordered; seed {options.seed}")


if __name__ == "__main__":
    main()
