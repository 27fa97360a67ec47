"""Makes training scripts by chance: values of many kinds, changed and read at any place of a loop, kept or forgotten.

A script carries one to three values from step to step. Each has a kind (where a program may keep something), a moment
at which it changes, and a way in which training depends on it; it is in run.state, or nobody keeps it. The head of an
epoch, or what stands before the loops, may make another value for the steps. Whatever comes out: after kills training
ends with the same bits, or the worker has named what a restart loses.

Beside the kinds that every script may have, one of TensorFlow has others: variables, metrics, optimizers, iterators of
datasets.

`python -m tests.training_code.random_loops SEED [tensorflow]` prints a script.
"""

import random
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
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


def _kinds(file_name: str) -> tuple[Kind, ...]:
    with Path(__file__).with_name(file_name).open("rb") as file:
        return tuple(Kind(**kind) for kind in tomllib.load(file)["kind"])


KINDS = _kinds("random_kinds.toml")
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
MADE = (
    ("float(WEIGHTS.sum())", "made"), ("WEIGHTS.copy()", "made[0]"), ("len(x)", "made"),
    ("run.step", "made"), ("0.9**epoch", "made"), ("WEIGHTS.sum() > 0.5", "int(made)"),
    ("range(int(8 * abs(WEIGHTS.sum())) % 3)", "len(made)"),
)  # fmt: skip
"""What a head may make for the steps, and the first three what stands before the loops; and how the steps read it."""
SINCE_START = ("run.step", "(run.step - made)")
PLACES = ("head", "step", "step", "step", "tail")

IMPORTS = """\
import array, collections, contextvars, ctypes, dataclasses, datetime, decimal, enum, fractions, functools, hashlib
import heapq, io, itertools, mmap, os, queue, random, sched, sqlite3, threading, types, weakref

import numpy as np
"""


@dataclass(frozen=True)
class Flavour:
    """What a script is written with. `begin`: how it begins; `run`: the run, of the initial `STATE`; `trains`: lines
    that train with `rate` and end the step; `shows`: prints the result; `uses`: how training may depend on a value;
    `weights`: the present ones, as an array of NumPy's."""

    begin: str
    run: str
    trains: tuple[str, ...]
    shows: str
    uses: tuple[str, ...]
    weights: str
    own_kinds: tuple[Kind, ...] = ()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Those that every script may have, as far as it has what they name."""
        return tuple(kind for kind in KINDS if "model." not in kind.changed or "model = " in self.begin)


NUMPY = Flavour(
    IMPORTS
    + """
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
""",
    "FilesRun(model, directory='checkpoints', state=STATE)",
    (
        "model.w = model.w * (1 - rate) + rate * x[i]",
        "loss = float(np.abs(model.w).sum())",
        "run.step_done(loss=loss)",
    ),
    "print(model.w.tobytes().hex())",
    (
        "model.w += 0.01 * float(READ)",
        "model.w *= 1 + 1e-3 * (int(READ * 8) % 5)",
        "if int(READ) % 3 == 0:\n    model.w += 0.125",
        "model.w[int(READ) % 3] += 0.25",
        "rate = 0.1 / (1 + abs(float(READ)))",
    ),
    "model.w",
)
TENSORFLOW = Flavour(
    IMPORTS
    + """import tensorflow as tf

import worker

strategy = worker.strategy("one-device")
tf.keras.utils.set_random_seed(5)
x = np.random.randn(BATCHES, 3).astype("float32")
data = tf.data.Dataset.from_tensor_slices(x).batch(1)
with strategy.scope():
    net = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(3)])
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.5)
    optimizer.build(net.trainable_variables)
bias = net.layers[-1].bias
checkpoint = tf.train.Checkpoint(model=net, optimizer=optimizer)


class Meter(tf.Module):
    def __init__(self):
        super().__init__()
        self.count = 0


class Decay(tf.keras.optimizers.schedules.LearningRateSchedule):
    factor = 1.0

    def __call__(self, step):
        return 0.1 * self.factor


class Scale(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def call(self, inputs):
        return inputs * self.factor
""",
    "worker.Run(checkpoint, strategy=strategy, directory='checkpoints', state=STATE)",
    (
        "with tf.GradientTape() as tape:",
        "    loss = rate * tf.reduce_mean(tf.square(net(x[i : i + 1]) - 1.0))",
        "optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))",
        "run.step_done(loss=loss)",
    ),
    "print(bias.numpy().tobytes().hex())",
    (
        "bias.assign_add(tf.fill([3], 0.01 * float(READ)))",
        "if int(READ) % 3 == 0:\n    bias.assign_add([0.125, 0.0, 0.0])",
        "rate = 0.1 / (1 + abs(float(READ)))",
    ),
    "bias.numpy()",
    _kinds("random_kinds_tensorflow.toml"),
)
OWN_SHARE = 0.8  # of the kinds are the flavour's, if it has any


@dataclass(frozen=True)
class Script:
    """A script, and what is in it."""

    text: str
    kinds: tuple[str, ...]


def generate(seed: int, flavour: Flavour = NUMPY) -> Script:
    """The script of a seed."""
    chance = random.Random(seed)
    shape = chance.choice(("module", "module", "function", "method"))
    declared, parts, state, names = [], {"head": [], "step": [], "tail": []}, {}, []
    for number in range(chance.choice((1, 1, 1, 2, 3))):
        name = f"carried_{number}"
        kind = chance.choice(KEPT) if chance.random() < 0.15 else chance.choice(_some_kinds(chance, flavour))
        names.append(kind.name)
        if kind in KEPT:
            state[name] = INITIAL[kind.name]
        declared += [part.replace("NAME", name) for part in (kind.declared,) if part]
        change = f"{chance.choice(WHEN)}\n{textwrap.indent(kind.changed, '    ')}".replace("SEEN", SEEN)
        use = chance.choice(flavour.uses).replace("READ", kind.read)
        is_attribute = shape == "method" and f"\n{name} =" in "\n" + "\n".join(declared)
        here = f"self.{name}" if is_attribute else name
        parts[chance.choice(PLACES)].append(_named(change, name, here))
        parts["step"].append(_named(use, name, here))
    before_loops = []
    if chance.random() < 0.3:
        where = chance.choice(("head", "head", "before the loops"))
        made, read = chance.choice(MADE if where == "head" else (*MADE[:3], SINCE_START))
        (parts["head"] if where == "head" else before_loops).append(
            f"made = {made.replace('WEIGHTS', flavour.weights)}"
        )
        parts["step"].append(chance.choice(flavour.uses).replace("READ", read))
        names.append(f"made of {made} in the head" if where == "head" else f"made of {made} {where}")
    chance.shuffle(parts["step"])
    if chance.random() < 0.2 and len(parts["step"]) > 1:  # the code behind a step belongs to it
        parts["behind"] = [parts["step"].pop(0)]
    made = "\n".join(declared) + "\n"
    if shape == "function" and "global " in made:
        shape = "module"
    return Script(_text(flavour, _SHAPES[shape], made, [*before_loops, *_loop(parts, flavour)], state), tuple(names))


def carrying(kinds: Sequence[Kind], flavour: Flavour) -> Script:
    """A script whose module carries a value of each kind, which each step changes and then trains with."""
    made, step = "", []
    for number, kind in enumerate(kinds):
        name = f"carried_{number}"
        made += kind.declared.replace("NAME", name) + "\n"
        for code in (kind.changed.replace("SEEN", SEEN), flavour.uses[0].replace("READ", kind.read)):
            step.append(_named(code, name, name))
    loop = _loop({"step": step}, flavour)
    return Script(_text(flavour, _as_module, made, loop, {}), tuple(kind.name for kind in kinds))


def _text(
    flavour: Flavour, shape: Callable[[str, str], str], made: str, lines: Sequence[str], state: Mapping[str, str]
) -> str:
    """`lines`: those of the run. `state`: the initial values of what it keeps."""
    kept = "{" + ", ".join(f"{name!r}: {initial}" for name, initial in state.items()) + "}"
    body = textwrap.indent("\n".join(lines), "    ")
    loop = f"with {flavour.run.replace('STATE', kept)} as run:\n{body}\n{flavour.shows}\n"
    return flavour.begin.replace("BATCHES", str(BATCHES)) + shape(made, loop)


def _some_kinds(chance: random.Random, flavour: Flavour) -> tuple[Kind, ...]:
    return flavour.own_kinds if flavour.own_kinds and chance.random() < OWN_SHARE else flavour.kinds


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


def _loop(parts: Mapping[str, Sequence[str]], flavour: Flavour) -> list[str]:
    """`parts`: what stands in the head of an epoch, in a step, behind it and in the tail."""
    lines = [f"for epoch in run.epochs({EPOCHS}):"]
    lines += [textwrap.indent(part, "    ") for part in parts.get("head", ())]
    lines += [f"    for i in run.range({BATCHES}):"]
    step = [*parts["step"], *flavour.trains, *parts.get("behind", ())]
    lines += [textwrap.indent(part, "        ") for part in step]
    lines += [textwrap.indent(part, "    ") for part in parts.get("tail", ())]
    return lines


if __name__ == "__main__":
    print(generate(int(sys.argv[1]), TENSORFLOW if sys.argv[2:] else NUMPY).text)
