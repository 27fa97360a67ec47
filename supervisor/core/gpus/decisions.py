"""Who uses a GPU, and what is decided about that when it fails."""

from dataclasses import dataclass

from supervisor.core.gpus.faults import Follows, Remedy


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A job that runs. `visible`: its CUDA_VISIBLE_DEVICES. `is_ending`: it is being stopped or killed, or is over."""

    program: str
    attempt: int
    step: int | None = None
    pid: int | None = None
    visible: str | None = None
    started_wall_at: float = 0.0
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """The attempt has to end and another one to begin. `can_save`: the GPU still computes."""

    program: str
    attempt: int
    text: str
    can_save: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The program is wrong: no other attempt is to follow this one by itself."""

    program: str
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class AskOperator:
    """The hook is to be run. `programs`: that use the GPU or did when it failed; `is_in_use`: they still do."""

    gpu: str
    address: str
    fault: str
    text: str
    remedy: Remedy
    programs: tuple[str, ...]
    is_in_use: bool


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault that is to be reported. `follows`: what is done about it; `count`: of this kind on this GPU in weeks."""

    gpu: str
    address: str
    fault: str
    text: str
    follows: Follows
    programs: tuple[str, ...]
    count: int
    is_dry_run: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """A GPU is used again."""

    gpu: str
    why: str


Decision = Restart | GiveUp | AskOperator | Incident | Returned
