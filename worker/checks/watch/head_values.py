"""What the head of an epoch, which stands before its batches, makes for them: `anchor = model.get_weights()`.

A restart in the middle of the epoch does the head again, with the state of its checkpoint. What the head takes from
that comes out otherwise than at the epoch's begin; the code does not tell, as `0.1 * 0.9**epoch` comes out the same. So
each checkpoint has digests of what the head of its epoch has made, and a restart within the epoch compares.
"""

from collections.abc import Callable, Mapping, Sequence

from worker.checks.watch.code.loop_frames import (
    LoopFrame,
    counts_given_to,
    is_attribute_count_before_loops,
    is_count_before_loops,
    is_held_outside,
    runs_over_count,
)
from worker.checks.watch.kept.kept_values import Reached

MOST_VALUES = 200

Values = Mapping[str, Reached]


class HeadValues:
    """Those of the epoch that runs."""

    def __init__(self) -> None:
        self.digests: dict[str, int] = {}
        """By name, what the head has made and no step has changed since."""
        self._left_to_steps: tuple[int, dict[str, int]] = 0, {}  # of which epoch; by name, what it was then

    def see(
        self, values: Values, frames: Sequence[LoopFrame], is_kept: Callable[[Reached], bool], *, is_first: bool
    ) -> None:
        """What there is at a step boundary; `is_first`: the epoch's first one that is looked at."""
        if not is_first:
            self.digests = {
                path: digest
                for path, digest in self.digests.items()
                if path in values and values[path].digest == digest
            }
            return
        self.digests = {}
        names, by_loop = _made_in_heads(frames)
        attributes = frozenset[str]().union(*by_loop[1:])  # the innermost loop sets its own in each step
        for path, reached in values.items():
            is_made = path in names or reached.binding in attributes
            if is_made and reached.is_comparable and not is_kept(reached) and len(self.digests) < MOST_VALUES:
                self.digests[path] = reached.digest

    def made_otherwise(
        self, recorded: Mapping[str, int], values: Values, frames: Sequence[LoopFrame], epoch: int
    ) -> list[Reached]:
        """What the head has made now, in `values`, that is not what was recorded of the same epoch. Not what it leaves
        None: the record is of the epoch's first step, so the next step may make it."""
        names, by_loop = _made_in_heads(frames)
        attributes = frozenset[str]().union(*by_loop)
        others = [
            now
            for path, digest in recorded.items()
            if (now := values.get(path)) is not None
            and now.digest != digest
            and (path in names or now.binding in attributes)
            and not now.is_text_or_function
        ]
        self._left_to_steps = epoch, {now.path: recorded[now.path] for now in others if _is_none(now)}
        return [now for now in others if not _is_none(now)]

    def filled_otherwise(self, values: Values, epoch: int) -> list[Reached]:
        """What the first step has made, or not, of what the head left None."""
        (of_epoch, recorded), self._left_to_steps = self._left_to_steps, (0, {})
        filled = [now for path in recorded if epoch == of_epoch and (now := values.get(path)) is not None]
        return [now for now in filled if now.digest != recorded[now.path]]


def made_in_run_head(
    values: Values, frames: Sequence[LoopFrame], trains: Callable[[LoopFrame, str, bool], bool]
) -> tuple[dict[str, Reached], frozenset[str]]:
    """The numbers and arrays that the loops read and what stands between the `with` of the run and them has made. What
    a function around the loops is called with comes from there, too, unless it was there before. Not None, which often
    stands for what only a later start finds. What is made from the run's own count is taken if the loops train with it:
    `trains` says so of a name in a frame, or of an attribute. Also gives the names of the latter."""
    names: set[str] = set()
    attributes: set[str] = set()
    counts: set[str] = set()
    is_numbered = any(map(runs_over_count, frames))
    for number, frame in enumerate(frames):
        made = set(frame.read & frame.made_before_loops)
        of_count = {name for name in made if is_count_before_loops(name, frame)}
        is_called_once = number + 1 < len(frames) and not any(outer.made_in_run for outer in frames[number + 1 :])
        if is_called_once:
            of_count |= frame.read & counts_given_to(frame, frames[number + 1])
            made |= _given_to(frame, frames)
        counts |= {name for name in of_count if not is_numbered and trains(frame, name, False)}
        names |= made - of_count
        for name in frame.attributes_set_before_loops:
            if is_attribute_count_before_loops(name, frame):
                is_trained_with = not is_numbered and any(trains(around, name, True) for around in frames)
                counts |= {name} if is_trained_with else set()
            else:
                attributes.add(name)
    return {
        path: now
        for path, now in values.items()
        if now.is_comparable
        and not _is_none(now)
        and (path in names | counts or (now.owner is not None and now.binding in attributes | counts))
    }, frozenset(counts)


def _is_none(reached: Reached) -> bool:
    return reached.kind == "value" and reached.value is None


def _given_to(frame: LoopFrame, frames: Sequence[LoopFrame]) -> set[str]:
    given = frame.read & frame.made_by_call & frame.frame.f_locals.keys()
    return {name for name in given if not is_held_outside(frames, frame.value_of(name))}


def _made_in_heads(frames: Sequence[LoopFrame]) -> tuple[set[str], list[frozenset[str]]]:
    """The names that stay what a head made them until the epoch ends, and by loop, the innermost first, the attributes
    that each pass sets. What a function around the steps is called with comes from the head, too, unless it was there
    before the loop."""
    names: set[str] = set()
    step = next((frame for frame in frames if frame.attributes_set_in_heads), None)  # it has the innermost loop
    for number, frame in enumerate(frames):
        made = frame.made_in_run - (frame.made_in_each_pass if frame is step else frozenset())
        names |= frame.read & made - frame.carried.keys()
        if any(outer.made_in_run for outer in frames[number + 1 :]):
            names |= _given_to(frame, frames)
    return names, [heads for frame in frames for heads in frame.attributes_set_in_heads]
