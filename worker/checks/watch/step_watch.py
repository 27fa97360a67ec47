"""Watches what changes while a job trains: a value that changed from one step to the next, that the next step can read,
and that no checkpoint holds, would not come back after a restart.

The invariant: at a step boundary everything that training can still read is in the checkpoint, or is what the script
makes again when it starts, or is assigned before it is read. So the values that the loop can reach are compared between
step boundaries, whatever holds them (`reached_values`), and of those that differ all are named but

* what checkpoints hold (`Kept`, which each kind of run fills);
* local names that the loop's code assigns before it reads them (`bytecode`), and attributes of which the
  watched steps showed the same (`access_order`);
* the time: numbers that a clock showed since the last look.

Names of the loop's own functions need no watching: what they carry is in their code, also if it changes for the first
time after a week. The others are compared at the times of `look_times`.
"""

import contextlib
import time
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from worker.checks import loop_source
from worker.checks.findings import Finding
from worker.checks.loop_source import Entered
from worker.checks.watch import digests
from worker.checks.watch.carried_names import CarriedNames
from worker.checks.watch.carried_values import CarriedValue, findings_of
from worker.checks.watch.clocks import PROCESS_BEGAN_AT
from worker.checks.watch.code.access_order import AccessOrder, unwatched_code
from worker.checks.watch.code.attribute_readers import AttributeReaders
from worker.checks.watch.code.count_uses import CountUses
from worker.checks.watch.code.instructions import stored_names
from worker.checks.watch.code.loop_frames import LoopFrame, is_count_before_loops, is_made_from_run, loop_frames
from worker.checks.watch.code.loop_heads import read_behind
from worker.checks.watch.code.parts_in_state import parts_put_into_state
from worker.checks.watch.code.state_uses import names_put_into_state
from worker.checks.watch.data_watch import DataWatch
from worker.checks.watch.head_values import HeadValues, made_in_run_head
from worker.checks.watch.kept.given_states import keep_state_of
from worker.checks.watch.kept.kept_values import Kept, Reached, short_name
from worker.checks.watch.kept.written_values import keep_deeply
from worker.checks.watch.look import Look, place_in
from worker.checks.watch.look_times import FIRST_LOOKS, LOOK_S, LookTimes
from worker.checks.watch.named_paths import NamedPaths, of_any_entry
from worker.checks.watch.reached_values import Search
from worker.checks.watch.replaced_objects import ReplacedObjects
from worker.checks.watch.set_once import SetOnce
from worker.checks.watch.standard_objects import environment_of
from worker.checks.watch.traced_constants import TracedConstants
from worker.state.run_state import RunState


class StepWatch:
    """Watches one run from its first step on. `look` is called at each step boundary."""

    def __init__(
        self,
        keep: Callable[[Kept], None],
        exempt: Iterable[Any],
        state: RunState,
        entered: Entered | None = None,
        roots: Callable[[], Sequence[tuple[str, Any]]] = lambda: (),
        recorded: Mapping[str, int] | None = None,
        of_data: Callable[[], Sequence[tuple[str, Any]]] = lambda: (),
    ) -> None:
        """`keep`: adds what the run's checkpoints hold now. `exempt`: objects that may begin anew, and names. `state`:
        `run.state`. `roots`: where the search begins, besides the loop's names. `recorded`: as for SetOnce.
        `of_data`: the script's functions and objects that make the data ahead of the steps."""
        self.is_cut_short = False
        """Whether a look had to end before everything was seen."""
        self.unreadable: dict[str, None] = {}
        """The names of arrays that can't be read here, so that nobody knows whether they change."""
        self._keep = keep
        self._state = state
        self._entered = entered
        self._roots = roots
        self._once = SetOnce(recorded or {})
        self._head_values = HeadValues()
        self._count_uses = CountUses()
        self._data_watch = DataWatch(of_data)
        self._traced_constants = TracedConstants(state.held)
        self._named = NamedPaths(exempt)
        self._names = CarriedNames(state, self._named)
        self._before: dict[str, Reached] = {}
        self._of_classes_before: dict[str, Reached] = {}
        self._there_before: dict[int, weakref.ref[Any] | None] = {}
        self._objects = ReplacedObjects()
        # by a pass or a call, at the last look; alive, so that no other has its id now
        self._lists_made: list[Any] = []
        self._arrays_made: dict[str, weakref.ref[Any]] = {}  # the same; too large to be kept alive
        self._epoch: int | None = None  # of the last look
        self._codes: set[types.CodeType] = set()
        self._order: AccessOrder | None = None
        self._times = LookTimes()
        self._clocks_since, self._looked_at = PROCESS_BEGAN_AT, time.monotonic()

    @property
    def has_settled(self) -> bool:
        """Whether most of what changes has been seen to change."""
        return self._times.has_settled

    def begin(self, frame: types.FrameType | None) -> None:
        """The first pass of the loop in `frame` begins."""
        kept = self._kept_now()
        search = Search(kept, time.thread_time() + LOOK_S)
        search.run(self._roots_of(loop_frames(frame, self._entered), kept))
        self._once.begin(search.values, search.objects_seen)

    def head_otherwise(
        self, frame: types.FrameType | None, recorded: Mapping[str, int], epoch: int
    ) -> tuple[list[Finding], list[Finding]]:
        """What the head of an epoch, done again, has made otherwise than at the epoch's begin: what matters to the
        batches that are left, if there are any, and what also the code behind them reads."""
        frames, kept = loop_frames(frame, self._entered), self._kept_now()
        until = time.thread_time() + LOOK_S
        search = Search(kept, until).run(self._roots_of(frames, kept))
        look = self._look_at(search, kept, frames, until, epoch, is_other_epoch=True)
        made = self._head_values.made_otherwise(recorded, search.values, frames, epoch)
        others = [reached for reached in made if not look.is_kept_or_time(reached)]
        behind = frozenset[str]().union(*(read_behind(loop_frame.frame) for loop_frame in frames))
        values_of = {reached.path: CarriedValue(reached.path, reached.path, False, "head") for reached in others}
        read = [values_of[reached.path] for reached in others if short_name(reached.path) in behind]
        return findings_of(value for value in values_of.values() if value not in read), findings_of(read)

    def made_in_head(self, epoch: int) -> Mapping[str, int]:
        """Digests of what the head of an epoch has made for its batches, by name; none before a look in that epoch."""
        return self._head_values.digests if epoch == self._epoch else {}

    @property
    def set_once(self) -> dict[str, int] | None:
        """What the first pass has set and no later one has changed; None before the first look."""
        return self._once.digests if self._times.looks else None

    @property
    def knows_set_once(self) -> bool:
        """Whether it has seen enough later passes for that."""
        return self._times.looks >= FIRST_LOOKS

    def look(self, step: int, epoch: int, frame: types.FrameType | None, *, head_draws: bool = False) -> list[Finding]:
        """What changed since the last look and would not come back. `frame`: that of the caller of `step_done`.
        `head_draws`: whether the code before the first epoch's batches drew random numbers."""
        if self._order is not None:
            self._order.end()
        if not self._times.is_due(step, epoch):
            return []
        started = time.thread_time()
        frames, kept = loop_frames(frame, self._entered), self._kept_now()
        is_first = self._times.looks == 0
        findings = self._names.carried(frames, kept, is_first=is_first)
        if is_first and head_draws:
            findings += self._names.drawn(frames, kept)
        findings += self._names.rebound(frames)
        until = time.thread_time() + LOOK_S  # reading the script's files may have taken as long
        search = Search(kept, until).run(self._roots_of(frames, kept))
        look = self._look_at(search, kept, frames, until, epoch)
        for rule in (
            self._changed,
            self._replaced,
            self._set_otherwise,
            self._left_to_steps,
            self._changed_ahead,
            self._frozen,
        ):
            findings += findings_of(rule(look))
        self.is_cut_short = self.is_cut_short or search.ended
        self._note_unreadable(look)
        self._before, self._codes, self._epoch = search.values, self._codes | search.codes, epoch
        self._of_classes_before, self._there_before = search.of_classes, search.there
        self._note_made(look)
        # what a clock showed before the last look may have moved to another name since
        self._clocks_since, self._looked_at = self._looked_at, time.monotonic()
        self._times.add(time.thread_time() - started)
        if self._times.watches_step:
            self._watch_one_step(frames)
        return findings

    def begin_step(self) -> None:
        """A step has ended, with what stands behind it, and the next one begins."""
        if self._order is not None:
            self._order.begin_step()

    def close(self) -> None:
        """Ends it, wherever it is."""
        self._before = {}
        self._lists_made, self._arrays_made = [], {}
        self._names.close()
        if self._order is not None:
            self._order.end()

    def _watch_one_step(self, frames: Sequence[LoopFrame]) -> None:
        names: set[str] = set()
        for code in (*self._codes, *(frame.frame.f_code for frame in frames)):
            names |= stored_names(code).keys()
        if self._order is None:
            self._order = AccessOrder(unwatched_code())
        names |= {name for reached in self._before.values() if (name := reached.binding)}
        self._order.begin(names, [frame.frame for frame in frames])

    def _kept_now(self) -> Kept:
        kept = Kept()
        for value in self._state.held().values():
            keep_deeply(kept, value)
            keep_state_of(kept, value)
        kept.identities |= {id(item) for item in self._named.exempt}
        for item in self._named.exempt:
            keep_deeply(kept, item)
        self._keep(kept)
        return kept

    def _roots_of(self, frames: Sequence[LoopFrame], kept: Kept) -> list[tuple[str, Any]]:
        """Where the search begins. `kept`: gets the parts of objects that the loop puts into `run.state`."""
        roots = list(self._roots())
        variables = environment_of(frame.frame.f_code for frame in frames)
        roots += [(f"os.environ[{name!r}]", text) for name, text in variables.items()]
        for frame in frames:
            function = loop_source.function_of(frame.frame.f_code)
            into_state = names_put_into_state(function, frame.values).keys()
            parts = parts_put_into_state(function, frame.values) if into_state else {}
            kept.attributes |= {(id(held), name) for put in parts.values() for held, name in put}
            for name in sorted(frame.read - into_state | frame.read & parts.keys()):
                is_count = is_made_from_run(name, frame) and not is_count_before_loops(name, frame)
                if name in self._named or "[" in name or is_count:
                    continue
                with contextlib.suppress(LookupError):
                    roots.append((name, frame.value_of(name)))
        return roots

    # --- the rules: each names what it finds, once ---

    def _changed(self, look: Look) -> Iterator[CarriedValue]:
        """What differs from the last look and is lost."""
        if look.is_first:
            return
        of_entries = self._named.of_entries()
        compared = [(self._before, look.search.values), (self._of_classes_before, look.search.of_classes)]
        for before, now in (
            (before, now) for known, found in compared for before, now in self._with_before(known, found)
        ):
            if before is None or before.digest == now.digest or not look.is_lost(now, before):
                continue
            if look.is_unread(now) or look.is_filled_first(now):
                continue
            if now.kind == "file" and look.seeks:
                continue  # a step reads where it wants to
            if of_any_entry(now.path) in of_entries:
                continue  # that of another object in the list was named
            root = now.path.partition(".")[0].partition("[")[0]
            carrying = next((loop_frame for loop_frame in look.frames if root in loop_frame.carried), None)
            name = now.path if carrying is None else root
            if name in self._named:
                continue
            place = look.place_of(now) if carrying is None else carrying.place(carrying.carried[root])
            is_argument = name in look.search.arguments and now.kind in ("value", "array", "container", "mapping")
            yield self._name(name, place or "changed by a step", "argument" if is_argument else now.kind)

    def _with_before(
        self, known: Mapping[str, Reached], found: Mapping[str, Reached]
    ) -> Iterator[tuple[Reached | None, Reached]]:
        """Each value, with what it was. A name may stand for several objects in turn, as `self` does where one method
        trains each of a list: an attribute of one that was there before is compared with its own."""
        of_owners = {(was.owner, was.binding): was for was in known.values()}
        for path, now in found.items():
            before = known.get(path)
            is_other = now.owner is not None and (before is None or before.owner != now.owner)
            yield of_owners.get((now.owner, now.binding)) if is_other and self._was_there(now.owner) else before, now

    def _was_there(self, identity: int | None) -> bool:
        """Whether the object of this id was there at the last look."""
        if identity not in self._there_before:
            return False
        before = self._there_before[identity]
        return before is None or before() is not None

    def _replaced(self, look: Look) -> Iterator[CarriedValue]:
        """The places that hold another object than at the last look."""
        for path, placed in self._objects.changed(look.search.objects, look.kept.identities, self._was_there):
            name = placed.container or path
            now, then = look.search.values.get(name), self._before.get(name)
            if now is not None and then is not None and now.owner != then.owner and self._was_there(now.owner):
                continue  # the list of another object
            if name in self._named or not look.is_place_lost(path, placed, look.search.values, self._before):
                continue
            place = look.place_of(Reached(name, "object", 0, 0, placed.owner, placed.binding))
            yield self._name(name, place or "changed by a step", "object")

    def _set_otherwise(self, look: Look) -> Iterator[CarriedValue]:
        """What the first pass has set to something else than in the processes before."""
        values, found = look.search.values, list[tuple[str, Reached]]()
        counts = frozenset[str]()
        if look.is_first:
            found += [("cache", now) for now in self._once.drawn(values) if look.is_lost(now, None)]
            begun, counts = made_in_run_head(
                values,
                look.frames,
                lambda frame, name, is_attribute: self._count_uses.trains(
                    name, frame, look.kept, is_attribute=is_attribute
                ),
            )
            own = {path: now for path, now in begun.items() if not look.is_kept_or_time(now)}
            self._once.first(values, look.is_lost, own)
        else:
            self._once.later(values, look.is_lost)
        if self._times.looks in (0, FIRST_LOOKS - 1):
            for now in self._once.differing(values, look.is_lost):
                kind = "begun" if now.path in self._once.begun else "once"
                is_due = (kind == "begun") == look.is_first
                is_count = (now.binding or short_name(now.path)) in counts
                if is_due and (is_count or not (look.is_measured(now) or look.is_filled_first(now))):
                    found.append((kind, now))
        for kind, now in found:
            otherwise = "before the loops" if kind == "begun" else "set in the first pass"
            yield self._name(now.path, look.place_of(now) or otherwise, kind)

    def _left_to_steps(self, look: Look) -> Iterator[CarriedValue]:
        """What the head of the epoch left to the first step, which has made it otherwise than before the restart."""
        if look.is_first:
            for now in self._head_values.filled_otherwise(look.search.values, look.epoch):
                if not look.is_kept_or_time(now):
                    yield CarriedValue(now.path, now.path, False, "head")
        self._head_values.see(
            look.search.values,
            look.frames,
            lambda reached: reached.path in self._named or look.is_kept_or_time(reached),
            is_first=look.is_other_epoch,
        )

    def _changed_ahead(self, look: Look) -> Iterator[CarriedValue]:
        """What the functions of the data have changed since the last look."""
        for reached in self._data_watch.changed(look.search, look.kept, look.until):
            is_named = self._named.has_around(reached.path) or self._named.is_exempt(reached.path)
            if is_named or look.is_time(reached.value) or look.is_set_in_heads(reached):
                continue
            self._codes |= self._data_watch.codes
            place = place_in(self._codes, reached) or "changed while the data are read"
            is_of_stream = reached.path.partition(".")[0].endswith("()")  # of a dataset that gives its own state
            yield self._name(reached.path, place, "stream" if is_of_stream else "ahead")

    def _frozen(self, look: Look) -> Iterator[CarriedValue]:
        """What functions have as constants since they were traced, and has changed."""
        for frozen in self._traced_constants.changed(look.search, look.kept, look.until):
            if not (self._named.has_around(frozen.path) or self._named.is_exempt(frozen.path)):
                yield self._name(frozen.path, f"a constant in {frozen.function} since that was traced", "traced")

    def _name(self, path: str, place: str, kind: str) -> CarriedValue:
        self._named.add(path)
        return CarriedValue(path, f"{path} ({place})", False, kind)

    # --- what the rules look at ---

    def _look_at(
        self,
        search: Search,
        kept: Kept,
        frames: Sequence[LoopFrame],
        until: float,
        epoch: int,
        *,
        is_other_epoch: bool | None = None,
    ) -> Look:
        """`is_other_epoch`: None: by its number."""
        codes: dict[types.CodeType, int | None] = dict.fromkeys(self._codes | search.codes)
        codes |= {frame.frame.f_code: frame.frame.f_lasti for frame in frames}
        return Look(
            search, kept, frames, until, epoch, self._named, self._order,
            AttributeReaders(codes, search.kinds, is_all=not (search.ended or self.is_cut_short)),
            codes=(*self._codes, *(frame.frame.f_code for frame in frames)),
            is_first=self._times.looks == 0,
            is_other_epoch=epoch != self._epoch if is_other_epoch is None else is_other_epoch,
            clocks_since=self._clocks_since,
            gone={name for name, array in self._arrays_made.items() if array() is None},
        )  # fmt: skip

    def _note_made(self, look: Look) -> None:
        """Notes what passes of the loops and calls make anew."""
        self._lists_made, self._arrays_made = [], {}
        for name, value in look.made_anew():
            with contextlib.suppress(RuntimeError, LookupError, TypeError):
                if digests.is_array(value):
                    self._arrays_made[name] = weakref.ref(value)
                elif isinstance(value, digests.CONTAINERS) and _is_small(value):
                    self._lists_made.append(value)

    def _note_unreadable(self, look: Look) -> None:
        made = {name for frame in look.frames for name in frame.made_in_loops - frame.carried.keys()}
        for path, array in look.search.unreadable.items():
            if not (path in made or look.kept.has(array) or self._named.is_exempt(path)):
                self.unreadable[path] = None


def _is_small(container: Any) -> bool:
    """Whether it holds plain values only, and little memory."""
    return len(container) <= digests.ENTRIES and all(
        isinstance(entry, digests.PLAIN) for _, entry in digests.entries_of(container)
    )
