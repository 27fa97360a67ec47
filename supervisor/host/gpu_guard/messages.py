"""What the daemon and the helper for GPUs tell each other: one JSON object in each line, with its `type`.

An answer repeats the `id` of its question; what the helper says by itself has no `id`, or 0. The daemon believes only
what is within the limits of each field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, get_args

from supervisor.core.failures.gpu_activity import GpuLoad
from supervisor.core.gpus.health import MAX_GPUS, Count, GpuHealth
from supervisor.protocol.wire.limits import Items, Range, Text
from supervisor.protocol.wire.lines import LineCodec

MAX_HOLDERS = 1000  # processes with GPU memory
EXIT_LOCKED = 75  # the helper's exit status if another one lives

Id = Annotated[int, Range(0, 1 << 53)]
Number = Annotated[int, Range(0, 1 << 31)]
Words = Annotated[str, Text(300)]


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Say how all GPUs are, and which processes hold their memory."""

    id: Id


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """Say how much memory of GPUs each process holds."""

    id: Id


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """Say what each GPU has done in the last second."""

    id: Id


@dataclass(frozen=True, slots=True)
class CatchUpRequest:
    """Answer once all that the kernel's log had at this moment has been reported."""

    id: Id


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to ask NVML by oneself. `is_training`: whether a job runs."""

    is_training: bool


@dataclass(frozen=True, slots=True)
class GpuList:
    """How all GPUs are. `error`: NVML's error if none of them could be asked, `why` in words; `is_from_nvml`: False if
    there is no NVML, and only the kernel says which GPUs there are."""

    id: Id = 0
    gpus: Annotated[tuple[GpuHealth, ...], Items(MAX_GPUS)] = ()
    error: Number = 0
    why: Words = ""
    is_from_nvml: bool = True


@dataclass(frozen=True, slots=True)
class MemoryHeld:
    """Bytes by process id; None: nobody can tell."""

    id: Id
    by_pid: Annotated[Mapping[Annotated[str, Text(10)], Count], Items(MAX_HOLDERS)] | None = None


@dataclass(frozen=True, slots=True)
class GpuLoads:
    """The load of all GPUs that tell it."""

    id: Id
    loads: Annotated[tuple[GpuLoad, ...], Items(MAX_GPUS)] = ()


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All that the kernel's log had when this was asked has been reported."""

    id: Id


@dataclass(frozen=True, slots=True)
class XidSeen:
    """The kernel's log has a line about a GPU. `log_number`: of the record; `age_s`: of the line; `times`: how often it
    came since it was last reported."""

    number: Number
    address: Annotated[str, Text(32)]
    text: Words
    age_s: Annotated[float, Range(0, 1e10)] = 0.0
    pid: Number | None = None
    recovery: Number | None = None
    is_fatal: bool | None = None
    log_number: Id | None = None
    times: Number = 1


@dataclass(frozen=True, slots=True)
class NameSeen:
    """The kernel's log says which GPU is at an address."""

    address: Annotated[str, Text(32)]
    uuid: Annotated[str, Text(96)]


@dataclass(frozen=True, slots=True)
class Sources:
    """What is followed: "" if all is well, else why not. `nvml`: "" also as long as it was not tried."""

    kernel_log: Words = ""
    nvml: Words = ""


@dataclass(frozen=True, slots=True)
class DriverHangs:
    """A call into the driver has not come back for `for_s` seconds; 0: it has, and questions are answered again."""

    call: Annotated[str, Text(100)]
    for_s: Annotated[float, Range(0, 1e10)]


Question = ListRequest | MemoryRequest | LoadRequest | CatchUpRequest
Answer = GpuList | MemoryHeld | GpuLoads | CaughtUp
News = GpuList | XidSeen | NameSeen | Sources | DriverHangs
Message = Question | Pace | Answer | XidSeen | NameSeen | Sources | DriverHangs
ANSWERS = get_args(Answer)

LINES: LineCodec[Message] = LineCodec({kind.__name__: kind for kind in get_args(Message)})
"""Encodes and decodes the messages."""


@dataclass(frozen=True, slots=True)
class HelperSettings:
    """What the helper is started with. `lock`: the file that one helper at a time holds; `after`: the last record of
    the kernel's log that was judged, of this boot; `poll_s`: how often NVML is asked while a job runs."""

    lock: str
    after: Id | None = None
    poll_s: float = 15.0
    idle_poll_s: float = 300.0
