"""What the watch says of the values that change, with one remedy for all of a kind."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worker.checks.findings import Finding
from worker.checks.watch.kept.kept_values import short_name
from worker.checks.watch.named_paths import of_any_entry

_MOST_SHOWN = 20  # in one message; of the same attribute of objects in a list, one

_REMEDIES = {
    "count": (
        "the loop counts its steps with {it}, and a restart would count from the first one again: behind the with of "
        'the run write {line}, or keep {it} in run.state["{name}"], or give the name to leave_out= if it may begin anew'
    ),
    "untaken": (
        "the loop carries {it} from step to step, and puts {it} into run.state, but nothing takes {it} from there: "
        'behind the with of the run write {name} = run.state["{name}"], or whatever {it} has there as its name, with '
        "a first value in state=, or use the entry of run.state in place of the name"
    ),
    "once": (
        "the first pass of the loop sets {it}, now to something else than before the restart: keep {one} in run.state, "
        "or make {it} from what each start has, before the loop, or give the name to leave_out= if it may differ"
    ),
    "head": (
        "the head of the epoch makes {it} from what training changes, so in the middle of the epoch it came out "
        'otherwise than at its begin: keep {one} in run.state, as in run.state["{name}"] = ..., and read {it} from '
        "there behind the head, as what a restart finds in the checkpoint comes before what the head does again; or "
        "give the name to leave_out= if it may differ"
    ),
    "begun": (
        "what stands between the with of the run and its loops makes {it}, which each start does from what it has "
        "restored, now otherwise than the start before: make {it} before the with, or keep {one} in run.state, and "
        "make it under if run.step == 0:, or give the name to leave_out= if it may differ"
    ),
    "iterator": (
        "no checkpoint has the position of {it}: read the data through run.batches, or indices through run.range "
        "or run.order, compute what a generator of the script's gives, such as a rate, from run.step, or give the "
        "name to leave_out= if it may begin anew"
    ),
    "file": (
        "each step reads {it} further, and a restart would read from where the script begins: go through the data with "
        'run.batches, or keep the position, as in run.state["{name}"] = {path}.tell(), and seek it behind the with, '
        "or give the name to leave_out= if it may begin anew"
    ),
    "database": (
        "no checkpoint has what is in {it}, a database in memory, and a restart would begin with an empty one: keep "
        'what training reads of it in run.state, as in run.state["{name}"] = list({path}.iterdump()), and fill it from '
        "that behind the with, or give the name to leave_out= if it may begin anew"
    ),
    "log": (
        "no checkpoint has the length of {it}, and a restart would begin another file: put {it} into run.state, as in "
        'state={{"{name}": {path}}}'
    ),
    "drawn": (
        "the epoch draws {it} before its batches, and after a restart in the middle of the epoch it would draw "
        "anew: loop over run.order({path}), which keeps the order, or keep {one} in run.state, or give the name "
        "to leave_out= if it may differ"
    ),
    "data": (
        "an epoch replaces {it} for those that follow, and a restart in these would begin with the first: choose "
        "{it} from the epoch's number in each epoch, as in {path} = later if epoch >= 3 else first, or give the "
        "name to leave_out= if that does not matter"
    ),
    "tensors": (
        "the loop carries {it} from step to step, and run.state takes no sparse or ragged tensors and no TensorArray: "
        'keep the tensors of each in run.state["{name}"], as in [x.indices, x.values, x.dense_shape], '
        "[x.values, x.row_splits] or x.stack(), and make it of these in each step, or give its name to leave_out= if "
        "it may begin anew"
    ),
    "passes": (
        "the loop reads {it} without run.batches, each time in another order, and a restart would begin with the first "
        "order again: read the data through run.batches, with a step for each batch, or make the order from the "
        "epoch's number, as in data.shuffle(n, seed=epoch, reshuffle_each_iteration=False), or give the name to "
        "leave_out= if the order is no matter"
    ),
    "object": (
        "a step assigns another object, and a restart would begin with the first again: choose {it} in each pass "
        "from the epoch's or the step's number, or from what is in run.state, as in "
        '{path} = later if run.state["is_later"] else first, or give the name to leave_out= if that is no matter'
    ),
    "argument": (
        "a step changes the default of a parameter ({name} of {owner}), and a restart would begin with the first: keep "
        "{one} in run.state, and give {it} to the function in each call, as in "
        '{owner}({name}=run.state["{name}"]), or give the name to leave_out= if that may begin anew'
    ),
    "setting": (
        "no checkpoint holds {it}, and a restart would begin with what the script sets first: set {it} at the "
        "head of each epoch from its number, as in if epoch >= 3, or from what is in run.state, or give the name "
        "to leave_out= if that is no matter"
    ),
    "cache": (
        "a restart would begin with an empty cache, and draw other random numbers for {it}, or compute other results "
        "from what training has changed since: draw from a generator that the function makes from its arguments, as in "
        "numpy.random.default_rng(number), or keep the results in run.state, or give the name to leave_out= if they "
        "may differ"
    ),
    "parts": (
        "a restart makes {it} as the script does first, without the parts that training has added: make {it} "
        "whole before the run, and choose what is used from the epoch's number, or give the name to leave_out= if "
        "that is no matter"
    ),
    "ahead": (
        "what makes the data changes {it} while they are read, ahead of the steps, so no value belongs to a step, "
        "and a restart would begin with the first: make {it} from the index of the example or the epoch's number, "
        "or set {it} where each pass begins, or give the name to leave_out= if it changes no data"
    ),
    "stream": (
        "the dataset's state_dict lacks {it}, and after a restart in the middle of a pass it would begin anew: keep "
        "{it} in an attribute, as in self.{name}, that state_dict gives and load_state_dict sets, or give the name to "
        "leave_out= if it may begin anew"
    ),
    "future": (
        "another thread makes the result that {it} stands for ahead of the step that trains with it, and a restart "
        "would make another one: read ahead in the data, before run.batches, as in dataset.prefetch(2), or make it "
        "from the step's number alone, or give the name to leave_out= if it may differ"
    ),
    "traced": (
        "TensorFlow traced the function with the value of that time, which it keeps, and a restart traces it with the "
        "present one: give {it} to the function as a tensor, as in step(batch, tf.constant(value)), or read {it} from "
        "a tf.Variable in the checkpoint, or make the function anew where that changes, as in step = "
        "tf.function(body), or give the name to leave_out= if it may differ"
    ),
    "queue": (
        "no checkpoint has what waits in {it}, and a restart would leave out what another thread has read ahead: "
        "read ahead in the data, before run.batches, as in dataset.prefetch(2), or make each entry from the "
        "step's number; of one that only the loop fills, keep list({path}.queue) in run.state, or give the name "
        "to leave_out= if it may begin anew"
    ),
}
"""By kind: `it`, `one`: what to call the values, of which there may be several; `name`, `path`, `owner`, `line`: the
first one's, what to call it in the state, how the script comes to it and to what has it, and which line it needs."""


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """What is to be named: its path, its name with the line that assigns it, and what it is."""

    path: str
    text: str
    is_library: bool
    kind: str
    line: str = ""
    """Which the script needs, if there is one for this value alone."""


def findings_of(named: Iterable[CarriedValue]) -> list[Finding]:
    """The findings, with one remedy for all of a kind."""
    groups: dict[tuple[bool, str, str], list[CarriedValue]] = {}
    for value in named:
        kind = value.kind if value.kind in _REMEDIES else "attribute" if "." in value.path else "value"
        groups.setdefault((value.is_library, kind, value.line), []).append(value)
    return [Finding(text, _remedy(group)) for group in groups.values() for text in _texts(group)]


def _texts(group: Sequence[CarriedValue]) -> list[str]:
    """What is shown of each value, up to a number of them; of the same attribute of many objects in a list, one."""
    alike: dict[str, list[str]] = {}
    for value in group:
        alike.setdefault(of_any_entry(value.path) or value.path, []).append(value.text)
    shown = [texts[0] + (f" and {len(texts) - 1} more like it" if len(texts) > 1 else "") for texts in alike.values()]
    left_out = len(shown) - _MOST_SHOWN
    return shown if left_out <= 0 else [*shown[: _MOST_SHOWN - 1], f"{shown[_MOST_SHOWN - 1]} and {left_out} others"]


def _remedy(group: Sequence[CarriedValue]) -> str:
    first, it, one = group[0], *(("it", "it") if len(group) == 1 else ("them", "each"))
    name = short_name(first.path)
    if first.is_library:
        return (
            f"the loop of a library carries {it} from step to step, and no checkpoint has {one}: write "
            f'leave_out=["{name}"] if that may begin anew, or write the loop in the script'
        )
    if first.kind in _REMEDIES:
        owner = first.path.rpartition(".")[0]
        return _REMEDIES[first.kind].format(it=it, one=one, name=name, path=first.path, owner=owner, line=first.line)
    kept = f'keep {one} in run.state{"" if len(group) == 1 else ", as in run.state"}["{name}"]'
    if "." in first.path:
        kept += ", or put the object there, with state_dict and load_state_dict"
    return f"the loop carries {it} from step to step: {kept}, or give its name to leave_out= if it may begin anew"
