"""Makes training scripts by chance: values of many kinds, changed and read at any place of a loop, kept or forgotten.

A script carries one to three values from step to step. Each has a kind (where a program may keep something), a moment
at which it changes, and a way in which training depends on it; it is in run.state, or nobody keeps it. Whatever comes
out: after kills training ends with the same bits, or the worker has named what a restart loses.

`python -m tests.training_code.random_loops SEED` prints a script.
"""

import random
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

EPOCHS, BATCHES = 3, 5


@dataclass(frozen=True)
class Kind:
    """A value: how it is declared (for the whole script), changed, and read as a number. `NAME` is its name."""

    name: str
    declared: str
    changed: str
    read: str


def _kinds() -> tuple[Kind, ...]:
    with Path(__file__).with_name("random_kinds.toml").open("rb") as file:
        return tuple(Kind(**kind) for kind in tomllib.load(file)["kind"])


KINDS = _kinds()
KEPT = (
    Kind("kept number", "", "run.state['NAME'] += 1", "run.state['NAME']"),
    Kind("kept list", "", "run.state['NAME'].append(SEEN)", "len(run.state['NAME'])"),
)
SEEN = f"float(x[run.step % {BATCHES}].sum())"
INITIAL = {"kept number": "0", "kept list": "[]"}

WHEN = (
    "if True:", "if run.step % 2 == 0:", "if run.step % 3 == 1:", "if epoch >= 1:", "if epoch == 0:",
    "if run.step >= 7:", "if run.step == 4:",
)  # fmt: skip
USES = (
    "model.w += 0.01 * float(READ)",
    "model.w *= 1 + 1e-3 * (int(READ * 8) % 5)",
    "if int(READ) % 3 == 0:\n    model.w += 0.125",
    "model.w[int(READ) % 3] += 0.25",
    "rate = 0.1 / (1 + abs(float(READ)))",
)
PLACES = ("head", "step", "step", "step", "tail")

HEADER = """\
import array, collections, contextvars, dataclasses, datetime, decimal, enum, fractions, functools, heapq, io, itertools
import os, queue, random, threading, types, weakref

import numpy as np

from worker.files import FilesRun, prepare

prepare(5)
x = np.random.randn(BATCHES, 3)


class Model:
    versions = {}
    topology = {}
    w = np.zeros(3)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


model = Model()
"""


@dataclass(frozen=True)
class Script:
    """A script, and what is in it."""

    text: str
    kinds: tuple[str, ...]


def generate(seed: int) -> Script:
    """The script of a seed."""
    chance = random.Random(seed)
    declared, parts, state, names = [], {"head": [], "step": [], "tail": []}, {}, []
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        name = f"carried_{number}"
        kind = chance.choice(KEPT) if chance.random() < 0.15 else chance.choice(KINDS)
        names.append(kind.name)
        if kind in KEPT:
            state[name] = INITIAL[kind.name]
        declared += [part.replace("NAME", name) for part in (kind.declared,) if part]
        at = chance.choice(PLACES)
        change = f"{chance.choice(WHEN)}\n{textwrap.indent(kind.changed, '    ')}"
        parts[at].append(change.replace("NAME", name).replace("SEEN", SEEN))
        parts["step"].append(chance.choice(USES).replace("READ", kind.read).replace("NAME", name))
    chance.shuffle(parts["step"])
    body = "\n".join(_loop(chance, parts))
    kept = "{" + ", ".join(f"{name!r}: {initial}" for name, initial in state.items()) + "}"
    text = HEADER.replace("BATCHES", str(BATCHES)) + "\n".join(declared) + "\n"
    if chance.random() < 0.3:  # in a function: locals are cells, or fast
        text = f"{HEADER.replace('BATCHES', str(BATCHES))}\n\ndef main():\n    rate, loss = 0.1, 1.0\n"
        if any("global " in part for part in declared):
            return generate(seed + 1_000_000)
        text += textwrap.indent("\n".join(declared) + "\n", "    ")
        text += textwrap.indent(_with(kept, body), "    ") + "\n\nmain()\n"
    else:
        text += "rate, loss = 0.1, 1.0\n" + _with(kept, body)
    return Script(text, tuple(names))


def _with(kept: str, body: str) -> str:
    inner = textwrap.indent(body, "    ")
    run = f"FilesRun(model, directory='checkpoints', state={kept})"
    return f"with {run} as run:\n{inner}\nprint(model.w.tobytes().hex())\n"


def _loop(chance: random.Random, parts: dict[str, list[str]]) -> list[str]:
    step = [
        *parts["step"],
        "model.w = model.w * (1 - rate) + rate * x[i]",
        "loss = float(np.abs(model.w).sum())",
        "run.step_done(loss=loss)",
    ]
    if chance.random() < 0.2 and len(parts["step"]) > 1:  # the code behind a step belongs to it
        step = [*step[1:], step[0]]
    lines = [f"for epoch in run.epochs({EPOCHS}):"]
    lines += [textwrap.indent(part, "    ") for part in parts["head"]]
    lines += [f"    for i in run.range({BATCHES}):"]
    lines += [textwrap.indent(part, "        ") for part in step]
    lines += [textwrap.indent(part, "    ") for part in parts["tail"]]
    return lines


if __name__ == "__main__":
    print(generate(int(sys.argv[1])).text)
