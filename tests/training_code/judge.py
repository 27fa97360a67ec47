"""Judges a script of the corpus: is it exact after kills, or does the worker say what a restart would lose?"""

import json
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.wire.exits import WorkerExit
from tests.system.killing import TORCH_DIGEST
from tests.training_code.corpus import ALL_KILLS, Entry, Outcome
from tests.training_code.rig import Strike
from tests.training_code.starter import Ended, Starter
from tests.training_code.strike import CHECKPOINT, SAVE

KILLED = -9
STRICT = "ended by strict"
MOST_ATTEMPTS = 12
_STEP = r"\.step_done"
_ORDINARY = re.compile(
    r"stepkeeper: (saved step-|no checkpoint to restore|restored step-|training is complete|removed incomplete|"
    r"deleted incomplete|summary)"
)
"""What the worker says of a training in which nothing is lost."""


@dataclass
class Verdict:
    """What happened. `remarks`: what the worker said that it says of no exact training."""

    outcome: str
    kills: int = 0
    attempts: int = 0
    remarks: list[str] = field(default_factory=list)
    detail: str = ""

    def problem(self, entry: Entry) -> str:
        """How it differs from what is expected; empty if it doesn't."""
        said = " | ".join(self.remarks)
        if self.outcome != entry.outcome:
            return f"{self.outcome}: {said if self.outcome == Outcome.REFUSED else self.detail or said}"
        if entry.outcome == Outcome.EXACT:
            return f"a false name: {said}" if self.remarks else ""
        return "" if entry.said in said else f"other words: {said}"


@dataclass(frozen=True)
class Result:
    """What has to be equal: the last step, each file of its checkpoint, and the script's last words."""

    step: int
    hashes: dict[str, str]
    last_line: str


def remarks_of(ended: Ended) -> list[str]:
    """What the worker said that it would not say of an exact training."""
    return [
        line
        for line in ended.stderr.splitlines()
        if line.startswith("stepkeeper: ") and not _ORDINARY.match(line) and not line.startswith("stepkeeper: stopping")
    ]


def judge(entry: Entry, starter: Starter, folder: Path, kills: int = ALL_KILLS) -> Verdict:
    """Runs the script undisturbed and killed, or until the step by which its loss has to be named."""
    if entry.outcome == Outcome.EXACT:
        return judge_exact(entry, starter, folder, kills)
    return judge_first_steps(entry, starter, folder)


def judge_first_steps(entry: Entry, starter: Starter, folder: Path) -> Verdict:
    """What the first attempt says before the third step, where it is killed."""
    folder.mkdir(parents=True)
    strike = (CHECKPOINT, entry.before) if entry.is_fit else (_STEP, entry.before)
    ended = starter.start(entry.script, folder, strike=strike)
    remarks = remarks_of(ended)
    if ended.status == KILLED:
        return Verdict(Outcome.NAMED if remarks else "silent", 1, 1, remarks)
    last = ended.stderr.strip().splitlines()[-1:] or [""]
    if ended.status == 0:
        return Verdict("ended before it was killed", 0, 1, remarks)
    is_refusal = re.match(r"(RuntimeError|TypeError|ValueError): cannot ", last[0]) is not None
    return Verdict(Outcome.REFUSED if is_refusal else "error", 0, 1, [*remarks, last[0]], ended.stderr[-1500:])


def judge_exact(entry: Entry, starter: Starter, folder: Path, kills: int) -> Verdict:
    """Compares a killed training with an undisturbed one, which is `strict` and has to be at its end nevertheless."""
    verdict = compare(entry, starter, folder, kills, strict=True)
    if verdict.outcome == STRICT:
        said = verdict.remarks
        verdict = compare(entry, starter, folder / "lenient", kills)
        verdict.remarks = list(dict.fromkeys([*said, *verdict.remarks]))
    return verdict


def compare(entry: Entry, starter: Starter, folder: Path, kills: int = ALL_KILLS, *, strict: bool = False) -> Verdict:
    """Compares a killed training with an undisturbed one. `strict`: of the latter."""
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    undisturbed.mkdir(parents=True)
    counts = folder / "counts.json"
    ended = starter.start(entry.script, undisturbed, strict=strict, counts=counts)
    remarks = remarks_of(ended)
    if ended.status != 0:
        is_strict = strict and ended.status == WorkerExit.INCOMPLETE
        return Verdict(STRICT if is_strict else "error", 0, 1, remarks, ended.stderr[-1500:])
    expected = result_of(ended, starter, undisturbed)
    verdict = run_killed(entry, starter, killed, strikes_of(entry, counts, expected.step, kills))
    verdict.remarks = list(dict.fromkeys([*remarks, *verdict.remarks]))
    if verdict.outcome == Outcome.EXACT:
        last = Ended(0, (killed / f"stdout-{verdict.attempts - 1}").read_text(), "")
        if differences := differences_of(expected, result_of(last, starter, killed)):
            verdict.outcome, verdict.detail = "other bits", differences
    return verdict


def run_killed(entry: Entry, starter: Starter, folder: Path, strikes: list[Strike]) -> Verdict:
    """Runs a script to its end; attempt n is killed by strike n."""
    folder.mkdir()
    remarks: list[str] = []
    waiting = list(strikes)
    for number in range(1, MOST_ATTEMPTS + 1):
        ended = starter.start(entry.script, folder, strike=waiting.pop(0) if waiting else None)
        remarks += remarks_of(ended)
        if ended.status == 0:
            return Verdict(Outcome.EXACT, number - 1, number, remarks)
        if ended.status != KILLED:
            return Verdict("error", number - 1, number, remarks, ended.stderr[-1500:])
    return Verdict("no end", MOST_ATTEMPTS, MOST_ATTEMPTS, remarks)


def strikes_of(entry: Entry, counts: Path, steps: int, kills: int) -> list[Strike]:
    """Where the attempts die: in the first step, in a save, and at two seeded lines of the loop; of fewer `kills` than
    these, not in the first step."""
    chance = random.Random(entry.name)
    strikes: list[Strike]
    if entry.is_fit:
        strikes = [(CHECKPOINT, chance.randint(1, steps // 3)), (SAVE, 2), (CHECKPOINT, steps * 2 // 3)]
        return strikes if kills >= len(strikes) else strikes[1 : 1 + kills]
    lines = entry.script.read_text().splitlines()
    executed = {int(number): count for number, count in json.loads(counts.read_text()).items()}
    repeated = [number for number, count in sorted(executed.items()) if count >= 3 and lines[number - 1].strip()]
    strikes = [(_STEP, 1), (SAVE, chance.randint(2, 3))]
    for number in chance.sample(repeated, min(2, len(repeated))):
        pattern = rf"^{re.escape(lines[number - 1])}$"
        strikes.append((pattern, max(1, executed[number] * chance.randint(10, 45) // 100)))
    return strikes if kills >= len(strikes) else strikes[1 : 1 + kills]


def result_of(ended: Ended, starter: Starter, folder: Path) -> Result:
    """The end of a training that ran in `folder`."""
    newest = selection.committed_checkpoints(folder / "checkpoints")[0]
    place = folder / "checkpoints" / str(newest)
    hashes = {
        file.name: _torch_digest(starter, folder, place / file.name) if file.name.endswith(".pt") else file.hash
        for file in manifest.verify_checkpoint(place).files
    }
    return Result(newest.step, hashes, (ended.stdout.strip().splitlines() or [""])[-1])


def _torch_digest(starter: Starter, folder: Path, path: Path) -> str:
    """A hash of what a file of PyTorch holds: it writes equal states as different bytes."""
    script = folder / "digest.py"
    script.write_text(TORCH_DIGEST)
    scratch = folder / f"digest-{path.stem}"
    scratch.mkdir(exist_ok=True)
    return starter.start(script, scratch, arguments=(str(path),)).stdout.strip()


def differences_of(expected: Result, got: Result) -> str:
    """What differs, in words."""
    found = []
    if expected.step != got.step:
        found.append(f"step {got.step}, not {expected.step}")
    files = [
        name for name in expected.hashes.keys() | got.hashes.keys() if expected.hashes.get(name) != got.hashes.get(name)
    ]
    if files:
        found.append(f"other bits in {', '.join(sorted(files))}")
    if expected.last_line != got.last_line:
        found.append(f"it says {got.last_line!r}, not {expected.last_line!r}")
    return "; ".join(found)
