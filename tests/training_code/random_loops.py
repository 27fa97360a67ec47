"""Makes training scripts by chance: values of many kinds, changed and read at any place of a loop, kept or forgotten.

A script carries one to three values from step to step. Each has a kind (where a program may keep something), a moment
at which it changes, and a way in which training depends on it; it is in run.state, or nobody keeps it. Whatever comes
out: after kills training ends with the same bits, or the worker has named what a restart loses.

`python -m tests.training_code.random_loops SEED` prints a script.
"""

import random
import re
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
    shape = chance.choice(("module", "module", "function", "method"))
    declared, parts, state, names = [], {"head": [], "step": [], "tail": []}, {}, []
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        name = f"carried_{number}"
        kind = chance.choice(KEPT) if chance.random() < 0.15 else chance.choice(KINDS)
        names.append(kind.name)
        if kind in KEPT:
            state[name] = INITIAL[kind.name]
        declared += [part.replace("NAME", name) for part in (kind.declared,) if part]
        change = f"{chance.choice(WHEN)}\n{textwrap.indent(kind.changed, '    ')}".replace("SEEN", SEEN)
        use = chance.choice(USES).replace("READ", kind.read)
        is_attribute = shape == "method" and f"\n{name} =" in "\n" + "\n".join(declared)
        here = f"self.{name}" if is_attribute else name
        parts[chance.choice(PLACES)].append(_named(change, name, here))
        parts["step"].append(_named(use, name, here))
    chance.shuffle(parts["step"])
    body = "\n".join(_loop(chance, parts))
    kept = "{" + ", ".join(f"{name!r}: {initial}" for name, initial in state.items()) + "}"
    made = "\n".join(declared) + "\n"
    if shape == "function" and "global " in made:
        shape = "module"
    return Script(HEADER.replace("BATCHES", str(BATCHES)) + _SHAPES[shape](made, _with(kept, body)), tuple(names))


def _named(code: str, name: str, here: str) -> str:
    """The code with the name in it, and `here`, which may be an attribute, where the value itself is meant."""
    code = re.sub(r"(?<![\w'.])NAME(?![\w'])", here, code)
    return code.replace("NAME", name)


def _as_module(made: str, loop: str) -> str:
    return f"{made}rate, loss = 0.1, 1.0\n{loop}"


def _as_function(made: str, loop: str) -> str:
    """Locals are cells, or fast."""
    return f"\n\ndef main():\n    rate, loss = 0.1, 1.0\n{textwrap.indent(made + loop, '    ')}\n\nmain()\n"


def _as_method(made: str, loop: str) -> str:
    names = re.findall(r"^(carried_\d+)\b(?=.* = )", made, re.MULTILINE)
    begin = "".join(f"        self.{name} = {name}\n" for name in dict.fromkeys(names)) or "        pass\n"
    train = f"    def train(self):\n        rate, loss = 0.1, 1.0\n{textwrap.indent(loop, '        ')}"
    return f"{made}\n\nclass Trainer:\n    def __init__(self):\n{begin}\n{train}\n\nTrainer().train()\n"


_SHAPES = {"module": _as_module, "function": _as_function, "method": _as_method}


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
