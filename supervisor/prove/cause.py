"""Says what a difference probably comes from, and what to write instead. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.protocol.proof import Difference, Likely
from supervisor.protocol.proof_plan import Named
from supervisor.prove.state import RANDOM
from supervisor.prove.steps import BATCH, EPOCH, EXAMPLES, NUMBER_OF_STEPS

_OF_DATA = (BATCH, EXAMPLES, "position in the data", "passes over the data", "description of the data")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The likely cause, a sentence about it, and the lines to write."""

    likely: Likely
    reason: str
    remedy: str


_LOOP = (
    "let the run count: `for epoch in run.epochs(n):` around `for batch in run.batches(data):` with one run.step_done "
    "for each step, or `while not run.reached:`; number batches with "
    "`enumerate(run.batches(data), run.batch)`"
)
_DATA = (
    "take the batches from run.batches(data), with a fixed seed for each shuffle, or compute each batch from "
    "run.step and run.epoch"
)
_RANDOM = "give the script's generators to generators=[...], or seed them from run.step"
_NONDETERMINISTIC = (
    "seed every generator and every shuffle before the model is built (prepare() of the run's module), and set "
    "deterministic = true"
)
_UNKNOWN = (
    "look for what a step reads and neither the model, the optimizer nor run.state holds: attributes, globals, "
    "containers of the script's own classes; keep it in run.state"
)


def explain(
    differences: Sequence[Difference], named: Sequence[Named], *, repeats: bool, goes_back: bool
) -> Explanation:
    """What two runs that differ differ by. `repeats`: two undisturbed runs are the same bits; `goes_back`: an attempt
    began in an earlier epoch than the undisturbed run was in."""
    names = {difference.name for difference in differences}
    if not repeats:
        return Explanation(
            Likely.NOT_DETERMINISTIC,
            "two undisturbed runs differ from each other, so no restart can be blamed",
            _remedies(named) or _NONDETERMINISTIC,
        )
    if NUMBER_OF_STEPS in names or goes_back or EPOCH in names:
        return Explanation(Likely.LOOP_BEGAN_ANEW, "a loop of the script began anew after a restart", _LOOP)
    if named:
        blamed = ", ".join(each.name + (" (named in leave_out)" if each.left_out else "") for each in named)
        return Explanation(Likely.NOT_KEPT, f"no checkpoint keeps {blamed}", _remedies(named))
    if any(difference.name.startswith(_OF_DATA) for difference in differences):
        return Explanation(Likely.DATA, "a restart trained on other data", _DATA)
    if any(difference.name.startswith(RANDOM) for difference in differences):
        return Explanation(Likely.RANDOMNESS, "a restart drew other random numbers", _RANDOM)
    return Explanation(Likely.UNKNOWN, "the worker's checks named nothing that would explain it", _UNKNOWN)


def _remedies(named: Sequence[Named]) -> str:
    return "; ".join(dict.fromkeys(each.remedy for each in named))
