"""Whose is an object, and what has it? The script's own, a framework's, or of a package that only shows what happens.

No attribute is asked of an object that may compute it: reading a variable of several processes would make them wait for
each other. Imports no framework.
"""

import dataclasses
import dis
import functools
import sys
import types
from typing import Any

from worker.checks.reachability import arguments_of, is_installed_file
from worker.state.plain_values import class_module

FRAMEWORKS = frozenset({"tensorflow", "keras", "tf_keras", "torch", "tensorflow_probability", "keras_rs", "keras_hub"})
"""Packages whose objects keep their own state in ways that other checks know."""
_DISPLAY = frozenset(
    {"tqdm", "rich", "progress", "alive_progress", "logging", "loguru", "structlog", "absl", "wandb", "mlflow",
     "tensorboard", "tensorboardX", "matplotlib", "PIL", "prettytable", "comet_ml", "neptune", "aim", "clearml"}
)  # fmt: skip
"""Packages that show what happens in training and do not change it."""
SKIPPED = frozenset({"numpy", "pandas", "worker", "supervisor", "google", "h5py"}) | _DISPLAY
"""Packages whose objects are not searched."""


_STORE_ATTR = dis.opmap["STORE_ATTR"]


@functools.lru_cache(maxsize=4096)
def names_in_framework(kind: type) -> frozenset[str]:
    """Names that the functions of a framework's classes use: attributes of that name are its own."""
    names: set[str] = set()
    for owner in kind.__mro__:
        if package_of(owner) in FRAMEWORKS:
            for member in vars(owner).values():
                if (function := function_of(member)) is not None:
                    names |= names_in_code(function.__code__)
            names |= set(vars(owner))
    return frozenset(names)


@functools.lru_cache(maxsize=4096)
def names_set_by_framework(kind: type) -> frozenset[str]:
    """Attributes that a framework's classes have, or assign to some object. Data in another public attribute of a
    class of the script's are the script's own, though a framework may have a use for that name elsewhere: `state`."""
    names: set[str] = set()
    for owner in kind.__mro__:
        if package_of(owner) in FRAMEWORKS:
            names |= set(vars(owner)) | set(getattr(owner, "__annotations__", ()))
            for member in vars(owner).values():
                if (function := function_of(member)) is not None:
                    names |= _attributes_set_in(function.__code__)
    return frozenset(names)


def _attributes_set_in(code: types.CodeType) -> set[str]:
    names = {code.co_names[at] for opcode, at in arguments_of(code) if opcode == _STORE_ATTR}
    if not {"setattr", "__setattr__"}.isdisjoint(code.co_names):
        names |= {const for const in code.co_consts if isinstance(const, str) and const.isidentifier()}
    return names.union(*(_attributes_set_in(const) for const in code.co_consts if isinstance(const, types.CodeType)))


@functools.lru_cache(maxsize=4096)
def settings_of(kind: type) -> frozenset[str]:
    """Names of the settings with which a framework's class is made, such as a layer's `rate` or an optimizer's
    `momentum`: a script may change them while it trains. Not of what gives its settings as its state."""
    if "torch" in {package_of(owner) for owner in kind.__mro__} and not hasattr(kind, "register_buffer"):
        return frozenset()
    names: set[str] = {"training"}
    for owner in kind.__mro__:
        made = vars(owner).get("__init__")
        if package_of(owner) in FRAMEWORKS and isinstance(made, types.FunctionType):
            code = made.__code__
            names |= set(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])
    return frozenset(names - {"name", "iterations", "min_delta"})  # Keras' callbacks negate that one


def function_of(member: Any) -> types.FunctionType | None:
    """The function behind a member of a class: a method, a property, or what decorators have wrapped."""
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    function = getattr(function, "__wrapped__", function)
    return function if isinstance(function, types.FunctionType) else None


def is_traced(value: Any) -> bool:
    """Whether it is a `tf.function`, whose `python_function` is the script's."""
    return hasattr(type(value), "python_function")


def names_in_code(code: types.CodeType) -> set[str]:
    names = {*code.co_names, *(const for const in code.co_consts if isinstance(const, str) and const.isidentifier())}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= names_in_code(const)
    return names


def package_of(kind: type) -> str:
    """The package of a class."""
    return package_of_name(class_module(kind))


def package_of_name(module: str) -> str:
    """The package of a module."""
    return module.partition(".")[0]


def is_scripts_class(kind: type) -> bool:
    """Whether a class is neither Python's nor of a framework, nor of a package that only shows what happens."""
    return package_of(kind) not in FRAMEWORKS | SKIPPED | sys.stdlib_module_names or kind.__module__ == "__main__"


def kind_of(value: Any) -> Any:
    """What objects have in common whose methods do the same with an attribute: their class. Each class and each module
    is a kind of its own."""
    return value if isinstance(value, type | types.ModuleType) else type(value)


def are_related(first: Any, second: Any) -> bool:
    """Whether objects of two kinds may share code: their classes have one of the script's in common. Of None nobody
    knows."""
    if first is None or second is None or first is second:
        return True
    if not (isinstance(first, type) and isinstance(second, type)):
        return False
    return any(is_scripts_class(kind) for kind in first.__mro__ if kind in second.__mro__)


@functools.lru_cache(maxsize=4096)
def is_installed(kind: Any) -> bool:
    """Whether a class is of an installed package that is no framework: nobody who writes a script knows its insides."""
    module = sys.modules.get(class_module(kind))
    return package_of(kind) not in FRAMEWORKS and is_installed_file(getattr(module, "__file__", None))


def is_searched(kind: type) -> bool:
    """Whether objects of an installed package are searched all the same: records of values, as of Flax and Optax,
    environments of reinforcement learning, which no restart brings back, and models that learn batch by batch, as
    scikit-learn's and River's."""
    is_environment = hasattr(kind, "reset") and hasattr(kind, "step")
    return (
        dataclasses.is_dataclass(kind) or is_environment or hasattr(kind, "partial_fit") or hasattr(kind, "learn_one")
    )


def is_scripts(module: str, file: str | None) -> bool:
    """Whether a module belongs to the script itself and not to an installed package."""
    if module == "__main__":
        return True
    is_elsewhere = file is None or is_installed_file(file)
    return not is_elsewhere and package_of_name(module) not in FRAMEWORKS | SKIPPED | sys.stdlib_module_names


def scripts_files() -> list[str]:
    """The files of the script's own modules, as far as it has imported them."""
    modules = [(name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items())]
    return [file for name, file in modules if isinstance(file, str) and is_scripts(name, file)]
