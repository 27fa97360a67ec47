"""Tests what kills during saves leave behind, and what each system does with a damaged newest checkpoint.

Run by bench/saves.py as `python -m bench.saves_harm SYSTEM FOLDER`, with the Python that has the system. Each start is
a fork of this process, which has imported everything and used nothing. The number of the step is in every element of
the state, so a restore shows what it brought back. Standard library only, but for bench/saves_recipes.py.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.saves_recipes import RECIPES, Recipe

SAVED = 3  # checkpoints before one is damaged
START_S = 180.0
FLIPS = 6  # places, each in a fresh copy; the worst outcome counts
WORST = ("survived", "lost all", "crash", "wrong weights")


def flip(path: Path, numbers: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[numbers.randrange(len(content))] ^= 1 << numbers.randrange(8)
    path.write_bytes(content)


def zeroed(path: Path, numbers: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(numbers.randrange(max(1, path.stat().st_size - 4096)))
        file.write(bytes(min(4096, path.stat().st_size)))


def halved(path: Path, numbers: random.Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path, numbers: random.Random) -> None:
    os.truncate(path, 0)


def removed(path: Path, numbers: random.Random) -> None:
    path.unlink()


def garbled(path: Path, numbers: random.Random) -> None:
    path.write_bytes(numbers.randbytes(200))


Act = Callable[[Path, random.Random], None]
CLASSES: dict[str, tuple[str, Act, int]] = {
    "data: a bit flipped": ("data", flip, FLIPS),
    "data: 4 KiB zeroed": ("data", zeroed, 1),
    "data: cut in half": ("data", halved, 1),
    "data: empty": ("data", emptied, 1),
    "data: missing": ("data", removed, 1),
    "index: a bit flipped": ("index", flip, FLIPS),
    "index: cut in half": ("index", halved, 1),
    "index: empty": ("index", emptied, 1),
    "index: missing": ("index", removed, 1),
    "pointer: empty": ("pointer", emptied, 1),
    "pointer: garbage": ("pointer", garbled, 1),
    "pointer: missing": ("pointer", removed, 1),
}
"""What is damaged (as `Recipe.parts` names it), how, and in how many places."""


class Started:
    """A fork that runs `act`; its messages arrive through a pipe, one line each."""

    def __init__(self, act: Callable[[Callable[[str], None]], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            code = 1
            try:
                act(lambda text: void(os.write(writing, f"{text}\n".encode())))
                code = 0
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the outcome
                os.write(writing, f"crash {type(error).__name__}: {' '.join(str(error).split())[:200]}\n".encode())
            finally:
                os._exit(code)
        os.close(writing)
        self.said = os.fdopen(reading)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> list[str]:
        """The remaining messages, once it has ended."""
        rest = self.said.read().splitlines()
        self.said.close()
        os.waitpid(self.pid, 0)
        return rest


def void(_: object) -> None:
    """Does nothing."""


def saving(recipe: type[Recipe], folder: Path, size_mb: float, count: int) -> Callable[[Callable[[str], None]], None]:
    """Restores, then saves `count` times, saying when each begins and when all of it is over."""

    def act(say: Callable[[str], None]) -> None:
        system = recipe(folder, size_mb)
        began = system.restored()
        say(f"restored {began}")
        for step in range(began + 1, began + 1 + count):
            say(f"begin {time.monotonic()}")
            system.save(step)
        system.close()
        say(f"over {time.monotonic()}")

    return act


def kills(recipe: type[Recipe], folder: Path, size_mb: float, count: int) -> dict[str, object]:
    """What is left behind after so many kills, each at a random moment of a save; and how the starts went."""
    numbers = random.Random(7)
    undisturbed = Started(saving(recipe, folder, size_mb, 4)).wait()
    marks = [float(line.split()[1]) for line in undisturbed if line.startswith(("begin", "over"))]
    if len(marks) < 5:
        return {"error": undisturbed[-1:]}
    save_s = statistics.median(after - before for before, after in itertools.pairwise(marks[1:]))
    outcomes = []
    for _ in range(count):
        started = Started(saving(recipe, folder, size_mb, 1000))
        first = started.said.readline().strip()
        outcomes.append(first)
        if first.startswith("restored"):
            for _ in range(numbers.randrange(1, 4)):
                started.said.readline()
            time.sleep(numbers.uniform(0, save_s))
            started.kill()
        started.wait()
    last = Started(saving(recipe, folder, size_mb, 3)).wait()  # a start that nobody kills may clean up
    known = recipe.known(folder)
    left = [path for path in folder.rglob("*") if path not in known and path.is_file()]
    folders = [path for path in folder.rglob("*") if path.is_dir() and path not in known and not any(path.iterdir())]
    return {
        "save_s": save_s,
        "left_files": len(left) + len(folders),
        "left_mb": sum(path.stat().st_size for path in left) / 1e6,
        "failed_starts": sum(not outcome.startswith("restored") for outcome in [*outcomes, last[0]]),
        "names": sorted(str(path.relative_to(folder)) for path in left)[:10],
    }


def damages(recipe: type[Recipe], folder: Path) -> dict[str, str]:
    """By class: survived, lost all (began from nothing, silently), crash (with its error), wrong weights; or n/a."""
    whole = folder / "whole"
    Started(saving(recipe, whole, 0.2, SAVED)).wait()
    numbers, worst = random.Random(7), {}
    for name, (part, act, places) in CLASSES.items():
        outcomes = []
        for _ in range(places):
            shutil.rmtree(folder / "damaged", ignore_errors=True)
            shutil.copytree(whole, folder / "damaged", symlinks=True)
            path = recipe.parts(folder / "damaged").get(part)
            if path is None or not path.exists():
                continue
            act(path, numbers)
            outcomes.append(outcome_of(recipe, folder / "damaged"))
        worst[name] = max(outcomes, key=lambda text: WORST.index(text.partition(":")[0])) if outcomes else "n/a"
    return worst


def outcome_of(recipe: type[Recipe], folder: Path) -> str:
    def act(say: Callable[[str], None]) -> None:
        system = recipe(folder, 0.2)
        system.restored()
        say(" ".join(map(str, sorted(system.values()))))

    said = Started(act).wait()
    text = said[0] if said else "crash: died without a word"
    if text.startswith("crash"):
        return f"crash: {text.removeprefix('crash').strip()}"
    if text == "0.0":
        return "lost all"
    return "survived" if text in {f"{float(step)}" for step in range(1, SAVED + 1)} else "wrong weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("system", choices=RECIPES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--size", type=float, default=50.0, help="MB of the state in the kills")
    options = parser.parse_args()
    recipe = RECIPES[options.system]
    recipe.prepare()
    result = {
        "kills": kills(recipe, options.folder / "kills", options.size, options.kills) if options.kills else {},
        "damage": damages(recipe, options.folder / "damage"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
