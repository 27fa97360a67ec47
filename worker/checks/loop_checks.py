"""What the script's loop around a run says of a restart: asked when the script reads data and when it makes a step.

Each answer is a text for an error or a list of findings; the run decides what follows. Imports no framework.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from supervisor.protocol.plurals import listed
from worker.checks.behind_step import changes_behind_step, has_code_behind_step
from worker.checks.findings import Finding
from worker.checks.loop_source import Entered, ScriptFrame, names_in_loops, script_frame_of, script_frames
from worker.checks.own_loops import LoopJudge
from worker.checks.pulls import Pulls
from worker.checks.reachability import Root, roots_of_frame
from worker.checks.run_heads import run_head_of
from worker.checks.value_snapshot import snapshot
from worker.checks.watch.code.bytecode import flow_of
from worker.checks.watch.code.loop_frames import is_held_outside, loop_frames, name_made_in_loop
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.step_watch import StepWatch
from worker.process.reporting import describe_error
from worker.state.random_generators import GENERATORS
from worker.state.run_state import RunState

MOST_NAMES = 5  # of arrays, in one message
_PROVE = "whether a kill changes a bit, a proof of the job shows"


class LoopChecks:
    """The checks of the loop around one run."""

    def __init__(
        self,
        run: Any,
        pulls: Pulls,
        exempt: Sequence[Any],
        keep: Callable[[Kept], None],
        state: RunState,
    ) -> None:
        """`run`: what the script calls. `exempt`: objects and names that may begin anew. `keep`: adds what the run's
        checkpoints hold, besides `state`."""
        self.remarks: list[str] = []
        """What the watch has to say besides its findings."""
        self._run = run
        self._pulls = pulls
        self._exempt = exempt
        self._keep = keep
        self._state = state
        self._entered: Entered | None = None
        self._known_sites: set[tuple[CodeType, int] | None] = set()  # where `batches` is called
        self._behind_step: dict[tuple[CodeType, int], bool] = {}  # by the place of the step
        self._watch: StepWatch | None = None  # from the first step on
        self._new_watch: StepWatch | None = None  # in the first pass
        self._has_remarked = False  # of what the watch can't see

    @property
    def was_entered(self) -> bool:
        """Whether the script has entered the run."""
        return self._entered is not None

    @property
    def is_watching(self) -> bool:
        """Whether `changed_values` has anything to compare."""
        return self._watch is not None

    def begin_step(self) -> None:
        """A step has ended, with what stands behind it, and the next one begins."""
        if self._watch is not None:
            self._watch.begin_step()

    def enter(self, frame: FrameType | None) -> None:
        """The script enters the run in `frame`, or in one around it."""
        own = script_frame_of(frame)
        self._entered = None if own is None else Entered(own.f_code, own.f_lineno)

    def close(self) -> None:
        """Ends the watch."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def explain_loop_that_begins_again(self, frame: FrameType | None, *, asks_where: bool) -> str | None:
        """Why a loop around `frame`, where the script begins to read, would not go on after a restart; None if it
        would. `asks_where`: whether the script asks the run how far it is."""
        caller = script_frame_of(frame)
        site = None if caller is None else (caller.f_code, caller.f_lasti)
        frames = script_frames(caller, self._entered)
        if site not in self._known_sites:
            self._known_sites.add(site)
            return self._judge(frames).explain_loop_that_begins_again()
        if frames or asks_where:
            return None
        return (
            "cannot resume a loop that calls run.batches for each epoch: after a restart it begins again; write "
            '"for epoch in run.epochs(n):" around it'
        )

    def first_in_loop(self, frame: FrameType | None, places: Sequence[tuple[CodeType, int]]) -> Any:
        """The first of the places that is in one of the loops around `frame`; None if there is none."""
        spans = [
            (around.frame.f_code, loop.lineno, loop.end_lineno or loop.lineno)
            for around in script_frames(frame, self._entered)
            for loop in around.loops
        ]
        return next((place for place in places if any(_is_in(place, span) for span in spans)), None)

    def makes_data(self, frame: FrameType | None, data: Any) -> bool:
        """Whether the loops around `frame` make data anew in each pass."""
        return name_made_in_loop(loop_frames(frame, self._entered), data, call="batches") is not None

    def data_drawn_in_head(self, frame: FrameType | None, data: Any, dataset: Any, generator: str) -> list[Finding]:
        """That the body of an epoch, in which random numbers were drawn before its batches, makes `data` itself.
        `dataset`: on which alone it depends what `data` gives. `generator`: one that the epoch can make."""
        frames = loop_frames(frame, self._entered)
        if dataset is not None and is_held_outside(frames, dataset):
            return []
        name = name_made_in_loop(frames, data, call="batches")
        if name is None or not frozenset(map(str, self._exempt)).isdisjoint((name, name.partition(" ")[0])):
            return []
        return [
            Finding(
                f"the data {name}, which each epoch makes anew after it has drawn random numbers",
                f"after a restart in the middle of the epoch it would draw others: draw them from {generator}, "
                f"made from the epoch's number, or give the name of the data to leave_out= if they may differ",
            )
        ]

    def explain_second_step(self, frame: FrameType, reading: str | None) -> str:
        """See `LoopJudge`."""
        return self._judge(script_frames(frame, self._entered)).explain_second_step(reading)

    def roots(self, frame: FrameType) -> list[Root]:
        """What training can reach from the frame of its loop: the names that the loop uses, without generators that
        each step makes, as in `rng = default_rng(step)`."""
        frames = script_frames(frame, self._entered)
        names = names_in_loops(frames[0]) if frames and frames[0].frame is script_frame_of(frame) else None
        flow = flow_of(frame.f_code)
        made = flow.made_in_each_pass(flow.control.index_at(frame.f_lasti))
        return [
            (name, value)
            for name, value in roots_of_frame(frame)
            if (names is None or name.partition(".")[0] in names)
            and not (name in made and isinstance(value, GENERATORS))
        ]

    def snapshot(self, frame: FrameType) -> dict[str, str]:
        """Every value that the script reaches, for a proof."""
        return snapshot(frame, self._entered)

    def steps_behind_data(self, frame: FrameType) -> list[Finding]:
        """See `LoopJudge`."""
        return self._judge(script_frames(frame, self._entered)).steps_behind_data()

    def has_code_behind_step(self, frame: FrameType) -> bool:
        """Whether the loop that pulls from the run has code behind the step that `frame` makes."""
        own = script_frame_of(frame)
        if own is None:
            return False
        place = own.f_code, own.f_lasti
        if place not in self._behind_step:
            frames = script_frames(own, self._entered)
            self._behind_step[place] = has_code_behind_step(frames, self._judge(frames), self._pulls)
        return self._behind_step[place]

    def changed_in_run_head(self, *, draws: bool) -> list[Finding]:
        """What the script changes between the `with` and its loop, and each start again. `draws`: random numbers."""
        head = run_head_of(self._entered)
        if head is None:
            return []
        exempt = frozenset(map(str, self._exempt))
        changes = [
            finding for finding in head.changes(self._state.held()) if finding.name.partition(" ")[0] not in exempt
        ]
        return [*changes, *([head.drawing()] if draws and head.statements and not head.asks_where else [])]

    def reading_ahead(self, frame: FrameType, reading: str | None) -> Finding:
        """That the script takes what `reading` gives before the steps that train on it."""
        own = script_frame_of(frame)
        where = "" if own is None else f" ({Path(own.f_code.co_filename).name}:{own.f_lineno})"
        return Finding(
            f"the position in what {reading} gives{where}, which is read ahead of the steps",
            "a restart would leave out what was read and not trained on; read ahead in the data, before "
            "run.batches: dataset.prefetch(2), DataLoader(num_workers=2)",
        )

    def loops_around_step(self, frame: FrameType | None, *, reads: bool, numbered: bool) -> list[Finding]:
        """What of the loops around the first step begins anew after a restart, or ends before its data do.

        `reads`, `numbered`: as for `LoopJudge.own_loops`.
        """
        frames = script_frames(frame, self._entered)
        judge, names = self._judge(frames), frozenset(map(str, self._exempt))
        breaks = [] if "break" in names else judge.early_ends()
        loops = [] if "loop" in names else judge.own_loops(reads, numbered)
        changes = changes_behind_step(frames, judge, self._pulls, self._run)
        behind = [finding for finding in changes if finding.name.partition(" ")[0] not in names]
        return [*breaks, *loops, *behind, *judge.own_numbers(names)]

    def begin_watch(
        self,
        frame: FrameType | None,
        roots: Callable[[], Sequence[Root]],
        of_data: Callable[[], Sequence[Root]],
        recorded: Callable[[], Mapping[str, int]],
    ) -> None:
        """The first pass of the loop begins, or its head is done. `roots`: where the watch begins, besides the names of
        the loop. `of_data`, `recorded`: as for `StepWatch`."""
        if self._new_watch is None:
            exempt = (self._run, *self._exempt)
            self._new_watch = StepWatch(self._keep, exempt, self._state, self._entered, roots, recorded(), of_data)
        with contextlib.suppress(Exception):  # it inspects objects of every kind, and must not end training
            self._new_watch.begin(frame)

    def watch_values(self, step: int, epoch: int, frame: FrameType | None, *, head_draws: bool) -> list[Finding]:
        """The values that the loop carries and no checkpoint would hold. Called at the first step; from now on, what
        changes is watched. `head_draws`: as for `StepWatch.look`."""
        assert self._new_watch is not None
        self._watch, self._new_watch = self._new_watch, None
        return self._watch.look(step, epoch, frame, head_draws=head_draws)

    @property
    def has_begun_pass(self) -> bool:
        """Whether the first pass is known to have begun."""
        return self._new_watch is not None

    def head_otherwise(
        self, frame: FrameType | None, recorded: Mapping[str, int], epoch: int
    ) -> tuple[list[Finding], list[Finding]]:
        """As `StepWatch.head_otherwise`."""
        try:
            return ([], []) if self._new_watch is None else self._new_watch.head_otherwise(frame, recorded, epoch)
        except Exception as error:  # noqa: BLE001 - it inspects objects of every kind, and must not end training
            return [], [_failed_comparison(error)]

    def made_in_head(self, epoch: int) -> Mapping[str, int]:
        """As `StepWatch.made_in_head`."""
        return {} if self._watch is None else self._watch.made_in_head(epoch)

    @property
    def set_once(self) -> dict[str, int] | None:
        """What the first pass has set and no later one has changed; None before the first look."""
        return None if self._watch is None else self._watch.set_once

    @property
    def knows_set_once(self) -> bool:
        """Whether later passes may change no more of it."""
        return self._watch is not None and self._watch.knows_set_once

    def changed_values(self, step: int, epoch: int, frame: FrameType | None) -> list[Finding]:
        """What changed since the last look and no checkpoint holds."""
        if self._watch is None:
            return []
        try:
            findings = self._watch.look(step, epoch, frame)
        except Exception as error:  # noqa: BLE001 - it inspects objects of every kind, and must not end training
            self.close()
            return [_failed_comparison(error)]
        if self._watch.has_settled and not self._has_remarked:
            self._has_remarked = True
            self.remarks += _remarks_of(self._watch)
        return findings

    def _judge(self, frames: Sequence[ScriptFrame]) -> LoopJudge:
        return LoopJudge(frames, self._run, self._pulls)


def _failed_comparison(error: Exception) -> Finding:
    return Finding(f"some values, perhaps: comparing them failed with {describe_error(error)}", _PROVE)


def _is_in(place: tuple[CodeType, int], span: tuple[CodeType, int, int]) -> bool:
    code, first, last = span
    return place[0] is code and first <= place[1] <= last


def _remarks_of(watch: StepWatch) -> Iterator[str]:
    if watch.is_cut_short:
        yield (
            "the loop reaches more than could be compared between steps in a quarter of a second, so some of "
            "what changes may not be named; to be sure, prove the job"
        )
    if watch.unreadable:
        names = listed(list(watch.unreadable), ", ", MOST_NAMES)
        yield (
            f"cannot compare {names} between steps, because this process can't read the values; "
            f"if a step changes them, a restart would not bring that back: keep them in run.state"
        )
