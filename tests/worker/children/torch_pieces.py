"""Runs one named piece of `worker.torch` in FOLDER; prints its result as JSON on the last line."""

import enum
import json
import random
import sys
from collections import defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from worker import torch as stepkeeper
from worker.torch import saved_state
from worker.torch.torch_files import TorchFiles

FOLDER, PIECE = Path(sys.argv[1]), sys.argv[2]


class Part:
    """Has this state, or raises the given error."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.fails: Exception | None = None

    def state_dict(self) -> dict[str, Any]:
        if self.fails is not None:
            raise self.fails
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def batches() -> Any:
    """Runs one after the other, each with batches of another size: the examples that each step saw, and what is asked
    for in the end without `total_steps`."""
    data = torch.arange(24)
    seen = []
    for batch_size, until in ((4, 2), (6, 4), (8, 5), (4, 9)):
        run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "changed", total_steps=until)
        with run:
            for examples in run.batches(data, batch_size=batch_size, seed=3):
                seen += examples.tolist()
                run.step_done()
    whole = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "whole", total_steps=12)
    undisturbed = []
    with whole:
        for examples in whole.batches(data, batch_size=4, seed=3):
            undisturbed += examples.tolist()
            whole.step_done()
    left = []
    for batch_size in (4, 16):
        run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "epochs")
        with run:
            while run.epoch == 0:
                for _ in run.batches(data, batch_size=batch_size):
                    run.step_done()
                    if run.step == 3:
                        break
                if run.step == 3 and batch_size == 4:
                    break
            left.append([run.step, run.epoch, run.examples])
    return {"seen": seen, "undisturbed": undisturbed, "left": left}


class Drawn:
    """Each example is drawn from all three global generators."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()), random.random(), np.random.rand()])


class DrawnTogether(Drawn):
    """Draws a whole batch at a time, without iterating over its indices."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[indices[place]] for place in range(len(indices))]


def loaders() -> Any:
    """The draws of loader processes in two epochs, in one run and in three, the second begun in mid-epoch."""
    return {"each": _drawn(Drawn()), "together": _drawn(DrawnTogether())}


def _drawn(dataset: Drawn) -> dict[str, list[Any]]:
    of = type(dataset).__name__
    found: dict[str, list[Any]] = {"undisturbed": [], "disturbed": []}
    for name, parts in (("undisturbed", [8]), ("disturbed", [2, 6, 8])):
        for until in parts:
            run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / of / name, total_steps=until)
            with run:
                for examples in run.batches(dataset, batch_size=4, seed=3, num_workers=2):
                    found[name].append(examples[:, 1:].tolist())
                    run.step_done()
    return found


def conditions() -> Any:
    """A run on two threads, then one on the number in `sys.argv`."""
    stepkeeper.prepare(directory=FOLDER, deterministic=True)
    if len(sys.argv) > 3:
        torch.set_num_threads(int(sys.argv[3]))
    run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER)
    with run:
        run.step_done()
    (newest, *_) = sorted(FOLDER.glob("step-*"), reverse=True)
    found = json.loads((newest / "MANIFEST.json").read_text())
    return {**found["versions"], **found["topology"]}


def copies() -> Any:
    """The content of a copy for a background save, and whether training changes it."""
    tied = nn.Linear(3, 3)
    model = nn.Sequential(tied, nn.BatchNorm1d(3), tied)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    files = TorchFiles({"model": model, "optimizer": optimizer}, {})
    for name in ("now", "copied"):
        (FOLDER / name).mkdir()
    files.write(FOLDER / "now")
    later = files.copied()
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    later(FOLDER / "copied")
    now, copied = (torch.load(FOLDER / name / "torch.pt", weights_only=True) for name in ("now", "copied"))

    def flat(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [each for key, item in value.items() for each in (key, *flat(item))]
        return [each for item in value for each in flat(item)] if isinstance(value, list | tuple) else [value]

    def same(one: Any, other: Any) -> bool:
        return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other

    weights = copied["parts"]["model"]
    return {
        "same": all(same(*pair) for pair in zip(flat(now), flat(copied), strict=True)),
        "trained_on": not torch.equal(weights["0.weight"], model.state_dict()["0.weight"]),
        "tied": weights["0.weight"].data_ptr() == weights["2.weight"].data_ptr(),
        "metadata": getattr(weights, "_metadata", None) == model.state_dict()._metadata,
        "sizes": [(FOLDER / name / "torch.pt").stat().st_size for name in ("now", "copied")],
    }


def full() -> Any:
    """A save into FOLDER, which has too little space."""
    files = TorchFiles({"model": nn.Linear(1000, 1000)}, {})
    try:
        files.write(FOLDER)
    except OSError as error:
        return error.errno
    return None


def odd() -> Any:
    """Unusual states: arrays that share memory, tensors that can't be copied, parts that fail."""
    whole = np.arange(10.0)
    shared = TorchFiles({"part": Part({"few": torch.from_numpy(whole[:5]), "all": torch.from_numpy(whole)})}, {})
    later = shared.copied()
    later(FOLDER)
    kept = torch.load(FOLDER / "torch.pt", weights_only=True)["parts"]["part"]
    without_memory = TorchFiles({"part": Part({"w": torch.empty(3, device="meta")})}, {})
    failed = {}
    for text in ("CUDA error: device-side assert triggered", "DefaultCPUAllocator: can't allocate memory: 4096 bytes."):
        part = Part({})
        files = TorchFiles({"part": part}, {})
        part.fails = RuntimeError(text)
        for act in (files.copied, lambda files=files: files.write(FOLDER)):
            try:
                act()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is said
                failed.setdefault(text.split(":")[0], []).append(type(error).__name__)
    return {
        "all": kept["all"].tolist(),
        "few": kept["few"].tolist(),
        "without_memory": without_memory.copied() is None,
        "failed": failed,
    }


def fewer() -> Any:
    """The generators that are set where a checkpoint of three GPUs comes to a host with fewer. There is a GPU only as
    far as `torch.cuda` is asked."""
    files = TorchFiles({}, {})
    state = {"parts": {}, "generators": {}, "cpu": torch.get_rng_state(), "cuda": [torch.get_rng_state()] * 3}
    saved_state.save_state(state, FOLDER)
    found = []
    for count in (0, 1, 3):
        was_set: list[int] = []
        present = range(count)

        def set_one(state: Any, device: int, present: range = present, was_set: list[int] = was_set) -> None:
            was_set.append(present[device])

        torch.cuda.is_available = lambda present=present: bool(present)
        torch.cuda.device_count = lambda present=present: len(present)
        torch.cuda.random.set_rng_state = set_one
        files.read(FOLDER)
        found.append(was_set)
    return found


def plain() -> Any:
    """NumPy's numbers and arrays in a state, before a save and after the restore."""
    kinds = (np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex64)
    state = {kind.__name__: kind(1) for kind in kinds} | {"array": np.arange(6.0).reshape(2, 3).T}
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=np.logspace(-3, -1, 3)[1])
    files = TorchFiles({"part": Part(state), "optimizer": optimizer}, {})
    files.write(FOLDER)
    torch.serialization.add_safe_globals([np.dtype])
    allowed = torch.serialization.get_safe_globals()
    files.read(FOLDER)
    (found,) = [each for name, each in files.parts.items() if name == "part"]
    told = [[f"{type(value)} {value.dtype} {value!r}" for value in values.values()] for values in (state, found.state)]
    return {
        "same": told[0] == told[1] and found.state is not state,
        "rate": repr(optimizer.param_groups[0]["lr"]),
        "allowed": set(torch.serialization.get_safe_globals()) == set(allowed),
    }


class Phase(enum.Enum):
    """Of a training."""

    FIRST = 1


Seen = namedtuple("Seen", "state reward")  # as in many a replay memory


def named() -> Any:
    """Named tuples and enums in a state, after the restore."""
    state = {"seen": [Seen(torch.ones(2), 0.5)], "phase": Phase.FIRST}
    files = TorchFiles({"part": Part(state)}, {})
    files.write(FOLDER)
    files.read(FOLDER)
    return repr(files.parts["part"].state)


def late() -> Any:
    """The messages about a state that PyTorch would refuse to load from the second save on."""
    state: dict[str, Any] = {"seen": []}
    run = stepkeeper.Run(part=Part(state), directory=FOLDER / "late", interval="1 steps")
    with run:
        for step in range(4):
            if step:
                state["seen"].append(deque([step]))
            run.step_done()


def grown() -> Any:
    """The messages about a model and an optimizer that grow while they train, and about such as don't."""
    model, fixed = nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = {"model": model, "fixed": fixed, "optimizer": optimizer}
    run = stepkeeper.Run(**parts, directory=FOLDER / "grown", interval="1 steps", leave_out=["optimizer"])
    with run:
        for step in range(4):
            if step == 1:
                model.append(nn.Linear(1, 1))
                optimizer.add_param_group({"params": model[1].parameters()})
            run.step_done()


def finite() -> Any:
    """The tensor types in which a NaN is found, or missed."""
    kinds = [each for name, each in vars(torch).items() if name.startswith("float8_")]
    kinds += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
    good, bad = (torch.tensor([1.0, each]) for each in (2.0, float("nan")))
    seen = [kind for kind in kinds if saved_state.is_finite(good.to(kind)) and not saved_state.is_finite(bad.to(kind))]
    return {"unseen": [str(kind) for kind in kinds if kind not in seen], "seen": len(seen)}


def refused() -> Any:
    """The messages about states that PyTorch would refuse to load, and about one that it would load."""
    for name, state in (
        ("odd", {"last": deque([1.0]), "by_name": defaultdict(list)}),
        ("fine", {"rate": np.float64(1)}),
    ):
        run = stepkeeper.Run(part=Part(state), directory=FOLDER / name, interval="1 steps")
        with run:
            run.step_done()
            run.step_done()


def scaler_off() -> Any:
    """A training with a scaler that is switched off, as scripts make it for `float32`; resumed once."""
    steps = []
    for until in (2, 4):
        model = nn.Linear(1, 1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        run = stepkeeper.Run(
            model=model, scaler=scaler, directory=FOLDER / "off", total_steps=until, interval="1 steps"
        )
        with run:
            while not run.reached:
                steps.append(run.step)
                run.step_done()
    return steps


if __name__ == "__main__":
    pieces = {
        each.__name__: each
        for each in (
            batches,
            loaders,
            conditions,
            copies,
            full,
            odd,
            fewer,
            plain,
            named,
            late,
            grown,
            finite,
            refused,
            scaler_off,
        )
    }
    print(json.dumps(pieces[PIECE]()))
