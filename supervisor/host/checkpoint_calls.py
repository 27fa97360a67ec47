"""The questions about checkpoint directories, as records, and the answers. Blocks: for threads and processes."""

import contextlib
import errno
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import directory, removal, selection
from supervisor.protocol.checkpoints.directory import DirectoryView
from supervisor.protocol.checkpoints.listing import MAX_LISTED, MAX_REASON, ListedCheckpoint, list_checkpoints
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.checkpoints.selection import ANY, Selection, SelectionRules
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.mirror.folder_epochs import record_given_up


class Order:
    """What an operator chose, which may be withdrawn while a disk keeps it waiting. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_withdrawn = False
        self._end: Callable[[], object] | None = None

    def withdraw(self) -> None:
        """Nothing is to be moved for it any more."""
        with self._lock:
            self._is_withdrawn = True
            if self._end is not None:
                self._end()

    def require(self) -> None:
        """Raises OSError if it was withdrawn."""
        if self._is_withdrawn:
            raise OSError(errno.ECANCELED, "what an operator chose was withdrawn")

    @contextlib.contextmanager
    def carried_out_by(self, end: Callable[[], object]) -> Iterator[None]:
        """While another process carries it out, which `end` ends. Raises OSError if it was withdrawn."""
        with self._lock:
            self.require()
            self._end = end
        try:
            yield
        finally:
            with self._lock:
                self._end = None


class Question(StrEnum):
    """What is asked about a directory."""

    SELECT = "select"
    ROLL_BACK = "roll_back"
    QUARANTINE = "quarantine"
    LIST = "list"
    HIGHEST_ATTEMPT = "highest_attempt"
    LOOK = "look"
    BEGIN_AT = "begin_at"
    MEASURE = "measure"


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """One question and what it needs: SELECT `rules`; ROLL_BACK `before` and `diverged`, the attempt in which training
    did, None: not known; QUARANTINE `reasons` and `because`; LIST `verify`; LOOK `writes`, whether a file is written to
    see if that works; BEGIN_AT `step`, 0 for beginning anew, and `since`, the first attempt that was launched for it,
    None: this one, the job's `mirror`, the URL of its run, and `first`: what that has is of attempts before it; MEASURE
    the `name` of a checkpoint. `expected`: the name of the checkpoint that should be the newest, if that is known, for
    those before a start."""

    question: Question
    directory: Path
    rules: SelectionRules = ANY
    before: int = 0
    diverged: int | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    because: OlderBecause = OlderBecause.DAMAGED
    verify: bool = False
    writes: bool = False
    expected: str | None = None
    step: int = 0
    since: int | None = None
    mirror: str | None = None
    first: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class SetAside:
    """The checkpoints that were moved to quarantine."""

    checkpoints: tuple[RejectedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Committed checkpoints, newest first, then quarantined ones; at most MAX_LISTED of each."""

    checkpoints: tuple[ListedCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class Attempts:
    """The highest attempt in any checkpoint's name, and of those that were written here; 0 if there is none."""

    highest: int
    highest_here: int = 0


@dataclass(frozen=True, slots=True)
class OnDisk:
    """How many bytes a checkpoint has on the disk."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The names of what was moved aside because an operator gives it up."""

    names: tuple[str, ...]


CheckpointAnswer = Selection | SetAside | Listing | Attempts | DirectoryView | Moved | OnDisk


def answer(request: CheckpointRequest, order: Order | None = None) -> CheckpointAnswer:
    """Reads, and changes, the directory. Raises OSError; for SELECT also NoValidCheckpoint and UnreadableCheckpoint.

    `order`: of a BEGIN_AT, which moves nothing once that is withdrawn.
    """
    if request.question in _BEFORE_A_START:
        directory.check_mounted(request.directory, request.expected)
    if request.question is Question.BEGIN_AT:
        return _begin_at(request, order or Order())
    return _ANSWERS[request.question](request)


def _select(request: CheckpointRequest) -> Selection:
    return selection.select_checkpoint(request.directory, request.rules)


def _roll_back(request: CheckpointRequest) -> SetAside:
    folder, before, diverged = request.directory, request.before, request.diverged

    def require() -> None:
        record_given_up(folder, before, diverged)

    return SetAside(removal.roll_back(folder, before, diverged, require))


def _quarantine(request: CheckpointRequest) -> SetAside:
    folder, reasons = request.directory, request.reasons
    names = [name for name in directory.committed_checkpoints(folder) if str(name) in reasons]
    for name in names:
        move_to_quarantine(folder, name, reasons[str(name)], request.because)
    return SetAside(tuple(RejectedCheckpoint(str(name), reasons[str(name)], request.because) for name in names))


def _highest_attempt(request: CheckpointRequest) -> Attempts:
    folder = request.directory
    return Attempts(
        directory.highest_attempt(folder),
        directory.highest_attempt(folder, lambda path: not directory.is_fetched(path)),
    )


def _look(request: CheckpointRequest) -> DirectoryView:
    directory.check_usable(request.directory, request.writes)
    return directory.view_directory(request.directory, request.expected)


def _measure(request: CheckpointRequest) -> OnDisk:
    name = layout.parse_name(request.name)
    if name is None:
        raise OSError(errno.EINVAL, "not the name of a checkpoint", request.name)
    return OnDisk(directory.written_bytes(request.directory, name))


def _begin_at(request: CheckpointRequest, order: Order) -> Moved:
    folder, step, since = request.directory, request.step, request.since
    order.require()
    if since is not None and any(
        name.attempt >= since and not directory.is_fetched(folder / str(name))
        for name in directory.committed_checkpoints(folder)
    ):
        return Moved(())
    take_back: Callable[[], None] | None = None

    def require() -> None:
        nonlocal take_back
        order.require()
        if take_back is None:
            below = step + 1 if step else 0
            take_back = record_given_up(folder, below, mirror=request.mirror, first=request.first)
            order.require()  # the disk may have kept that waiting

    try:
        names = removal.begin_at(folder, step, require) if step else directory.begin_anew(folder, require)
    except OSError as error:
        if error.errno == errno.ECANCELED and take_back is not None:
            take_back()
        raise
    return Moved(names[:MAX_LISTED])


_BEFORE_A_START = frozenset({Question.SELECT, Question.ROLL_BACK, Question.BEGIN_AT, Question.LOOK})
"""What decides where training begins, which a directory does not whose volume is not mounted."""

_ANSWERS: Mapping[Question, Callable[[CheckpointRequest], CheckpointAnswer]] = {
    Question.SELECT: _select,
    Question.ROLL_BACK: _roll_back,
    Question.QUARANTINE: _quarantine,
    Question.LIST: lambda request: Listing(list_checkpoints(request.directory, request.verify)),
    Question.HIGHEST_ATTEMPT: _highest_attempt,
    Question.LOOK: _look,
    Question.MEASURE: _measure,
}


def shortened(rejected: Collection[RejectedCheckpoint]) -> tuple[RejectedCheckpoint, ...]:
    """At most MAX_LISTED of them, with reasons of at most MAX_REASON characters."""
    return tuple(replace(checkpoint, reason=checkpoint.reason[:MAX_REASON]) for checkpoint in [*rejected][:MAX_LISTED])
