"""Runs PyTorch with restores and saves that fail in several ways; prints how each run ends, one line each: FOLDER."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from supervisor.protocol.checkpoints import selection
from worker import torch as stepkeeper
from worker.process.reporting import is_out_of_memory
from worker.process.startup import current_attempt

FOLDER = Path(sys.argv[1])
AT_RESTORE: dict[str, Exception] = {
    "device-memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "host-memory": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."),
    "in-a-module": RuntimeError(
        'Error(s) in loading state_dict for Net: While copying the parameter named "w", an exception occurred : '
        "('CUDA out of memory. Tried to allocate 2.00 GiB.',)"
    ),
    "device": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "misfit": RuntimeError("Error(s) in loading state_dict for Net: size mismatch for w"),
}


class Part:
    """Has a state and fails to load it."""

    fails: Exception | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"w": torch.zeros(2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.fails is not None:
            raise self.fails


class Masked(nn.Module):
    """Has a mask that contains infinities, as masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.full((3,), float("-inf")))


def say(what: str, error: BaseException) -> None:
    code = f" {error.code}" if isinstance(error, SystemExit) else ""
    print(f"{what}: {type(error).__name__}{code} {is_out_of_memory(error)}", flush=True)


def misfits() -> None:
    """Restores a layer into ones of another type and of another shape."""
    with stepkeeper.Run(model=nn.Linear(2, 3), total_steps=0, directory=FOLDER / "layer"):
        pass
    for what, model in (("dtype", nn.Linear(2, 3, dtype=torch.float64)), ("shape", nn.Linear(2, 4))):
        current_attempt().failure_sent = False  # an attempt reports one failure
        try:
            with stepkeeper.Run(model=model, total_steps=0, directory=FOLDER / "layer"):
                pass
        except (Exception, SystemExit) as left:  # noqa: BLE001 - whatever it is, it is said
            say(what, left)
        else:
            print(f"{what}: restored", flush=True)


def lone_parameter() -> None:
    """Gives a run a parameter that is in no module, as a part and then as the remedy says."""
    log_std = nn.Parameter(torch.zeros(1))
    try:
        stepkeeper.Run(log_std=log_std, total_steps=1, directory=FOLDER / "part")
    except TypeError as error:
        print(error, flush=True)
    for _ in range(2):
        log_std.data.fill_(5.0)
        with stepkeeper.Run(state={"log_std": log_std}, total_steps=1, directory=FOLDER / "parameter") as run:
            while not run.reached:
                log_std.data.fill_(7.0)
                run.step_done()
        print(f"parameter: {log_std.item()} {run.state['log_std'] is log_std}", flush=True)


def main() -> None:
    misfits()
    with stepkeeper.Run(part=Part(), total_steps=0, directory=FOLDER / "restore"):
        pass
    for what, error in AT_RESTORE.items():
        part = Part()
        part.fails = error
        try:
            with stepkeeper.Run(part=part, total_steps=0, directory=FOLDER / "restore"):
                pass
        except (Exception, SystemExit) as left:  # noqa: BLE001 - whatever it is, it is said
            say(what, left)
    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = stepkeeper.Run(model=model, optimizer=optimizer, directory=FOLDER / "save", interval="1 steps")
    try:
        with run:
            for step in range(4):
                model.weight.grad = torch.full((3,), float("nan") if step == 2 else 1.0)
                optimizer.step()
                run.step_done(loss=1.0)
    except SystemExit as left:
        say("nan", left)
    print("saved", [checkpoint.step for checkpoint in selection.committed_checkpoints(FOLDER / "save")], flush=True)


if __name__ == "__main__":
    lone_parameter() if "parameter" in sys.argv[2:] else main()
