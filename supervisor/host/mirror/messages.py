"""What the daemon and a job's mirror process tell each other: one JSON object in each line, with its `type`.

The daemon's first line has the job's variables. Questions are answered in their order, but for WatchRequest, which is
answered beside them; each answer repeats the question's `id`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from supervisor.protocol.checkpoints.manifest import StoredFile
from supervisor.protocol.wire.codec import encode_record, parse_object
from supervisor.protocol.wire.lines import LineCodec

MAX_LINE_BYTES = 2 << 20  # each of 1024 nodes (allocation.MAX_NODES) has a few files, in 200 bytes each
MAX_NAMES = 500  # of checkpoints in an answer
MAX_VARIABLES_BYTES = 12 << 20  # execve(2) takes 2 MiB; JSON may need six bytes for one


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Get the newest remote checkpoint that counts, is newer than `newer_than` and of a step below `below`.

    `unwanted`: names that are left out. `only_look`: say what there is, and get nothing. `is_chosen`: an operator has
    said that training goes on from there, also if it may be of another one than what is in the folder. `epoch`: which
    one this host holds, 0: none; the folder may be a new one, and has to say so too.
    """

    id: int
    newer_than: str | None = None
    below: int | None = None
    unwanted: tuple[str, ...] = ()
    only_look: bool = False
    epoch: int = 0
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class NewestLocalRequest:
    """Say which is the newest checkpoint in the job's folder. The store is not asked."""

    id: int


@dataclass(frozen=True, slots=True)
class BeginEpochRequest:
    """Take the run over, going on from the checkpoint `start` (None: from step 0).

    `known`: the highest epoch of which this host knows. If there is a later one, another host has taken the run.
    `seen`: the newest checkpoint that the store had when `start` was chosen; `is_anew`: all that it has was given up.
    `has_no_past`: training began from nothing of the job's own, and `start` is what it has saved since.
    """

    id: int
    start: str | None
    known: int
    seen: str | None = None
    is_anew: bool = False
    has_no_past: bool = False


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """Copy a local checkpoint under an epoch."""

    id: int
    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LocateRequest:
    """Say where the store has the very checkpoint that is in the folder."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class FetchNamedRequest:
    """Have the folder contain the checkpoint `name` of an epoch, whose manifest has the SHA-256 `manifest`."""

    id: int
    name: str
    epoch: int
    manifest: str


@dataclass(frozen=True, slots=True)
class UploadPartRequest:
    """Copy this node's files of a checkpoint under an epoch; the answer is a PartAnswer. They count once
    CommitPartsRequest is answered."""

    id: int
    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class CommitPartsRequest:
    """Commit a checkpoint of which all nodes have uploaded their files; the answer is an UploadAnswer.

    `files`: what they say that they have uploaded.
    """

    id: int
    name: str
    epoch: int
    files: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Say whether there is a later epoch than `epoch` (0: than those that the folder knows), by one list."""

    id: int
    epoch: int


Question = (
    FetchRequest
    | NewestLocalRequest
    | BeginEpochRequest
    | UploadRequest
    | LocateRequest
    | FetchNamedRequest
    | UploadPartRequest
    | CommitPartsRequest
    | WatchRequest
)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """Whether uploads go as fast as they can for now, also the one that is under way. It is no question."""

    is_lifted: bool


@dataclass(frozen=True, slots=True)
class OtherRunSteps:
    """The newest step here, and there. `is_here_too`: that one is also the step of a checkpoint that is here."""

    here: int
    there: int
    is_here_too: bool


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """`name`: what was fetched, verified and committed; None: there is nothing newer. `epoch`: the highest there is.

    `attempt`: the highest in a remote checkpoint's name; the next attempt here needs a higher one.
    `left_behind`: local checkpoints that another host's epoch left behind; if there are any, nothing was fetched.
    `newest`: the newest remote one that counts and may be used; `seen`: the newest that counts; `standing`: the same
    without what this host has given up. `bad`: remote ones that were refused, each with its reason. `is_held`: the
    newest epoch is one that this host began. `has_gone_on`: another host has taken the run over since an attempt
    of this one began last, and has uploaded. `other_run`: of a mere look, what it has may be of another training.
    """

    id: int
    name: str | None
    epoch: int
    attempt: int = 0
    newest: str | None = None
    left_behind: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    seen: str | None = None
    is_held: bool = False
    standing: str | None = None
    has_gone_on: bool = False
    other_run: OtherRunSteps | None = None


@dataclass(frozen=True, slots=True)
class NewestLocalAnswer:
    """`name`: None if there is no checkpoint."""

    id: int
    name: str | None


@dataclass(frozen=True, slots=True)
class EpochAnswer:
    """The run is this host's. `newer`: another host had uploaded this one meanwhile, and the epoch goes on from it."""

    id: int
    epoch: int
    newer: str | None = None


@dataclass(frozen=True, slots=True)
class WatchAnswer:
    """There is no later epoch."""

    id: int


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """No answer yet: how many bytes of a checkpoint were copied so far, from or to the store, of how many."""

    id: int
    copied_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class UploadAnswer:
    """The checkpoint exists in the store. `remote`: all that count there now, newest first."""

    id: int
    name: str
    size_bytes: int
    took_s: float
    remote: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocateAnswer:
    """`epoch`: under which it counts; 0: the store has it not. `manifest`: the SHA-256 of its manifest."""

    id: int
    epoch: int
    manifest: str


@dataclass(frozen=True, slots=True)
class DoneAnswer:
    """What was asked for is done; the answer to FetchNamedRequest."""

    id: int


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """This node's files of a checkpoint are in the store; none of `files` if the checkpoint was committed before."""

    id: int
    files: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True)
class FencedAnswer:
    """Another host has taken the run over."""

    id: int
    epoch: int
    holder: str


@dataclass(frozen=True, slots=True)
class FailureAnswer:
    """It could not be done; nothing is half done. `is_gone`: the local checkpoint is not there any more, or damaged;
    `epoch_lost`: the store lacks the epoch under which this host writes; `is_damaged`: what was to be uploaded is not
    what was written here, so trying again soon is no use; `other_run`: what the store has may be of another training
    than what is in the folder."""

    id: int
    error: str
    is_gone: bool = False
    epoch_lost: bool = False
    is_damaged: bool = False
    other_run: OtherRunSteps | None = None


Answer = (
    FetchAnswer
    | NewestLocalAnswer
    | EpochAnswer
    | WatchAnswer
    | UploadAnswer
    | LocateAnswer
    | DoneAnswer
    | PartAnswer
    | FencedAnswer
    | FailureAnswer
)
ANSWERS = get_args(Answer)
Message = Question | LimitChange | Answer | CopyProgress

LINES: LineCodec[Message] = LineCodec({kind.__name__: kind for kind in get_args(Message)}, MAX_LINE_BYTES)
"""Encodes and decodes the messages."""


def encode_variables(variables: Mapping[str, str]) -> bytes:
    """The first line: the environment that the process has once it is the job's user."""
    return encode_record(variables).encode() + b"\n"


def decode_variables(line: bytes) -> dict[str, str]:
    """What `encode_variables` encoded. Raises ProtocolError."""
    return {str(name): str(value) for name, value in parse_object(line).items()}
