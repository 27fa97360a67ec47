"""Runs an example under a real daemon, kills it at random seeded moments, and gives the hashes of what it ended with.

What is drawn from the seed is which kind of moment a kill is meant for and where in it; when that moment comes depends
on the machine, so two runs of one seed are killed at about the same places, not at the same instruction. Each kill says
what it hit, read from what the dead worker left behind.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import psutil

from bench import peer
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from tests.places import ROOT
from tests.system.harness import Daemon

FIRST_STEP_S = 180.0  # imports and tracing on a machine that is busy with other tests
END_S = 600.0
SAVE_S = 0.02  # how long a save is taken to last until one was measured
LOOK_S = 0.0005
TRIES = 8  # at one kill, until it has met the moment that it was meant for
TORCH_DIGEST = """
import hashlib, sys, torch
def walk(value):
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)} ".encode()
        yield value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from walk(value[key])
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} ".encode()
        for each in value:
            yield from walk(each)
    else:
        yield repr(value).encode()
digest = hashlib.sha256()
for part in walk(torch.load(sys.argv[1], weights_only=True)):
    digest.update(part)
print(digest.hexdigest())
"""  # torch.save writes equal states as different bytes: which strings were one object before is not kept


class Moment(StrEnum):
    """What a worker is at when it is killed."""

    STEP = "step"
    SAVE = "save"
    RESTORE = "restore"


class Damage(StrEnum):
    """What is done to the newest checkpoint just before the kill."""

    FLIP = "one bit flipped"
    CUT = "cut in half"
    GONE = "a file deleted"
    MANIFEST = "the manifest emptied"


@dataclass(frozen=True)
class Kill:
    """One of a schedule. `part`: how far into the moment, in [0, 1)."""

    moment: Moment
    part: float
    damage: Damage | None = None


@dataclass(frozen=True)
class Hit:
    """A kill that happened. `saving`: it left a save unfinished; `steps`: the attempt had made some; `step`: the last
    that was heard of; `damaged`: the checkpoint that was, and how.
    """

    kill: Kill
    attempt: int
    step: int | None
    saving: bool
    steps: bool
    damaged: str | None = None

    @property
    def met(self) -> Moment:
        """The moment that it really met."""
        if not self.steps:
            return Moment.RESTORE
        return Moment.SAVE if self.saving else Moment.STEP


@dataclass(frozen=True)
class End:
    """How a run ended: `hashes` of each file of its last checkpoint, which has all state there is."""

    step: int
    hashes: dict[str, str]
    hits: tuple[Hit, ...] = ()
    attempts: tuple[dict[str, Any], ...] = ()
    wall_s: float = 0.0

    @property
    def same_as(self) -> tuple[int, dict[str, str]]:
        """What has to be equal."""
        return self.step, self.hashes


@dataclass(frozen=True)
class Example:
    """A job of examples/: its keys, but for the checkpoint directory, and how to compare files that are not equal byte
    for byte.
    """

    name: str
    keys: Callable[[], str]
    digest: Callable[[Path], str | None] = lambda path: None
    environment: dict[str, str] = field(default_factory=dict)
    restore_s: float = 0.3  # from its lock on the checkpoint directory to its first step, at least


def _script(name: str, python: Callable[[], str | Path] = lambda: sys.executable) -> Callable[[], str]:
    return lambda: f"command={python()} -u {ROOT}/examples/{name}.py"


def _torch() -> Path:
    return peer.binaries(peer.TORCH) / "python"


def _torch_digest(path: Path) -> str | None:
    if path.suffix != ".pt":
        return None
    command = [str(_torch()), "-c", TORCH_DIGEST, str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.strip()


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DIGITS = Example(
    "digits", lambda: _script("digits")() + "\nreplicas=2\ndeterministic=true\ncheckpoint_interval=100 steps"
)
CHARLM = Example(
    "charlm",
    lambda: "entrypoint=examples.charlm:training\nreplicas=2\ndeterministic=true\ncheckpoint_interval=30 steps",
)
FIT = Example("fit", lambda: _script("fit")() + "\nreplicas=1\ndeterministic=true\ncheckpoint_interval=25 steps")
TORCH = Example(
    "torch",
    lambda: _script("torch_digits", _torch)() + "\ndeterministic=true\ncheckpoint_interval=20 steps",
    _torch_digest,
    restore_s=0.05,
)
PLAIN = Example(
    "plain",
    lambda: _script("plain")() + "\ncheckpoint_interval=150 steps",
    environment={"STEPS": "6000", **_ONE_THREAD},
    restore_s=0.004,
)
TF1 = Example(
    "tf1",
    lambda: _script("tf1_loop")() + "\ndeterministic=true\ncheckpoint_interval=200 steps",
    environment={"STEPS": "8000"},
)
EXAMPLES = {each.name: each for each in (DIGITS, CHARLM, FIT, TORCH, PLAIN, TF1)}


def schedule(seed: int, kills: int, damage: float = 0.0) -> list[Kill]:
    """Three in five at a step, one in five in a save, one in five in a restore; `damage`: the share with damage."""
    chance = random.Random(seed)
    found = []
    for _ in range(kills):
        (moment,) = chance.choices(list(Moment), (3, 1, 1))
        part, spoilt = chance.random(), chance.random() < damage
        found.append(Kill(moment, part, chance.choice(list(Damage)) if spoilt else None))
    return found


class Rig:
    """One example under one daemon, as often as wanted: each run is a program of its own."""

    def __init__(self, example: Example, folder: Path) -> None:
        self._example = example
        self._folder = folder
        self._sections: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._daemon = Daemon(folder, "", environment={"PYTHONPATH": str(ROOT)}, scripts_have=None)

    def __enter__(self) -> Self:
        self._daemon.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._daemon.__exit__(*error)

    def undisturbed(self) -> End:
        """A run in peace."""
        began = time.monotonic()
        name = self._begin()
        self._until_ended(name)
        return self._end(name, (), began)

    def killed(self, kills: Sequence[Kill], insist: bool = False) -> End:
        """A run with these kills; fewer of them (`hits`) if it is done before.

        `insist`: a kill that met another moment than it was meant for is followed by more, each earlier in its moment.
        """
        began = time.monotonic()
        name = self._begin()
        hits: list[Hit] = []
        for number, meant in enumerate(kills):
            for tried in range(TRIES if insist else 1):
                kill = replace(meant, part=meant.part / 2**tried)
                hit = self._strike(name, kill, len(kills) - number)
                if hit is not None:
                    hits.append(hit)
                if hit is None or hit.met is meant.moment:
                    break
        self._until_ended(name)
        return self._end(name, tuple(hits), began)

    def _begin(self) -> str:
        name = f"{self._example.name}-{len(self._sections) + 1}"
        environment = ",".join(f'{key}="{value}"' for key, value in self._example.environment.items())
        self._sections.append(
            f"[program:{name}]\n{self._example.keys()}\ndirectory={ROOT}\ncheckpoint_dir={self._folder}/{name}\n"
            f"checkpoint_keep=3\nenvironment={environment}\nautostart=false\nstartretries=1000000\nstandby=off\n"
            f"stdout_logfile={self._folder}/{name}.log\nredirect_stderr=true\n"
        )
        self._daemon.write("".join(self._sections))
        self._daemon.call("update")
        self._daemon.call("start", name=name, wait=False)
        return name

    def _until_ended(self, name: str) -> None:
        ended = self._daemon.until_state(name, "SUCCEEDED", "FAILED", "STOPPED", patience_s=END_S)
        if ended["state"] != "SUCCEEDED":
            raise AssertionError(f"{name} is {ended['state']}: {ended['reason']}")

    def _end(self, name: str, hits: tuple[Hit, ...], began: float) -> End:
        newest = selection.committed_checkpoints(self._folder / name)[0]
        folder = self._folder / name / str(newest)
        hashes = {
            file.name: self._example.digest(folder / file.name) or file.hash
            for file in manifest.verify_checkpoint(folder).files
        }
        attempts = self._daemon.call("history", name=name, limit=10_000)["attempts"]
        return End(newest.step, hashes, hits, tuple(attempts), time.monotonic() - began)

    # --- a kill ---------------------------------------------------------------------------------------------------

    def _strike(self, name: str, kill: Kill, left: int) -> Hit | None:
        """Waits for the moment and kills; None if the run is done. `left`: kills still to come, this one included."""
        found = self._new_worker(name)
        if found is None:
            return None
        wait = {Moment.STEP: self._in_steps, Moment.SAVE: self._in_save, Moment.RESTORE: self._in_restore}[kill.moment]
        wait(name, found["pid"], kill.part, left)
        try:
            worker = psutil.Process(found["pid"])
            worker.suspend()  # so that what is damaged is still the newest when it dies
        except psutil.NoSuchProcess:
            return self._strike(name, kill, left)
        damaged = self._damage(name, kill.damage) if kill.damage is not None else None
        saving = bool(self._partials(name))
        os.kill(worker.pid, signal.SIGKILL)
        ended = self._daemon.until(lambda: self._ended(name, found["job"]["attempt"]), "the death is booked")
        made_steps = ended["to_step"] is not None and ended["to_step"] > (ended["from_step"] or 0)
        return Hit(kill, ended["attempt"], ended["to_step"], saving, made_steps, damaged)

    def _new_worker(self, name: str) -> dict[str, Any] | None:
        """The status once there is a process; None if there will be none."""

        def look() -> dict[str, Any] | None:
            found = self._daemon.status(name)
            return found if found["pid"] or found["state"] in ("SUCCEEDED", "FAILED", "STOPPED") else None

        found: dict[str, Any] = self._daemon.until(look, f"{name} has a process", FIRST_STEP_S)
        return found if found["pid"] else None

    def _ended(self, name: str, attempt: int) -> dict[str, Any] | None:
        attempts = self._daemon.call("history", name=name, limit=5)["attempts"]
        return next((each for each in attempts if each["attempt"] == attempt and each["ended_wall_at"]), None)

    def _stepping(self, name: str, pid: int) -> dict[str, Any] | None:
        """The status once the worker has made a step; None if it is gone."""

        def look() -> dict[str, Any] | None:
            found = self._daemon.status(name)
            gone = found["pid"] != pid
            return found if gone or (found["state"] == "RUNNING" and found["job"]["section"] == "step") else None

        found: dict[str, Any] = self._daemon.until(look, f"{name} makes a step", FIRST_STEP_S)
        return found if found["pid"] == pid else None

    def _in_steps(self, name: str, pid: int, part: float, left: int) -> None:
        """At any moment, such that the kills still to come are spread over what is left of the run.

        It is counted in steps: how long they take changes with what else the machine does.
        """
        found = self._stepping(name, pid)
        if found is None:
            return
        first, last = found["job"]["step"], found["job"]["total_steps"]
        target = first + part * 2 * (last - first) / (left + 1)

        def is_there() -> bool:
            now = self._daemon.status(name)
            return now["pid"] != pid or now["job"]["step"] >= target

        self._daemon.until(is_there, f"{name} reaches step {target:.0f}", END_S)

    def _in_save(self, name: str, pid: int, part: float, left: int) -> None:
        found = self._stepping(name, pid)
        if found is None:
            return
        checkpoint = found["job"]["checkpoint"]
        while not self._partials(name) and psutil.pid_exists(pid):
            time.sleep(LOOK_S)
        time.sleep(part * (checkpoint["save_s"] if checkpoint else SAVE_S))

    def _in_restore(self, name: str, pid: int, part: float, left: int) -> None:
        """From the lock on the checkpoint directory, which it takes first, on."""
        deadline = time.monotonic() + FIRST_STEP_S
        while not self._has_lock(name, pid) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        time.sleep(part * self._example.restore_s)

    def _has_lock(self, name: str, pid: int) -> bool:
        """Whether it has the lock's file open; also if it is gone."""
        lock = str(self._folder / name / layout.LOCK)
        folder = Path(f"/proc/{pid}/fd")
        try:
            return any(link == lock for link in _links(folder))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return True

    def _partials(self, name: str) -> list[str]:
        """Of saves that are not finished. A checkpoint that is being deleted looks the same, but is an old one."""
        newest = max(
            (checkpoint.step for checkpoint in selection.committed_checkpoints(self._folder / name)), default=-1
        )
        try:
            found = [each.name for each in os.scandir(self._folder / name) if layout.is_partial(each.name)]
        except FileNotFoundError:
            return []
        return [
            each for each in found if (saved := layout.checkpoint_name_in(each)) is not None and saved.step > newest
        ]

    def _damage(self, name: str, damage: Damage) -> str | None:
        """Damages the newest checkpoint if an older one is there; says which and how."""
        names = selection.committed_checkpoints(self._folder / name)
        if len(names) < 2:
            return None
        spoil(self._folder / name / str(names[0]), damage)
        return f"{names[0]}: {damage}"


def spoil(checkpoint: Path, damage: Damage) -> None:
    """Does it to the checkpoint's largest file, or to its manifest."""
    largest = max((path for path in checkpoint.iterdir() if path.is_file()), key=lambda each: each.stat().st_size)
    if damage is Damage.GONE:
        largest.unlink()
    elif damage is Damage.MANIFEST:
        os.truncate(checkpoint / layout.MANIFEST, 0)
    elif damage is Damage.CUT:
        os.truncate(largest, largest.stat().st_size // 2)
    else:
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)


def _links(folder: Path) -> Iterator[str]:
    for each in os.scandir(folder):
        try:
            yield os.readlink(each.path)
        except FileNotFoundError:
            continue


def rounds(example: Example, folder: Path, kills: int, seed: int, each: int = 20) -> tuple[End, list[End]]:
    """The undisturbed run, and as many disturbed ones as it takes for `kills`, at most `each` in one; every second one
    with damaged checkpoints.
    """
    with Rig(example, folder) as rig:
        undisturbed = rig.undisturbed()
        disturbed: list[End] = []
        while (left := kills - sum(len(end.hits) for end in disturbed)) > 0:
            number = len(disturbed)
            share = 0.5 if number % 2 else 0.0
            disturbed.append(rig.killed(schedule(seed * 1000 + number, min(each, left), share)))
    return undisturbed, disturbed


def main() -> None:
    """`python -m tests.system.killing EXAMPLE FOLDER [KILLS [SEED]]`, for looking at it."""
    example, folder, *numbers = sys.argv[1:]
    kills, seed = (*map(int, numbers), *(10, 1)[len(numbers) :])
    undisturbed, disturbed = rounds(EXAMPLES[example], Path(folder), kills, seed)
    print(json.dumps({"undisturbed": undisturbed.same_as, "wall_s": undisturbed.wall_s}, indent=1))
    for end in disturbed:
        for hit in end.hits:
            print(f"  attempt {hit.attempt} meant {hit.kill.moment}, met {hit.met} at {hit.step}, {hit.damaged}")
        print(f"same: {end.same_as == undisturbed.same_as}, {end.wall_s:.0f} s {end.same_as}")


if __name__ == "__main__":
    main()
