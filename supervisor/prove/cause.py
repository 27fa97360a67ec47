"""Says what a difference probably comes from, and what to write instead. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.protocol.proof import Difference, Likely
from supervisor.protocol.proof_plan import Named
from supervisor.prove.comparison.state import RANDOM
from supervisor.prove.comparison.steps import BATCH, EPOCH, EXAMPLES, NUMBER_OF_STEPS, RESTART
from supervisor.prove.comparison.values import LostValue

_RANDOM_STATES = (RANDOM, "PyTorch's random state", "random state", "generator ")
_OF_DATA = (BATCH, EXAMPLES, "run.order", "position in the data", "passes over the data", "description of the data")


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
_RANDOM = (
    "draw what an epoch needs from a generator that is seeded with the epoch, as in np.random.default_rng([seed, "
    "epoch]), or keep it in run.state; give the script's own generators to generators=[...]"
)
_NONDETERMINISTIC = (
    "seed every generator and every shuffle before the model is built (prepare() of the run's module), and set "
    "deterministic = true; look for generators without a seed (numpy.random.default_rng(), secrets, uuid), decisions "
    "by a clock, threads, and files or databases that the run before has left"
)
_UNSEEN = (
    "look for what it is made from and no check sees: random numbers of other processes or threads, files and "
    "databases that the script writes, state inside of a library, two names in run.state for one object"
)
_FAILED = "mend what the error says; the script has to come to the same loop again from a checkpoint"
_UNKNOWN = (
    "look for what a step reads and neither the model, the optimizer nor run.state holds: attributes, globals, "
    "containers of the script's own classes; keep it in run.state"
)


def explain(
    differences: Sequence[Difference],
    named: Sequence[Named],
    lost: Sequence[LostValue],
    *,
    repeats: bool,
    goes_back: bool,
) -> Explanation:
    """What two runs that differ differ by. `named`: by the worker's checks; `lost`: values that restarts did not bring
    back. `repeats`: two undisturbed runs are the same bits; `goes_back`: an attempt began in an earlier epoch than the
    undisturbed run was in."""
    names = {difference.name for difference in differences}
    if not repeats:
        return Explanation(
            Likely.NOT_DETERMINISTIC,
            "two undisturbed runs differ from each other, so no restart can be blamed",
            _NONDETERMINISTIC,
        )
    if RESTART in names:
        failed = next(difference for difference in differences if difference.name == RESTART)
        return Explanation(Likely.UNKNOWN, f"the job could not go on after a kill: it {failed.killed}", _FAILED)
    if NUMBER_OF_STEPS in names or goes_back or EPOCH in names:
        first = next(
            difference for difference in differences if difference.name in (NUMBER_OF_STEPS, EPOCH) or goes_back
        )
        shown = f"{first.name} is {first.undisturbed} undisturbed and {first.killed} killed"
        return Explanation(Likely.LOOP_BEGAN_ANEW, f"a loop of the script began anew after a restart: {shown}", _LOOP)
    is_certain = not all(value.is_consequence for value in lost)
    if lost and (is_certain or not named):
        if not is_certain:
            made = ", ".join(f"{value.name} ({value.undisturbed} undisturbed, {value.killed} killed)" for value in lost)
            reason = f"the step after a restart from step {lost[0].step} made another {made}"
            return Explanation(Likely.UNKNOWN, reason, _UNSEEN)
        likely = Likely.LOOP_BEGAN_ANEW if all(value.is_counter for value in lost) else Likely.NOT_KEPT
        texts = (
            f"{lost_value.name} ({lost_value.undisturbed} undisturbed, {lost_value.killed} after the restart)"
            for lost_value in lost
        )
        return Explanation(
            likely, f"a restart from step {lost[0].step} did not bring back {', '.join(texts)}", _keep(lost)
        )
    if named:
        blamed = ", ".join(value.name + (" (named in leave_out)" if value.left_out else "") for value in named)
        remedies = "; ".join(dict.fromkeys(value.remedy for value in named))
        return Explanation(Likely.NOT_KEPT, f"no checkpoint keeps {blamed}", remedies)
    if any(difference.name.startswith(_OF_DATA) for difference in differences):
        return Explanation(Likely.DATA, "a restart trained on other data", _DATA)
    if any(difference.name.startswith(_RANDOM_STATES) for difference in differences):
        return Explanation(Likely.RANDOMNESS, "a restart drew other random numbers", _RANDOM)
    return Explanation(Likely.UNKNOWN, "the worker's checks named nothing that would explain it", _UNKNOWN)


def _keep(lost: Sequence[LostValue]) -> str:
    """What to write so that lost values come back."""
    if all(value.is_counter for value in lost):
        return (
            f"count from where the run is: `for {lost[0].name}, batch in enumerate(run.batches(data), run.batch):`, or "
            f"use run.step in its place"
        )
    if all(value.is_gradient for value in lost):
        return (
            "call run.step_done once for each optimizer step, when the gradients are used up; a step that takes "
            "several batches takes all of them again after a restart"
        )
    if all(value.is_queue for value in lost):
        return (
            f"read ahead in the data, before run.batches, as in dataset.prefetch(2), or make each entry of "
            f"{lost[0].name} from the step's number; of a queue that the loop itself fills, keep the content, as in "
            f'run.state["{lost[0].short}"] = list({lost[0].name}.queue)'
        )
    names = list(dict.fromkeys(value.short for value in lost if not value.is_gradient and not value.is_queue))
    return (
        f'keep {"it" if len(names) == 1 else "them"} in run.state, as in run.state["{names[0]}"], or in what the run '
        f"saves (an object with state_dict, a variable or buffer of the model); what the head of an epoch makes can "
        f"also be made from the epoch's number"
    )
