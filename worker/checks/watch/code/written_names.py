"""What code that writes a program's state takes of the values that it reaches: attributes by name, computed names, or
everything that an object has."""

import dis
import functools
import itertools
import types

from worker.checks.watch.code.instructions import is_method

WHOLESALE = frozenset(
    {"vars", "__dict__", "dump", "dumps", "asdict", "deepcopy", "tree_map", "tree_leaves", "tree_flatten", "state_dict",
     "ravel_pytree", "to_bytes", "to_state_dict", "msgpack_serialize", "get_weights"}
)  # fmt: skip
"""Names of what takes everything from an object."""


@functools.cache
def takes_by_computed_name(code: types.CodeType) -> bool:
    """Whether a function, or one inside it, calls getattr or attrgetter with a name that does not stand there."""
    steps = iter(step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE"))
    for step in steps:
        if step.argval in ("getattr", "attrgetter") and step.opname.startswith("LOAD_"):
            arguments = list(itertools.takewhile(lambda step: not step.opname.startswith("CALL"), steps))
            is_made = any(step.opname in ("BUILD_STRING", "FORMAT_VALUE", "BINARY_OP") for step in arguments)
            if is_made or not any(isinstance(step.argval, str) and step.opname == "LOAD_CONST" for step in arguments):
                return True
    return any(takes_by_computed_name(const) for const in code.co_consts if isinstance(const, types.CodeType))


@functools.cache
def used_whole(code: types.CodeType) -> frozenset[str]:
    """The names and attributes, and entries under constants, of which a function, or a function inside it, uses more
    than an attribute or such an entry."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE")]
    own: set[str] = set()
    for load, following, third in zip(steps, steps[1:], [*steps[2:], None], strict=False):
        if not load.opname.startswith(("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST")):
            continue
        if third is not None and third.opname == "BINARY_SUBSCR" and isinstance(following.argval, str):
            own.add(following.argval)  # of the entry alone
        elif following.opname != "LOAD_ATTR" or is_method(following) or following.argval in WHOLESALE:
            own.add(str(load.argval))
    inner = [used_whole(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(own).union(*inner)


@functools.cache
def uses_itself(code: types.CodeType) -> bool:
    """Whether a method uses its object as a whole, and not only attributes of it."""
    itself = code.co_varnames[:1]
    loads = [instruction for instruction in dis.get_instructions(code) if instruction.opname != "EXTENDED_ARG"]
    return any(
        load.opname in ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")
        and (load.argval,) == itself
        and not following.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"))
        for load, following in itertools.pairwise(loads)
    )
