"""What an object of a script refers to, as far as training can change it, by the names that the user knows.

Through functions and their globals, bound methods, classes, modules, and objects of the script and of other packages.
No attribute is asked of an object that may compute it: reading a variable of several processes would make them wait for
each other. What frameworks keep in their own objects is not followed: for an object of Keras or PyTorch, only
attributes that its framework does not know, and its parts. Imports no framework.
"""

import contextlib
import functools
import gc
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from worker.checks.reachability import (
    closure_of,
    first_entries,
    globals_of,
    held_attributes,
    is_installed_file,
    locals_of,
)
from worker.checks.watch.digests import PLAIN, is_plain, locals_to_read
from worker.checks.watch.replaced_objects import is_object
from worker.checks.watch.script_objects import (
    FRAMEWORKS,
    SKIPPED,
    function_of,
    is_installed,
    is_scripts,
    is_scripts_class,
    is_searched,
    is_traced,
    names_in_code,
    names_in_framework,
    names_set_by_framework,
    package_of,
    package_of_name,
    settings_of,
)
from worker.checks.watch.standard_objects import NAMESPACES, content_of, environment_of, is_cache
from worker.state.callback_state import callbacks_in, is_keras_callback, state_of
from worker.state.random_generators import GENERATORS

Part = tuple[str, Any, int | None, str | None]
"""What something refers to: its path, itself, the id of the object that has it as an attribute, and its binding."""


class Setting(str):
    """The name of an attribute that a framework's object reads, and only scripts change: `rate`, `trainable`."""

    __slots__ = ()


class Default(str):
    """The name of an attribute that an object has from its class until somebody sets it, which then is a change."""

    __slots__ = ()


class Argument(str):
    """The name of a parameter of a function, which has a default."""

    __slots__ = ()


class OfModule(str):
    """The name of a parameter of a module of PyTorch."""

    __slots__ = ()


class OfClass(str):
    """The name of a method of a class, or `__class__` of an object, which is a change once it is another one."""

    __slots__ = ()


def parts_of(path: str, value: Any, codes: set[types.CodeType]) -> Iterator[Part]:
    """What an object that is no value itself refers to, as far as training can change it. `codes` gets the code of the
    script's functions."""
    if isinstance(value, types.MethodType):
        yield path.rpartition(".")[0] or path, value.__self__, None, None
        yield path, value.__func__, None, None
    elif isinstance(value, types.BuiltinMethodType | types.MethodWrapperType):  # memory.append, counter.__next__
        if not isinstance(value.__self__, types.ModuleType | type(None)):
            yield path.rpartition(".")[0] or path, value.__self__, None, None
    elif isinstance(value, functools.partial):
        yield path, value.func, None, None
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(path, value, codes)
    elif is_cache(value):
        yield path, value.__wrapped__, None, None
    elif is_traced(value):
        yield path, value.python_function, None, None
    elif isinstance(value, types.ModuleType):
        is_made = value.__name__ not in sys.modules  # by the script, as types.ModuleType("settings")
        if is_made or is_scripts(value.__name__, getattr(value, "__file__", None)):
            yield from _attributes_of(path, value, vars(value))
    elif isinstance(value, weakref.ref):
        yield path, value(), None, None
    elif type(value) in weakref.ProxyTypes:
        with contextlib.suppress(ReferenceError):  # what it stands for is gone
            yield path, value.__repr__.__self__, None, None
    elif isinstance(value, type):
        if is_scripts_class(type(value)):  # a metaclass
            yield type(value).__name__, type(value), None, None
        if is_scripts_class(value) and not is_installed(cast("Any", value)):
            yield from _attributes_of(path, value, vars(value))
            yield from _methods_of(path, value)
    elif not isinstance(value, GENERATORS):
        yield from _parts_of_object(path, value)


def parts_of_generator(path: str, iterator: Any) -> Iterator[Part]:
    """The objects of a generator of the script's, in which numbers, arrays and iterators are part of its position; and
    what an iterator of Python's own calls, as `map` and `iter(read, b"")` do."""
    if isinstance(iterator, types.GeneratorType):
        read = locals_to_read(iterator.gi_frame) if locals_of(iterator) else {}
        for name, value in read.items():
            if not (is_plain(value) or hasattr(type(value), "__next__")):
                yield f"{path}.{name}", value, None, None
    elif package_of(type(iterator)) in ("builtins", "itertools"):
        called = [value for value in gc.get_referents(iterator) if isinstance(value, _CALLED)]
        yield from ((f"{path}.__next__", value, None, None) for value in called)


def _parts_of_function(path: str, function: types.FunctionType, codes: set[types.CodeType]) -> Iterator[Part]:
    in_packages = FRAMEWORKS | SKIPPED | sys.stdlib_module_names
    if package_of_name(function.__module__ or "") in in_packages or is_installed_file(function.__code__.co_filename):
        if (inner := getattr(function, "__wrapped__", None)) is not None:
            yield path, inner, None, None
        return
    codes.add(function.__code__)
    yield from ((name, value, None, name) for name, value in closure_of(function))
    for name, default in _arguments_of(function):  # not at the function's own path, which says which one it is
        yield f"{path}.{name}", default, None, Argument(name)
    for name, value in _globals_by_any_name(function):
        # to which function a name is bound is compared as an attribute of its module is
        yield name, value, id(function.__globals__) if function_of(value) is not None else None, name
    yield from (
        (f"os.environ[{name!r}]", text, None, None) for name, text in environment_of([function.__code__]).items()
    )
    if vars(function):
        yield from _attributes_of(path, function, vars(function))


def _arguments_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The defaults of a function's parameters, which a function that is made anew may have changed."""
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _globals_by_any_name(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function uses of its module, also as `globals()["rate"]`."""
    used = dict(globals_of(function))
    if "globals" in function.__code__.co_names:
        variables = function.__globals__
        used |= {name: variables[name] for name in names_in_code(function.__code__) if name in variables}
    yield from used.items()


def _methods_of(path: str, kind: type) -> Iterator[Part]:
    for owner in kind.__mro__:
        if is_scripts_class(owner):
            for name, method in vars(owner).items():
                if (function := function_of(method)) is not None:
                    is_own = not name.startswith("__")  # a framework may put its own around these
                    yield f"{path}.{name}", function, id(owner) if is_own else None, OfClass(name) if is_own else None


def _parts_of_object(path: str, value: Any) -> Iterator[Part]:
    kind = type(value)
    if (content := content_of(value)) is not None:
        yield path, content, None, None
    if isinstance(value, np.random.SeedSequence):
        yield f"{path}.n_children_spawned", value.n_children_spawned, id(value), None
    packages = {package_of(base) for base in kind.__mro__}
    if packages & {"torch", "scipy"} and isinstance(drawn := held_attributes(value).get("num_generated"), int):
        yield f"{path}.num_generated", drawn, id(value), "num_generated"  # of a Sobol sequence
    if packages & SKIPPED - {"numpy"} or package_of(kind) in SKIPPED:
        return
    of_package = is_installed(cast("Any", kind))
    if of_package and not is_searched(kind):
        yield from _callbacks_of(path, value)
        return
    if is_scripts_class(kind) and not of_package:
        yield kind.__name__, kind, None, None
        yield f"{path}.__class__", kind, id(value), OfClass("__class__")
        yield from _defaults_of(path, value)
        yield from _traced_methods(path, value)
    if is_keras_callback(value):
        yield path, state_of(value), None, None
        functions = [(name, part) for name, part in vars(value).items() if isinstance(part, types.FunctionType)]
        yield from ((f"{path}.{name}", function, None, None) for name, function in functions)
    elif (framework := next(iter(packages & FRAMEWORKS), None)) is not None:
        yield from _parts_in_framework(path, value, framework)
    elif package_of(kind) not in sys.stdlib_module_names or kind in NAMESPACES:
        yield from _attributes_of(path, value, held_attributes(value))
    else:
        yield from _callbacks_of(path, value)


def _attributes_of(path: str, owner: Any, attributes: Mapping[str, Any]) -> Iterator[Part]:
    is_module = isinstance(owner, types.ModuleType)
    for name, value in list(attributes.items()):
        if name.startswith("__") or (is_module and isinstance(value, types.ModuleType | type | types.FunctionType)):
            continue
        if isinstance(value, property | staticmethod | classmethod) or (
            isinstance(owner, type) and isinstance(value, types.FunctionType)
        ):
            continue
        yield f"{path}.{name}", value, id(owner), name


def _defaults_of(path: str, value: Any) -> Iterator[Part]:
    """The plain attributes that the script's classes give an object which has none of that name itself."""
    held = held_attributes(value)
    for owner in type(value).__mro__:
        if is_scripts_class(owner):
            for name, default in list(vars(owner).items()):
                if isinstance(default, PLAIN) and not name.startswith("__") and name not in held:
                    yield f"{path}.{name}", default, id(value), Default(name)


_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_CALLED = (*_FUNCTIONS, types.BuiltinMethodType)
_RUN_ELSEWHERE = frozenset({"threading", "concurrent", "multiprocessing", "asyncio", "logging", "signal", "unittest"})
"""Packages whose objects call functions beside training, or show what happens."""


def _callbacks_of(path: str, value: Any, depth: int = 3) -> Iterator[Part]:
    """The functions of the script that an object of a package has, as those which it is to call later."""
    if package_of(type(value)) in SKIPPED | _RUN_ELSEWHERE:
        return
    for name, held in held_attributes(value).items():
        yield from ((f"{path}.{name}", function, None, None) for function in _functions_in(held, depth))


def _functions_in(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, _FUNCTIONS):
        function = value.func if isinstance(value, functools.partial) else value
        function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        if code is not None and is_scripts(getattr(function, "__module__", None) or "", code.co_filename):
            yield getattr(value, "__wrapped__", value)
    elif isinstance(value, list | tuple | dict | deque) and depth > 0:
        for entry in first_entries(value.values() if isinstance(value, dict) else value):
            yield from _functions_in(entry, depth - 1)


def _functions_given_to(path: str, attributes: Mapping[str, Any]) -> Iterator[Part]:
    """The functions that a script has given to an object of a framework, such as hooks, a layer's or a rate's."""
    for name, attribute in attributes.items():
        if isinstance(attribute, _FUNCTIONS):
            code = getattr(attribute.func if isinstance(attribute, functools.partial) else attribute, "__code__", None)
            if code is not None and not is_installed_file(code.co_filename):
                yield f"{path}.{name}", attribute, None, None
        elif name.endswith("_hooks") and isinstance(attribute, Mapping):
            yield from ((f"{path}.{name}", hook, None, None) for hook in list(attribute.values()))


def _traced_methods(path: str, value: Any) -> Iterator[Part]:
    """An object's methods that are `tf.function`, of which each object has its own."""
    for owner in type(value).__mro__:
        for name, member in list(vars(owner).items()) if is_scripts_class(owner) else ():
            if is_traced(member):
                yield f"{path}.{name}", getattr(value, name), None, None


_REQUIRES_GRAD = Setting("requires_grad")


def _parts_in_framework(path: str, value: Any, framework: str) -> Iterator[Part]:
    """Attributes of an object of a framework that the framework does not know, and the objects that it consists of."""
    known, settings = names_in_framework(cast("Any", type(value))), settings_of(cast("Any", type(value)))
    attributes = held_attributes(value)
    set_by_framework = names_set_by_framework(cast("Any", type(value))) if is_scripts_class(type(value)) else known
    own = {
        name: attribute
        for name, attribute in attributes.items()
        if name not in known or not (name.startswith("_") or name in set_by_framework or not is_plain(attribute))
    }
    yield from _attributes_of(path, value, own)
    yield from _functions_given_to(path, attributes)
    for name, setting in attributes.items():
        public = name.removeprefix("_")
        if name not in known or public not in settings:
            continue
        if isinstance(setting, bool | int | float | str):
            yield f"{path}.{public}", setting, id(value), Setting(public)
        elif is_object(setting) and not hasattr(setting, "shape"):  # a schedule, a regularizer, and no variable
            yield f"{path}.{public}", setting, None, None
    if framework == "torch":
        held = held_attributes(value)
        modules = held.get("_modules")
        if isinstance(modules, dict):
            yield from ((f"{path}.{name}", module, id(value), name) for name, module in list(modules.items()))
        parameters = held.get("_parameters")
        if isinstance(parameters, dict):
            for name, parameter in list(parameters.items()):
                if parameter is not None:
                    yield f"{path}.{name}.requires_grad", bool(parameter.requires_grad), id(parameter), _REQUIRES_GRAD
                    yield f"{path}.{name}", parameter, None, OfModule(name)
                    yield from _functions_given_to(f"{path}.{name}", {"_backward_hooks": parameter._backward_hooks})
            buffers = held.get("_buffers", {})
            for name in list(held.get("_non_persistent_buffers_set", ())):
                if buffers.get(name) is not None:
                    yield f"{path}.{name}", buffers[name], id(value), name
    else:
        yield from (
            (f"{path}.callbacks[{number}]", callback, None, None) for number, callback in enumerate(callbacks_in(value))
        )
        for kind_of_variables in ("_trainable_variables", "_non_trainable_variables"):
            for variable in list(held_attributes(value).get(kind_of_variables) or ()):
                held = held_attributes(variable)
                if added := held.keys() - names_in_framework(cast("Any", type(variable))):
                    its_path = f"{path}.{getattr(variable, 'name', 'variable')}"
                    yield from _attributes_of(its_path, variable, {name: held[name] for name in sorted(added)})
        for layer in list(held_attributes(value).get("_layers") or ()):
            yield f"{path}.{getattr(layer, 'name', 'layer')}", layer, None, None
