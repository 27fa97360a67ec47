"""What one instruction of a function does with names: loads or stores them, attributes, and entries under constants."""

import dis
import functools
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LOADS = frozenset(
    ["LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_FAST_AND_CLEAR", "LOAD_NAME", "LOAD_GLOBAL",
     "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_CLOSURE"]
)  # fmt: skip
STORES = frozenset(["STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "DELETE_FAST", "DELETE_NAME",
                     "DELETE_GLOBAL", "DELETE_DEREF"])  # fmt: skip
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("load", "load"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("load", "load"),
    "STORE_FAST_LOAD_FAST": ("store", "load"),
    "STORE_FAST_STORE_FAST": ("store", "store"),
}
"""Instructions of later Pythons that access two names."""
ATTRIBUTE_LOADS = frozenset(["LOAD_ATTR", "LOAD_METHOD", "DELETE_ATTR"])  # what is called may be another function, too
ATTRIBUTE_STORES = frozenset(["STORE_ATTR"])

Access = tuple[str, str]
"""`load` or `store`, and the name."""


def accesses_of(
    instructions: list[dis.Instruction], number: int, entries: Mapping[str, frozenset[str]]
) -> Iterator[Access]:
    instruction = instructions[number]
    if instruction.opname in LOADS:
        yield "load", str(instruction.argval)
        yield from _entry_accesses(instructions, number, str(instruction.argval), entries)
    elif instruction.opname in STORES:
        yield "store", str(instruction.argval)
        yield from (("store", entry) for entry in entries.get(str(instruction.argval), ()))
    elif instruction.opname in _PAIRS:
        for kind, name in zip(_PAIRS[instruction.opname], instruction.argval, strict=True):
            yield kind, name
            yield from ((kind, entry) for entry in entries.get(name, ()))


def _entry_accesses(
    instructions: list[dis.Instruction], number: int, name: str, entries: Mapping[str, frozenset[str]]
) -> Iterator[Access]:
    """What loading a name does to its entries under constants: an assignment, the reading of one, or of all."""
    if name not in entries:
        return
    kind, entry = _constant_entry(instructions, number) or ("load", None)
    if entry is not None:
        yield kind, entry
    else:
        yield from (("load", key) for key in entries[name])


def constant_entries(instructions: list[dis.Instruction]) -> dict[str, frozenset[str]]:
    """By name, the entries under constants that the code assigns, as `stats['loss']`."""
    entries: dict[str, set[str]] = {}
    for number, instruction in enumerate(instructions):
        if instruction.opname in LOADS:
            kind, entry = _constant_entry(instructions, number) or ("", "")
            if kind == "store":
                entries.setdefault(str(instruction.argval), set()).add(entry)
    return {name: frozenset(keys) for name, keys in entries.items()}


def _constant_entry(instructions: list[dis.Instruction], number: int) -> Access | None:
    """What `name["constant"]` does, if the name at this instruction stands in such an expression."""
    following = instructions[number + 1 : number + 3]
    if len(following) < 2 or following[0].opname != "LOAD_CONST":
        return None
    entry = f"{instructions[number].argval}[{following[0].argval!r}]"
    match following[1].opname:
        case "STORE_SUBSCR":
            return "store", entry
        case "BINARY_SUBSCR" | "COPY":
            return "load", entry
    return None


def is_method(instruction: dis.Instruction) -> bool:
    """Whether an attribute is looked up to be called."""
    if instruction.opname == "LOAD_ATTR":
        return sys.version_info >= (3, 12) and bool((instruction.arg or 0) & 1)
    return instruction.opname == "LOAD_METHOD"


@functools.lru_cache(maxsize=1024)
def stored_names(code: types.CodeType) -> Mapping[str, int | None]:
    """The attributes, of any object, and the names of the module that a function assigns, with a line that does it.

    Also those of functions inside it.
    """
    lines: dict[str, int | None] = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_ATTR", "STORE_GLOBAL"):
            lines.setdefault(
                instruction.argval, instruction.positions.lineno if instruction.positions is not None else None
            )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            lines = {**stored_names(constant), **lines}
    return lines


_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})


@functools.lru_cache(maxsize=1024)
def seeks(code: types.CodeType) -> bool:
    """Whether a function, or one inside it, sets a file's position to what it computes. `file.seek(0)` only begins the
    file again, and `file.seek(16)` does behind its head."""
    instructions = [part for part in dis.get_instructions(code) if part.opname not in ("CACHE", "PUSH_NULL")]
    for number, instruction in enumerate(instructions):
        if instruction.opname in ATTRIBUTE_LOADS and instruction.argval == "seek":
            following = [part.opname for part in instructions[number + 1 : number + 3]]
            if following[0] not in _CONSTANTS or not following[1].startswith(("PRECALL", "CALL", *_CONSTANTS)):
                return True
    return any(seeks(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


MEASURES = frozenset(
    {"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "thread_time",
     "default_timer", "elapsed_time", "now", "utcnow", "today", "getpid", "getppid", "get_ident", "get_native_id", "id",
     "fileno", "getrusage", "ru_maxrss", "virtual_memory", "memory_info", "memory_allocated", "max_memory_allocated",
     "memory_reserved", "memory_stats", "getloadavg"}
)  # fmt: skip
"""Names of what tells something of this process or its host, and nothing of training."""


@functools.lru_cache(maxsize=1024)
def measured_names(code: types.CodeType) -> frozenset[str]:
    """The names in a function, and in functions inside it, that share a line with one of MEASURES."""
    lines: dict[int, set[str]] = {}
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions is not None else None
        if line is not None and isinstance(instruction.argval, str):
            lines.setdefault(line, set()).add(instruction.argval)
    own = (names for names in lines.values() if not names.isdisjoint(MEASURES))
    inner = (measured_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset().union(*own, *inner)


@dataclass(frozen=True, slots=True)
class NameAccess:
    """What an instruction does with an attribute or a name of the module. `kind`: `load` or `store`. `holder`: what has
    the attribute, as a variable and the attributes that lead from there, `self` and `trainer` in `self.trainer.loss`;
    None for what has no such name, as the result of a call. `is_called`: at once."""

    kind: str
    name: str
    is_attribute: bool
    holder: tuple[str, ...] | None = None
    is_called: bool = False


@functools.lru_cache(maxsize=1024)
def accesses_by_offset(code: types.CodeType) -> Mapping[int, NameAccess]:
    """By offset, what instructions do with attributes and names of the module; of `self.count += 1` that it loads."""
    accesses: dict[int, NameAccess] = {}
    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname != "EXTENDED_ARG"]
    for number, instruction in enumerate(instructions):
        name, before = str(instruction.argval), instructions[number - 1].opname
        if instruction.opname in ATTRIBUTE_STORES:
            if before != "SWAP":
                accesses[instruction.offset] = NameAccess("store", name, True, _holder(instructions, number))
        elif instruction.opname in ATTRIBUTE_LOADS:
            holder, is_called = _holder(instructions, number), is_method(instruction)
            accesses[instruction.offset] = NameAccess("load", name, True, holder, is_called)
        elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME"):
            kind = "store" if instruction.opname.startswith("STORE") else "load"
            accesses[instruction.offset] = NameAccess(kind, name, False)
    return accesses


@functools.cache
def attributes_of_others(code: types.CodeType, itself: str | None = None) -> frozenset[str]:
    """The attributes that a method, or a function inside it, reads or sets of other objects than its own (`itself`)."""
    itself = itself or next(iter(code.co_varnames), None)
    inner = [attributes_of_others(const, itself) for const in code.co_consts if isinstance(const, types.CodeType)]
    accesses = accesses_by_offset(code).values()
    own = {access.name for access in accesses if access.is_attribute and access.holder != (itself,)}
    return frozenset(own).union(*inner)


def _holder(instructions: list[dis.Instruction], number: int) -> tuple[str, ...] | None:
    """What the instructions before the one with a number leave on top of the stack, as in `NameAccess`."""
    attributes: list[str] = []
    while not instructions[number].is_jump_target:  # as that of `(first if chosen else second).loss`
        number -= 1
        before = instructions[number]
        if before.opname in _PAIRS and _PAIRS[before.opname][1] == "load":
            return str(before.argval[1]), *reversed(attributes)
        if before.opname in LOADS:
            return str(before.argval), *reversed(attributes)
        if before.opname == "LOAD_ATTR" and not is_method(before):
            attributes.append(str(before.argval))
        elif before.opname != "COPY":
            return None
    return None
