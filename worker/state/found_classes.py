"""Classes of values that a restart can make again without an example of them.

They are enums and named tuples of modules that are loaded, and the dictionaries of the standard library. A checkpoint
has the names of such a class and of its module. A restart looks them up among what the script has defined or imported
by then: it imports nothing, and executes no code from the checkpoint. A class that a function makes can't be found so,
and other classes may need more than their content to be made.
"""

import enum
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

_FACTORIES: dict[str, Callable[[], Any]] = {kind.__name__: kind for kind in (int, float, str, list, dict, set, Counter)}


def describe_class(value: Any) -> dict[str, str]:
    """The class of a value, as JSON; with its module if a restart can make such a value again."""
    kind = type(value)
    module = str(kind.__module__)
    names = {"class": kind.__qualname__}
    if kind is defaultdict:
        factory = next((name for name, made in _FACTORIES.items() if made is value.default_factory), None)
        return names if factory is None else {**names, "module": module, "factory": factory}
    if kind in (Counter, OrderedDict) or (
        (isinstance(value, enum.Enum) or _is_named_tuple(kind)) and _find(module, kind.__qualname__) is kind
    ):
        names["module"] = module
    return names


def make_dict(saved: Mapping[str, Any]) -> Any:
    """An empty dictionary of the class in `describe_class`'s JSON; None if it can't be made."""
    if saved.get("module") != "collections":
        return None
    if saved["class"] == "defaultdict":
        return defaultdict(_FACTORIES[saved["factory"]])
    return {"Counter": Counter, "OrderedDict": OrderedDict}[saved["class"]]()


def named_tuple_class(saved: Mapping[str, Any]) -> Any:
    """The named tuple's class in `describe_class`'s JSON; None if it can't be found."""
    found = _find(saved.get("module", ""), saved["class"])
    return found if isinstance(found, type) and _is_named_tuple(found) else None


def enum_class(saved: Mapping[str, Any]) -> Any:
    """The enum in `describe_class`'s JSON; None if it can't be found."""
    found = _find(saved.get("module", ""), saved.get("class", ""))
    return found if isinstance(found, type) and issubclass(found, enum.Enum) else None


def plain_class(name: str) -> Any:
    """The enum or named tuple with this module and name (`package.module.Outer.Name`); None if it can't be found."""
    parts = name.split(".")
    for number in range(len(parts) - 1, 0, -1):
        found = _find(".".join(parts[:number]), ".".join(parts[number:]))
        if isinstance(found, type) and (issubclass(found, enum.Enum) or _is_named_tuple(found)):
            return found
    return None


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_make") and hasattr(kind, "_fields")


def _find(module: str, qualified_name: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in qualified_name.split("."):
        found = getattr(found, "__dict__", {}).get(name)  # not getattr, which a module may answer with an import
    return found
