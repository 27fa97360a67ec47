"""Compares two records of one training: each time that a step was trained has to show the same bits."""

from collections.abc import Iterable, Mapping, Sequence

from supervisor.protocol.proof import Difference
from supervisor.protocol.proof_plan import StepDone
from supervisor.prove.record import RunRecord

NUMBER_OF_STEPS = "number of steps"
RESTART = "restart"
EPOCH = "epoch"
BATCH = "batch of the epoch"
EXAMPLES = "examples of the epoch"
ABSENT = "absent"


def differing_steps(undisturbed: RunRecord, killed: RunRecord, *, is_whole: bool) -> list[Difference]:
    """What differs, each name once with the first step at which it does, in the order of steps.

    `is_whole`: the undisturbed training ended by itself, so the other one has to end at the same step.
    """
    known = {step.step: step for step in undisturbed.steps}
    by_name: dict[str, Difference] = {}
    for again in sorted(killed.steps, key=lambda step: step.step):
        once = known.get(again.step)
        for difference in () if once is None else _differences(once, again):
            by_name.setdefault(difference.name, difference)
    differences = list(by_name.values())
    ended = undisturbed.last, killed.last
    if ended[0] != ended[1] and (is_whole or ended[1] < ended[0]):
        longer = "" if killed.last < undisturbed.last else " or more"  # it may have been ended there
        differences.insert(0, Difference(NUMBER_OF_STEPS, min(ended) + 1, str(ended[0]), f"{ended[1]}{longer}"))
    return differences


def first_differing_step(undisturbed: RunRecord, killed: RunRecord) -> int | None:
    """The first step that did not show the same bits; None if all that both have trained did."""
    differences = differing_steps(undisturbed, killed, is_whole=False)
    return min(
        (difference.step for difference in differences if difference.step and difference.name != NUMBER_OF_STEPS),
        default=None,
    )


def _differences(once: StepDone, again: StepDone) -> Iterable[Difference]:
    for name, one, other in (
        (EPOCH, once.epoch, again.epoch),
        (BATCH, once.batch, again.batch),
        (EXAMPLES, once.examples, again.examples),
    ):
        if one != other:
            yield Difference(name, once.step, str(one), str(other))
    for name in sorted(once.metrics.keys() | again.metrics.keys()):
        if once.metrics.get(name) != again.metrics.get(name):
            yield Difference(f"metric {name}", once.step, _text(once.metrics, name), _text(again.metrics, name))


def _text(metrics: Mapping[str, Sequence[str]], name: str) -> str:
    if name not in metrics:
        return ABSENT
    return ", ".join(_number(bits) for bits in metrics[name])


def _number(bits: str) -> str:
    try:
        return repr(float.fromhex(bits))
    except ValueError:
        return bits


def metric_names(record: RunRecord) -> set[str]:
    """The names of all metrics."""
    return {name for step in record.steps for name in step.metrics}


def epoch_goes_back(undisturbed: RunRecord, killed: RunRecord) -> bool:
    """Whether a restart was in an earlier epoch than the undisturbed training at the same step."""
    known = {step.step: step.epoch for step in undisturbed.steps}
    return any(step.epoch < known.get(step.step, 0) for step in killed.steps)
