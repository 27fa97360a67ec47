"""Trains a few steps in FOLDER in which gradients are cleared, or carried over, in each of the KINDS that are given."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from worker import torch as stepkeeper

FOLDER = Path(sys.argv[1])
STEPS = 6
INPUTS = torch.arange(8.0).reshape(4, 2)

torch.manual_seed(0)
model, other = nn.Linear(2, 2), nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
second = torch.optim.Adam(other.parameters(), lr=0.01)


def loss() -> torch.Tensor:
    """A loss of both models."""
    return other(model(INPUTS)).square().mean()


def zero_grad_first(step: int) -> None:
    """As most loops do."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def zero_grad_last(step: int) -> None:
    """With zeros in place of None."""
    loss().backward()
    optimizer.step()
    second.step()
    optimizer.zero_grad(set_to_none=False)
    second.zero_grad(set_to_none=False)


def zeros_first(step: int) -> None:
    """Clears in place, at the head of the step."""
    for each in (optimizer, second):
        each.zero_grad(set_to_none=False)
    loss().backward()
    optimizer.step()
    second.step()


def several_backward(step: int) -> None:
    """Accumulates inside of a step."""
    optimizer.zero_grad()
    for _ in range(3):
        loss().backward()
    optimizer.step()


def with_scaler(step: int) -> None:
    """Scales the loss; the gradients are not finite in one step, so the optimizer does not step."""
    optimizer.zero_grad()
    scaled = scaler.scale(loss() * (float("inf") if step == 1 else 1.0))
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()


def adversaries(step: int) -> None:
    """Each model trains through the other, whose gradients are cleared before its own turn only."""
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    second.zero_grad()
    (-other(model(INPUTS).detach()).mean()).backward()
    second.step()


def closure(step: int) -> None:
    """An optimizer that evaluates the loss itself."""

    def evaluate() -> torch.Tensor:
        quasi_newton.zero_grad()
        value = loss()
        value.backward()
        return value

    quasi_newton.step(evaluate)


def by_hand(step: int) -> None:
    """No optimizer."""
    loss().backward()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.sub_(0.01 * tensor.grad)
            tensor.grad = None
    other.zero_grad()


def frozen(step: int) -> None:
    """A part of the model has no gradients."""
    other.requires_grad_(False)
    zero_grad_first(step)


def accumulated_by_two(step: int) -> None:
    """Every second step uses the gradients of two."""
    (loss() / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
        second.zero_grad()


def accumulated_by_four(step: int) -> None:
    """Every fourth step uses the gradients of four."""
    (loss() / 4).backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
        second.zero_grad()


def never_cleared(step: int) -> None:
    """A loop that forgets zero_grad."""
    loss().backward()
    optimizer.step()


KINDS: dict[str, Callable[[int], None]] = {each.__name__: each for each in (
    zero_grad_first, zero_grad_last, zeros_first, several_backward, with_scaler, adversaries, closure, by_hand, frozen,
    accumulated_by_two, accumulated_by_four, never_cleared,
)}  # fmt: skip
scaler = torch.amp.GradScaler("cpu")
quasi_newton = torch.optim.LBFGS(model.parameters(), max_iter=3)

if __name__ == "__main__":
    parts = {"model": model, "other": other, "optimizer": optimizer, "second": second, "scaler": scaler}
    for kind in sys.argv[2:]:
        for module in (model, other):
            module.zero_grad()
            module.requires_grad_(True)
        print(f"--- {kind}", file=sys.stderr, flush=True)
        with stepkeeper.Run(**parts, newton=quasi_newton, directory=FOLDER / kind, total_steps=STEPS) as run:
            while not run.reached:
                KINDS[kind](run.step)
                run.step_done()
        hooks = [
            parameter for module in (model, other) for parameter in module.parameters() if parameter._backward_hooks
        ]
        assert not hooks, "they cost nothing afterwards"
