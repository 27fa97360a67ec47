"""`python -m worker.torch.compare_states ONE OTHER`: what two files of states differ by, as JSON on standard output.

A list of [name, value in one, value in the other]. For `prove`, which has no PyTorch.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from worker.torch.saved_state import load_state, unloadable_classes

Difference = tuple[str, str, str]


def differing(one: Any, other: Any, path: str = "") -> Iterator[Difference]:
    """Where two states differ: tensors by their bits, all else by what it is."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        yield from _differing_tensors(one, other, path)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted(one.keys() | other.keys(), key=repr):
            inside = f"{path}.{key}".lstrip(".")
            if key not in one or key not in other:
                yield inside, _presence(key in one), _presence(key in other)
            else:
                yield from differing(one[key], other[key], inside)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from differing(first, second, f"{path}.{number}".lstrip("."))
    elif type(one) is not type(other) or repr(one) != repr(other):
        yield path, repr(one)[:100], repr(other)[:100]


def _differing_tensors(one: torch.Tensor, other: torch.Tensor, path: str) -> Iterator[Difference]:
    forms = [f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in (one, other)]
    if forms[0] != forms[1]:
        yield path, forms[0], forms[1]
        return
    if one.layout is not torch.strided or one.is_quantized:
        if repr(one) != repr(other):
            yield path, "its values", "other values"
        return
    bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    unequal = (bits[0] != bits[1]).nonzero()
    if len(unequal):
        at = int(unequal[0]) // max(1, one.element_size())
        where = f"element {at}: " if one.numel() > 1 else ""
        mine, theirs = (f"{where}{tensor.reshape(-1)[at].item()!r}" for tensor in (one, other))
        yield path, mine, theirs


def _presence(is_there: bool) -> str:
    return "present" if is_there else "absent"


def shown_name(path: str) -> str:
    """A path in the state as a user knows it: `model/0.weight`, `optimizer/state.0.exp_avg`."""
    kind, _, rest = path.partition(".")
    if kind == "parts":
        name, _, inside = rest.partition(".")
        return f"{name}/{inside}" if inside else name
    return {
        "cpu": "PyTorch's random state",
        "cuda": f"random state of GPU {rest}",
        "generators": f"generator {rest}",
    }.get(kind, path)


class _Parts(tuple[Any, ...]):
    """A value of a class of the script's, which is not imported here: what it is made of."""

    def __new__(cls, *parts: Any) -> "_Parts":
        return super().__new__(cls, (cls.__name__, *parts))


def _load(path: Path) -> Any:
    names = unloadable_classes(path)
    known: AbstractContextManager[Any] = nullcontext()
    if names:
        known = torch.serialization.safe_globals([(type(name, (_Parts,), {}), name) for name in names])
    with known:
        return load_state(path)


def main(arguments: list[str]) -> int:
    """Prints the differences."""
    one, other = (_load(Path(argument)) for argument in arguments)
    differences = [(shown_name(path), *values) for path, *values in differing(one, other)]
    sys.stdout.write(json.dumps(differences))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
