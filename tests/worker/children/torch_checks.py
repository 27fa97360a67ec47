"""Runs one named piece about loaders and forgotten state in FOLDER; prints its result as JSON on the last line."""

import itertools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from worker import torch as stepkeeper

FOLDER, PIECE = Path(sys.argv[1]), sys.argv[2]
DATA = TensorDataset(torch.arange(22))


def _seen(loader: Any, folder: str, *ends: int) -> list[list[int]]:
    """The batches of a run of three epochs that is left after these numbers of steps; the last one reaches its end."""
    seen = []
    for end in (*ends, 1000):
        run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / folder, interval="1 steps")
        try:
            with run:
                for _ in run.epochs(3):
                    for (examples,) in run.batches(loader()):
                        seen.append(examples.tolist())
                        run.step_done()
                        if run.step == end:
                            raise KeyboardInterrupt
        except KeyboardInterrupt:
            continue
    return seen


def of_loaders() -> Any:
    """The batches of undisturbed and of disturbed runs over DataLoaders as scripts make them."""
    kinds = {
        "shuffled": lambda: DataLoader(DATA, batch_size=5, shuffle=True),
        "in order": lambda: DataLoader(DATA, batch_size=5),
        "whole batches": lambda: DataLoader(DATA, batch_size=5, shuffle=True, drop_last=True),
        "generator": lambda: DataLoader(DATA, 5, shuffle=True, generator=torch.Generator().manual_seed(7)),
        "processes": lambda: DataLoader(DATA, batch_size=5, shuffle=True, num_workers=1),
    }
    return {
        name: {"whole": _seen(kind, f"{name} whole"), "parts": _seen(kind, f"{name} parts", 2, 5, 9)}
        for name, kind in kinds.items()
    }


def _ordered(folder: str, *ends: int) -> list[Any]:
    """What a training ends with whose heads step a scheduler and draw an order; it is left after these steps."""
    for end in (*ends, 1000):
        torch.manual_seed(3)
        model, noise = nn.Linear(2, 1), torch.Generator().manual_seed(4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        try:
            with stepkeeper.Run(
                directory=FOLDER / folder, interval="1 steps", strict=True, generators={"noise": noise}, **parts
            ) as run:
                for epoch in run.epochs(3):
                    scheduler.step()
                    torch.randn(epoch + 1, generator=noise)
                    for several in run.order(torch.randperm(6), batch_size=4):
                        optimizer.zero_grad()
                        inputs = several.float().mean() + torch.rand(1, 2) + torch.randn(1, 2, generator=noise)
                        model(inputs).sum().backward()
                        optimizer.step()
                        run.step_done()
                        if run.step == end:
                            raise KeyboardInterrupt
                    with torch.no_grad():
                        model.weight.mul_(0.5)
                    run.step_done()
                    if run.step == end:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            continue
    return [run.step, model.weight.tolist(), scheduler.get_last_lr(), torch.rand(1).item()]


def of_orders() -> Any:
    """The ends of undisturbed and of disturbed trainings over orders that the head of each epoch draws."""
    whole = _ordered("whole")
    return {"whole": whole, "parts": [_ordered(f"parts {end}", end, end + 2) for end in range(1, 10)]}


class Queue(IterableDataset):  # type: ignore[type-arg]
    """Examples that are there once."""

    def __init__(self) -> None:
        self._left = iter(range(8))

    def __iter__(self) -> Any:
        return self._left


class Packed(IterableDataset):  # type: ignore[type-arg]
    """Lines of which a pass counts some, and shuffles those that wait."""

    def __init__(self) -> None:
        self.line, self.count, self.seen = 0, 0, 0
        self.waiting = list[int]()
        self.rng = random.Random(1)

    def __iter__(self) -> Any:
        count, waiting = self.count, list(self.waiting)
        while count < 22:
            waiting.append(self.line)
            self.line += 1
            if len(waiting) > 3:
                example = waiting.pop(self.rng.randrange(3))
                self.seen += example
                count += 1
                self.keep(count, waiting)
                yield example
        self.count = 0

    def keep(self, count: int, waiting: list[int]) -> None:
        """Takes from a pass what the state has of it."""
        self.count, self.waiting = count, list(waiting)

    def state_dict(self) -> dict[str, Any]:
        return {"line": self.line, "n": self.count, "w": self.waiting, "sum": self.seen, "r": self.rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.line, self.count, self.waiting, self.seen = state["line"], state["n"], state["w"], state["sum"]
        self.rng.setstate(state["r"])


class Forgetful(Packed):
    """The same, with a state that has the line alone."""

    def keep(self, count: int, waiting: list[int]) -> None:
        """Nothing."""

    def state_dict(self) -> dict[str, Any]:
        return {"line": self.line}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.line = state["line"]


class Endless(Sampler):  # type: ignore[type-arg]
    """Indices without end."""

    def __iter__(self) -> Any:
        return itertools.cycle(range(22))


class Huge(Sampler):  # type: ignore[type-arg]
    """More indices than are ever drawn."""

    def __len__(self) -> int:
        return 10**10

    def __iter__(self) -> Any:
        raise AssertionError("drawn although its length says enough")


class Unrepeatable(Sampler):  # type: ignore[type-arg]
    """An order that depends on the system's random numbers."""

    def __iter__(self) -> Any:
        return iter([byte % 22 for byte in os.urandom(20)])


class OnDevice(DataLoader):  # type: ignore[type-arg]
    """A loader that does something with each batch."""

    def __iter__(self) -> Any:
        return ([each.double() for each in batch] for batch in super().__iter__())


class Transformed(Dataset):  # type: ignore[type-arg]
    """Another dataset's examples, by transforms of which one has a generator."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = torch.utils.data.Subset(DATA, range(22))
        self.transforms = {"train": [abs, dataset]}

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return self.transforms["train"][1][index]


class Noisy(Dataset):  # type: ignore[type-arg]
    """Examples with noise from a generator of the dataset's own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return self.rng.normal()


def refused_loaders() -> Any:
    """What is said of loaders that can't be resumed."""
    run = stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "c")
    cases: dict[str, Any] = {
        "endless": lambda: run.batches(DataLoader(DATA, batch_size=5, sampler=Endless())),
        "huge": lambda: run.batches(DataLoader(DATA, batch_size=5, sampler=Huge())),
        "unrepeatable": lambda: run.batches(DataLoader(DATA, batch_size=5, sampler=Unrepeatable())),
        "stream": lambda: run.batches(DataLoader(Queue(), batch_size=2)),
        "generator": lambda: run.batches(iter([1, 2])),
        "own loader": lambda: run.batches(OnDevice(DATA, batch_size=5)),
        "both": lambda: run.batches(DataLoader(DATA, batch_size=5), batch_size=4),
        "no size": lambda: run.batches(DATA),
        "too few": lambda: run.batches(DataLoader(DATA, batch_size=50, drop_last=True)),
    }
    texts = {}
    with run:
        for name, case in cases.items():
            try:
                next(case())
            except (TypeError, ValueError) as error:
                texts[name] = str(error)
        run.step_done()
    return texts


def noisy() -> Any:
    """A dataset that draws from a generator of its own, in this process, or in loader processes."""
    dataset: Any = Noisy()
    generators = {"rng": dataset.rng} if "kept" in sys.argv else {}
    dataset = Transformed(dataset) if "transformed" in sys.argv else dataset
    loader = DataLoader(dataset, batch_size=5, num_workers=1 if "processes" in sys.argv else 0)
    with stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "c", generators=generators) as run:
        for _ in run.batches(loader):
            run.step_done()


class Sharp(torch.optim.Optimizer):
    """An optimizer around another one, with which it shares its groups, as SAM; `again`: also behind a restore."""

    def __init__(self, parameters: Any, *, again: bool) -> None:
        super().__init__(parameters, {"lr": 0.1, "momentum": 0.9})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.again, self.param_groups = again, self.base.param_groups

    def step(self, closure: Any = None) -> None:
        self.base.step()

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if self.again:
            self.base.param_groups = self.param_groups


def shared_groups() -> Any:
    """What optimizers with the same groups share behind a restore, whichever is restored first."""
    shared = {}
    for kind in ("outer first", "inner first", "again", "alone"):
        for steps in (2, 3):
            model = nn.Linear(1, 1)
            optimizer = Sharp(model.parameters(), again=kind == "again")
            group = optimizer.param_groups[0]
            parts: dict[str, Any] = {"optimizer": optimizer, "base": optimizer.base}
            parts = dict(reversed(parts.items())) if kind == "inner first" else parts
            parts = {"optimizer": optimizer} if kind == "alone" else parts
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            parts["scheduler"] = scheduler
            run = stepkeeper.Run(model=model, **parts, directory=FOLDER / kind, total_steps=steps, interval="1 steps")
            with run:
                for _ in run.range(steps):
                    model(torch.ones(1, 1)).sum().backward()
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    run.step_done()
        shared[kind] = group["lr"], optimizer.base.param_groups[0]["lr"], group is optimizer.base.param_groups[0]
    return shared


def packed() -> Any:
    """A stream whose state has all that its passes carry, or not."""
    loader = DataLoader(Packed() if "keeps" in sys.argv else Forgetful(), batch_size=2)
    with stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "c") as run:
        for _ in run.epochs(2):
            for _ in run.batches(loader):
                run.step_done()


def rates() -> Any:
    """A loop that changes the settings of an optimizer that is saved."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepkeeper.Run(model=model, optimizer=optimizer, directory=FOLDER / "c", strict=True) as run:
        for _ in run.batches(DATA, batch_size=5):
            optimizer.param_groups[0]["lr"] *= 0.9
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
            run.step_done()


class Momentum(torch.optim.SGD):
    """Keeps a number in its `state`, and others beside it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.scales = dict.fromkeys(model.parameters(), 0.5)
        self.speed = 1.0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.speed *= 0.5
        self.state["steps"] = self.state.get("steps", 0) + 1
        super().step(closure)


class Collate:
    """Counts the batches that it has made."""

    batches = 0

    def __call__(self, examples: Any) -> Any:
        self.batches += 1
        return torch.stack([example for (example,) in examples])


def warm_up() -> Any:
    """A loop whose scheduler, optimizer and loader call what counts; the last two have more than their state."""
    model = nn.Linear(1, 1)
    optimizer = Momentum(model)
    calls, hooked = [0], [0]

    def rate(epoch: int) -> float:
        calls[0] += 1
        return 1.0 / calls[0]

    def hook(*_: Any) -> None:
        hooked[0] += 1

    optimizer.register_step_pre_hook(hook)
    inner = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [inner], [])
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    del inner
    with stepkeeper.Run(directory=FOLDER / "c", **parts) as run:
        for _ in run.batches(DataLoader(DATA, batch_size=5, collate_fn=Collate())):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            scheduler.step()
            run.step_done()
            if run.step == 4:
                break


class Teacher(nn.Linear):
    """A model of which another one has a list, so that it is no part of it."""


class Student(nn.Linear):
    """A model with attributes that are in no `state_dict`."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.teachers = [Teacher(1, 1)]
        self.rng = np.random.default_rng(1)


def forgotten() -> Any:
    """A loop whose scheduler, averaged model, scaler and generator nobody keeps, nor what its model hides."""
    model = Student()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    noise = torch.Generator()
    criterion = nn.MSELoss()
    parts = {"model": model} if "part" in sys.argv else {"model": model, "optimizer": optimizer}
    leave_out = [averaged] if "part" in sys.argv else []
    strict = "strict" in sys.argv
    with stepkeeper.Run(directory=FOLDER / "c", strict=strict, leave_out=leave_out, **parts) as run:
        for _ in range(2):
            criterion(model(torch.rand(1, 1, generator=noise)), torch.ones(1, 1)).backward()
            optimizer.step()
            scheduler.step()
            averaged.update_parameters(model)
            run.step_done()


def kept() -> Any:
    """A loop of which everything is kept, by name, in run.state or as part of another object."""
    model, noise = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), torch.Generator()
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    inner, criterion = model[0], nn.CrossEntropyLoss()
    everything = {"model": model, "optimizer": optimizer, "generators": {"noise": noise}}
    with stepkeeper.Run(directory=FOLDER / "c", strict=True, state={"scheduler": scheduler}, **everything) as run:
        loader = DataLoader(DATA, batch_size=5, shuffle=True)
        for (batch,) in run.batches(loader):
            assert inner is not None and criterion is not None and noise is not None and batch is not None
            scheduler.step()
            run.step_done()


def own_loop() -> Any:
    """A loop that reads its DataLoader itself."""
    loader = DataLoader(DATA, batch_size=5, shuffle=True)
    with stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "c") as run:
        for _ in loader:
            run.step_done()


def no_steps() -> Any:
    """A loop that counts no step."""
    with stepkeeper.Run(model=nn.Linear(1, 1), directory=FOLDER / "c") as run:
        for _ in run.batches(DATA, batch_size=5):
            pass


if __name__ == "__main__":
    of_data = of_loaders, of_orders, refused_loaders, noisy, packed
    all_pieces = *of_data, shared_groups, rates, warm_up, forgotten, kept, own_loop, no_steps
    pieces = {piece.__name__: piece for piece in all_pieces}
    print(json.dumps(pieces[PIECE]()))
