"""Decides how long the runs of a proof are, and where the second one is killed. No clock, no process, no file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.protocol.proof import KillPlace
from supervisor.protocol.proof_plan import PlannedKill

STEPS_MIN = 20  # fewer leave no room for three kills, each with steps before and after it
STEPS_MAX = 20_000  # a record of some megabytes
TRAIN_S = 60.0  # of each run, so that a proof takes some minutes with the starts between
EDGE_S = 180.0  # the longest wait for the first end of an epoch
AFTER_EDGE = 5  # steps of the next epoch
SEEN_WITHIN_S = 1.0  # in which a worker takes notice that training is to end
SAVE_EVERY_S = 1.0  # of training: more frequent saves cost more than they show
EVERY_MIN = 31  # steps between two saves that need not be fewer for that
BEYOND = 20  # steps that a killed run may train longer than the undisturbed one, before it is ended
_DIVISORS = (2, 3, 4, 5, 8, 10)
"""Lengths of cycles that scripts count in steps; a resume at a multiple of one would hide that it begins anew."""


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """What the user asked for. `steps`, `epochs`: None leaves the choice to `end_of_training`."""

    kills: int = 3
    steps: int | None = None
    epochs: float | None = None


@dataclass(frozen=True, slots=True)
class TrainedSoFar:
    """What is known of a run that trains. `edges`: the last steps of its epochs that are over."""

    step: int
    trained_s: float
    edges: tuple[int, ...] = ()


def end_of_training(so_far: TrainedSoFar, wanted: ProofOptions) -> int | None:
    """The step at which the first run ends; None: it is not decided yet. It is a little ahead, as the worker has to
    take notice of it."""
    if wanted.steps is not None:
        return wanted.steps
    ahead = so_far.step + max(2, math.ceil(so_far.step / max(so_far.trained_s, 1e-9) * SEEN_WITHIN_S))
    if wanted.epochs is not None:
        return max(math.ceil(wanted.epochs * so_far.edges[0]), ahead) if so_far.edges else None
    has_edge = bool(so_far.edges) and so_far.step >= so_far.edges[0] + AFTER_EDGE
    is_long = so_far.trained_s >= (TRAIN_S if has_edge else EDGE_S)
    if so_far.step >= STEPS_MAX or (so_far.step >= STEPS_MIN and is_long):
        return ahead
    return None


def steps_between_saves(last: int, kills: int, step_s: float) -> int:
    """An interval at which kills fall between two saves: a prime number, so that it is in no cycle of the script's own.

    It does not divide the last step. That one is saved by the end of training alone, with what the script does behind
    its loop, as in the run that saves at no other step.
    """
    most = max(1, last // (4 * (kills + 1)))
    wanted = min(most, max(EVERY_MIN, math.ceil(SAVE_EVERY_S / max(step_s, 1e-6))))
    below = next((number for number in range(wanted, 2, -1) if _is_fit(number, last)), None)
    return below or next(number for number in range(2, last + 2) if _is_fit(number, last))


def _is_fit(number: int, last: int) -> bool:
    return last % number != 0 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def plan_kills(
    steps: Sequence[int], edges: Sequence[int], count: int, interval: int, *, is_whole: bool
) -> tuple[PlannedKill, ...]:
    """Where the second run is killed: in a step, at an epoch's edge, in a save, and so on, spread over the training.

    `steps`: the boundaries of the undisturbed run, in order; `edges`: those that are the last of an epoch; `is_whole`:
    training ended by itself, so the last step can be followed by a kill too. Fewer than `count` if there is no room.
    """
    last = steps[-1]
    usable = [step for step in steps if step < last]
    targets = [number * last // (count + 1) for number in range(1, count + 1)]
    killable_edges = [edge for edge in edges if edge < last] or ([last] if is_whole else [])
    chosen: dict[int, KillPlace] = {}
    for _ in range(max(1, count // 3) if count > 1 else 0):
        free = [edge for edge in killable_edges if edge not in chosen]
        if free:
            edge, target = min(((edge, target) for edge in free for target in targets), key=_distance)
            chosen[edge] = KillPlace.EPOCH_EDGE
            targets.remove(target)
    for number, target in enumerate(targets):
        place = KillPlace.STEP if number == len(targets) - 1 or number % 2 else KillPlace.SAVE
        free_steps = [step for step in usable if step not in chosen]
        if not free_steps:
            break
        if place is KillPlace.SAVE:
            at_save = [step for step in free_steps if step % interval == 0] or free_steps
            resumable = [step for step in at_save if step > interval] or at_save
            chosen[min(resumable, key=lambda step: abs(step - target))] = place
        else:
            between = [step for step in free_steps if step % interval != 0] or free_steps
            resumable = [step for step in between if step > interval] or between
            near = sorted(resumable, key=lambda step: abs(step - target))[: 4 * interval]
            chosen[max(near, key=lambda step: (_resume_score(step, edges, interval), -abs(step - target)))] = place
    ordered = sorted(chosen.items())
    damages = _damaged(ordered, interval)
    return tuple(
        PlannedKill(
            place,
            step,
            saves=step == damages or (place is KillPlace.EPOCH_EDGE and step < last),
            damages=step == damages,
        )
        for step, place in ordered
    )


def _distance(pair: tuple[int, int]) -> tuple[int, int]:
    edge, target = pair
    return abs(edge - target), edge


def _resume_score(step: int, edges: Sequence[int], interval: int) -> int:
    """How many cycles would not begin anew by chance where a run resumes that was killed behind `step` and finds its
    newest checkpoint, of that step, damaged."""
    resumed = (step - 1) // interval * interval
    within = resumed - max((edge for edge in edges if edge <= resumed), default=0)
    return sum(within % divisor != 0 for divisor in _DIVISORS)


def _damaged(kills: Sequence[tuple[int, KillPlace]], interval: int) -> int | None:
    """The kill before which the newest checkpoint is damaged: the last in a step that has an older one."""
    fit = [step for step, place in kills if place is KillPlace.STEP and step > 2 * interval]
    return fit[-1] if fit else None


def end_of_killed_run(last: int, *, is_whole: bool) -> int:
    """The step at which the killed run ends. One whose undisturbed run ended by itself has to do so too; if it does
    not, it is ended some steps later."""
    return last + max(BEYOND, last // 4) if is_whole else last
