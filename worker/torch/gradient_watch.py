"""Do gradients live on from one step to the next? No checkpoint has them, so a restart would lose what they hold.

A step accumulates if its first backward pass finds the gradients of the step before: neither cleared nor replaced.
Hooks on the parameters look for that in the steps behind the first one, and are removed after them. What is found
counts only if an optimizer steps with it, or if a step clears nothing and no optimizer steps: what a loss leaves behind
in a model that its own optimizer clears later (two models that train each other) is lost in an undisturbed run too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from worker.checks.findings import Finding

_WATCHED_STEPS = 2
_REMEDY = (
    "a step ends before they are used, and no checkpoint has them: call run.step_done once for each optimizer.step, or "
    'give "gradients" to leave_out= if they may be lost'
)


class GradientWatch:
    """Watches the parameters of a run's parts. `found` is called at each step's end until it returns something."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parameters: dict[int, tuple[str, torch.Tensor]] = {}
        models_first = sorted(parts.items(), key=lambda entry: not isinstance(entry[1], torch.nn.Module))
        for name, part in models_first:
            for tensor in _trained(part):
                self._parameters.setdefault(id(tensor), (name, tensor))
        self._before: dict[int, tuple[int, int]] = {}  # what identifies each gradient at the step's end
        self._seen: set[int] = set()  # whose first backward pass of this step is over
        self._carried: set[int] = set()
        self._used: set[int] = set()
        self._has_stepped = self._has_cleared = False
        self._left = _WATCHED_STEPS
        self._handles: list[Any] = []

    @property
    def has_ended(self) -> bool:
        """Whether nothing is watched any more."""
        return self._left < 0

    def pop_findings(self) -> list[Finding]:
        """Called at the end of each step: what the step that ended accumulated into the gradients of the one before."""
        if self.has_ended:
            return []
        carried = self._used if self._has_stepped or self._has_cleared else self._used | self._carried
        names = dict.fromkeys(name for key, (name, _) in self._parameters.items() if key in carried)
        self._left = -1 if names else self._left - 1
        self._remove()
        if not self.has_ended:
            self._watch()
        else:
            self._parameters = {}
        return [Finding(f"gradients (.grad) of {name}", _REMEDY) for name in names]

    def close(self) -> None:
        """Watches no longer."""
        self._left = -1
        self._remove()

    def _watch(self) -> None:
        """Watches the next step."""
        self._before, self._seen, self._carried, self._used = {}, set(), set(), set()
        self._has_stepped = self._has_cleared = False
        for key, (_, tensor) in self._parameters.items():
            if tensor.grad is not None:
                self._before[key] = _identity(tensor.grad)
                self._handles.append(tensor.register_hook(lambda _, key=key: self._on_backward(key)))
        if self._before:
            self._handles.append(register_optimizer_step_pre_hook(self._on_optimizer_step))

    def _on_backward(self, key: int) -> None:
        """A backward pass is about to add to a gradient."""
        _, tensor = self._parameters[key]
        gradient, before = tensor.grad, self._before[key]
        if key not in self._seen:
            self._seen.add(key)
            if gradient is None or _identity(gradient) != before:
                self._has_cleared = True
            elif _is_not_zero(gradient):
                self._carried.add(key)
        elif key in self._carried and (gradient is None or not _is_not_zero(gradient)):
            self._carried.discard(key)  # cleared after another model's backward pass

    def _on_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        self._has_stepped = True
        tensors = (tensor for group in optimizer.param_groups for tensor in group["params"])
        self._used |= {id(tensor) for tensor in tensors if id(tensor) in self._carried and tensor.grad is not None}

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before = {}


def _trained(part: Any) -> Iterable[torch.Tensor]:
    """The parameters of a model, or those that an optimizer changes."""
    if isinstance(part, torch.nn.Module):
        tensors: Iterable[Any] = part.parameters()
    elif isinstance(part, torch.optim.Optimizer):
        tensors = [tensor for group in part.param_groups for tensor in group["params"]]
    else:
        return ()
    return (each for each in tensors if isinstance(each, torch.Tensor) and each.requires_grad and each.is_leaf)


def _identity(gradient: torch.Tensor) -> tuple[int, int]:
    """Its memory and its version, without keeping it alive: one more copy of all gradients may be too much."""
    return gradient.data_ptr() if gradient.layout is torch.strided else 0, gradient._version


def _is_not_zero(gradient: torch.Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient
    return bool((values != 0).any())
