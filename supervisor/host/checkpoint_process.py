"""Answers one question about a checkpoint directory in a process of the job's user.

What a user's folder holds is read, verified and moved with that user's rights: links in it lead nowhere that the user
could not go, and content made to cost time or memory costs that process's. It starts as root, imports what it needs
(which the user may not be able to read), and then becomes the user for good, before it touches the directory. Its one
line of JSON is limited, and parsed as what a stranger sent. It ends when the daemon does, or at its time limit.
"""

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from supervisor.host import checkpoint_calls
from supervisor.host.checkpoint_calls import (
    Attempts,
    CheckpointAnswer,
    CheckpointRequest,
    Listing,
    Moved,
    OnDisk,
    Order,
    Question,
    SetAside,
    shortened,
)
from supervisor.host.child_output import read_answer
from supervisor.host.children import Identity, own_command, start_own
from supervisor.protocol.checkpoints.directory import DirectoryView
from supervisor.protocol.checkpoints.listing import MAX_LISTED, MAX_REASON
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, Selection
from supervisor.protocol.damage import RejectedCheckpoint, UnreadableCheckpoint
from supervisor.protocol.plurals import counted_bytes
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object

READ_LIMIT_S = 3600.0  # to verify what a slow disk holds
LOOK_LIMIT_S = 60.0  # for names and manifests
MEMORY_BYTES = 2 << 30  # address space: an index of a million tensors takes a third
MAX_ANSWER_BYTES = 8 << 20
MAX_TEXT = 4000  # characters of an error, which goes into status, log and ledger
MAX_REMARKS = 5  # on a file system
MAX_WRITTEN_BYTES = 1 << 20  # of a file: it writes reasons only

_KINDS: Mapping[Question, type[CheckpointAnswer]] = {
    Question.SELECT: Selection,
    Question.ROLL_BACK: SetAside,
    Question.QUARANTINE: SetAside,
    Question.LIST: Listing,
    Question.HIGHEST_ATTEMPT: Attempts,
    Question.LOOK: DirectoryView,
    Question.BEGIN_AT: Moved,
    Question.MEASURE: OnDisk,
}


@dataclass(frozen=True, slots=True)
class _Failure:
    """What was raised instead of an answer: without `errno` NoValidCheckpoint, with `name` UnreadableCheckpoint."""

    text: str
    errno: int | None = None
    name: str | None = None
    has_older: bool = False
    rejected: tuple[RejectedCheckpoint, ...] = ()


def answer_as(
    identity: Identity, request: CheckpointRequest, order: Order | None = None, limit_s: float | None = None
) -> CheckpointAnswer:
    """The answer of a process of that user; blocks. Raises what `checkpoint_calls.answer` raises.

    An answer that does not come within the limit, or is none, is an OSError. The process is killed if `order`, which it
    carries out, is withdrawn.
    """
    reads_all = request.verify or request.question in (Question.SELECT, Question.ROLL_BACK)
    limit = limit_s if limit_s is not None else READ_LIMIT_S if reads_all else LOOK_LIMIT_S
    ids = [str(identity.uid), str(identity.gid), ",".join(map(str, identity.groups))]
    command = own_command("supervisor.host.checkpoint_process", *ids)
    with start_own(command, {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            with (order or Order()).carried_out_by(process.kill):
                process.stdin.write(_encode(request))
                process.stdin.flush()  # stays open: its end tells the process that the daemon is gone
                content = read_answer(process.stdout.fileno(), limit, MAX_ANSWER_BYTES)
        finally:
            process.kill()
    return _parse_answer(content, _KINDS[request.question])


def _parse_answer(content: bytes, kind: type[CheckpointAnswer]) -> CheckpointAnswer:
    try:
        body = parse_object(content)
        failure = decode_record(body["failure"], _Failure, "failure") if "failure" in body else None
        result = decode_record(body["result"], kind, "result") if failure is None else None
    except (ProtocolError, KeyError, TypeError) as error:
        raise OSError(errno.EBADMSG, f"its user's process gave no valid answer: {str(error)[:200]}") from error
    if result is not None:
        return _reduced(result)
    assert failure is not None
    text = failure.text[:MAX_TEXT]
    if failure.errno is not None and failure.name is not None:
        raise UnreadableCheckpoint(failure.errno, text, failure.name[:MAX_REASON], failure.has_older)
    if failure.errno is not None:
        raise OSError(failure.errno, text)
    raise NoValidCheckpoint.from_text(text, shortened(failure.rejected))


def _encode(record: Any) -> bytes:
    return encode_record(record).encode() + b"\n"


# --- in the process --------------------------------------------------------------------------------------------------


def main() -> None:
    """Reads a request from standard input, becomes the user of the arguments, and writes the answer."""
    request = decode_record(parse_object(sys.stdin.buffer.readline()), CheckpointRequest, "request")
    threading.Thread(target=_end_with_daemon, daemon=True).start()
    uid, gid, groups = sys.argv[1:]
    _limit()
    Identity(int(uid), int(gid), tuple(int(group) for group in groups.split(",") if group)).assume()
    line = _encode(_answer(request))
    while line:
        line = line[os.write(1, line) :]


def _end_with_daemon() -> None:
    os.read(0, 1)
    os._exit(1)


def _limit() -> None:
    for what, limit in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MAX_WRITTEN_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))


def _answer(request: CheckpointRequest) -> dict[str, Any]:
    try:
        return {"result": _reduced(checkpoint_calls.answer(request))}
    except NoValidCheckpoint as error:
        failure = _Failure(str(error), rejected=shortened(error.rejected))
    except UnreadableCheckpoint as error:
        failure = _Failure(error.strerror or str(error), error.errno, error.name, error.has_older)
    except OSError as error:
        failure = _Failure(error.strerror or str(error), error.errno or errno.EIO)
    except MemoryError:
        failure = _Failure(f"reading it takes more than {counted_bytes(MEMORY_BYTES)} of memory", errno.ENOMEM)
    except Exception as error:  # noqa: BLE001 - the daemon says it
        failure = _Failure(f"{error!r:.200}", errno.EBADMSG)  # a defect, which says nothing about the disk
    return {"failure": failure}


def _reduced(answer: CheckpointAnswer) -> CheckpointAnswer:
    """Without what the daemon does not need: whatever a job wrote into it could be as large as a manifest.

    Done on both sides: there to send little, here because the other side is not trusted.
    """
    if isinstance(answer, Listing):
        return Listing(answer.checkpoints[: 2 * MAX_LISTED])
    if isinstance(answer, SetAside):
        return SetAside(shortened(answer.checkpoints))
    if isinstance(answer, Moved):
        return Moved(tuple(name[:MAX_REASON] for name in answer.names[:MAX_LISTED]))
    if isinstance(answer, DirectoryView):
        return _reduced_view(answer)
    if not isinstance(answer, Selection):
        return answer
    answer = replace(answer, seen=_reduced_view(answer.seen))
    if answer.manifest is not None:
        answer = replace(answer, manifest=replace(answer.manifest, files=(), versions={}, topology={}, metrics={}))
    if answer.foreign is not None:
        bundle = replace(answer.foreign.bundle, counters={})
        answer = replace(answer, foreign=replace(answer.foreign, bundle=bundle))
    return replace(answer, rejected=shortened(answer.rejected))


def _reduced_view(view: DirectoryView) -> DirectoryView:
    remarks = tuple(remark[: 2 * MAX_REASON] for remark in view.remarks[:MAX_REMARKS])
    passed_over = None if view.passed_over is None else shortened([view.passed_over])[0]
    mount = None if view.mount is None else view.mount[:MAX_REASON]
    return replace(view, mount=mount, remarks=remarks, passed_over=passed_over)
