"""The mirror process of one job, which `client.py` starts.

Reads the job's variables, and then questions (`messages.py`), from standard input and answers on standard output, one
after the other. It keeps nothing that the next such process needs, so the daemon may kill it at any time; it ends with
its standard input, even in the middle of an upload. Whether another host has taken the run over is looked at in a
thread of its own, with connections of its own: an upload may take long.
"""

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from supervisor.host.mirror import messages
from supervisor.host.mirror.epochs import EpochLost, TakenOver
from supervisor.host.mirror.run import LocalDamaged, MirroredRun, PartDamaged, RateLimiter
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.host.processes.priority import yield_to_others
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.fetching import fetch_named, locate
from supervisor.protocol.mirror.folder_epochs import known_epoch, local_checkpoints
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint
from supervisor.protocol.mirror.line import checkpoints_on_line
from supervisor.protocol.mirror.other_run import OtherRun, find_other_run
from supervisor.protocol.mirror.remote_run import RemoteRun, committed
from supervisor.protocol.mirror.store import Store, StoreError
from supervisor.protocol.wire.codec import ProtocolError, decode_record, parse_object

MAX_TEXT = 1000  # characters of an error, which goes into status and log
PROGRESS_S = 1.0  # between two words on a copy that is under way
NICE = 10  # training and the daemon come first


class _Output:
    """Standard output, for both threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told_at = 0.0  # how far a copy is

    def write(self, message: messages.Answer | messages.CopyProgress) -> None:
        with self._lock:
            sys.stdout.buffer.write(messages.LINES.encode(message))
            sys.stdout.buffer.flush()

    def tell_progress(self, question: int, copied: int, size: int) -> None:
        """Once a second at most."""
        if (now := time.monotonic()) - self._told_at >= PROGRESS_S:
            self._told_at = now
            self.write(messages.CopyProgress(question, copied, size))


def _read_all(
    questions: SimpleQueue[messages.Question], watches: SimpleQueue[messages.WatchRequest], limiter: RateLimiter
) -> None:
    """Reads standard input until it ends, and then ends the process: the daemon is gone."""
    while line := sys.stdin.buffer.readline(messages.MAX_LINE_BYTES):
        try:
            message = messages.LINES.decode(line)
        except ProtocolError as error:
            sys.stderr.write(f"mirror: {error}\n")
            continue
        match message:
            case messages.LimitChange():
                limiter.set_lifted(message.is_lifted)
            case messages.WatchRequest():
                watches.put(message)
            case _:
                assert isinstance(message, messages.Question)
                questions.put(message)
    os._exit(0)


def _watch(settings: MirrorSettings, watches: SimpleQueue[messages.WatchRequest], output: _Output) -> None:
    run: RemoteRun | None = None
    while True:
        question = watches.get()
        answer: messages.Answer = messages.WatchAnswer(question.id)
        try:
            run = run or RemoteRun(Store(settings.url, settings.run))
            known = question.epoch or known_epoch(settings.folder, run.epochs())
            if (later := run.later_epoch(known)) is not None:
                _refuse_other_run(run, settings.folder)
                answer = _fenced(question.id, later)
        except (StoreError, OSError) as error:
            run = None
            answer = messages.FailureAnswer(question.id, str(error)[:MAX_TEXT])
        except Exception as error:  # noqa: BLE001 - whoever asked waits for the answer
            run = None
            answer = messages.FailureAnswer(question.id, repr(error)[:MAX_TEXT])
        output.write(answer)


def _refuse_other_run(run: RemoteRun, folder: Path) -> None:
    """Raises OtherRun if the run may be of another training: then nobody has taken that of the folder over."""
    other = find_other_run(run, folder, lambda: checkpoints_on_line(run.epochs(), committed(run.files())))
    if other is not None:
        raise other


def main() -> None:
    """Answers until standard input ends."""
    settings = decode_record(parse_object(sys.argv[1]), MirrorSettings, "settings")
    yield_to_others(NICE)
    if settings.identity is not None:
        settings.identity.assume()
    os.environ.update(messages.decode_variables(sys.stdin.buffer.readline(messages.MAX_VARIABLES_BYTES)))
    questions, watches = SimpleQueue[messages.Question](), SimpleQueue[messages.WatchRequest]()
    limiter, output = RateLimiter(settings.bytes_per_s), _Output()
    threading.Thread(target=_read_all, args=(questions, watches, limiter), daemon=True).start()
    threading.Thread(target=_watch, args=(settings, watches, output), daemon=True).start()
    run: MirroredRun | None = None
    while True:
        question = questions.get()
        answer: messages.Answer
        try:
            if run is None:
                run = MirroredRun(Store(settings.url, settings.run), settings.folder, settings.keep, limiter)
            run.on_progress = partial(output.tell_progress, question.id)
            answer = _answer(run, question)
        except TakenOver as error:
            answer = _fenced(question.id, error.epoch)
        except (StoreError, ManifestError, OSError) as error:
            run = None  # credentials are read anew: those that expired may have been renewed
            is_gone, epoch_lost = isinstance(error, FileNotFoundError | PartDamaged), isinstance(error, EpochLost)
            is_damaged = isinstance(error, LocalDamaged)
            other = _steps_of(error) if isinstance(error, OtherRun) else None
            text = str(error)[:MAX_TEXT]
            answer = messages.FailureAnswer(question.id, text, is_gone, epoch_lost, is_damaged, other)
        output.write(answer)


def _fenced(question: int, epoch: Epoch) -> messages.FencedAnswer:
    return messages.FencedAnswer(question, epoch.number, epoch.holder[:MAX_TEXT])


def _answer(run: MirroredRun, question: messages.Question) -> messages.Answer:
    match question:
        case messages.FetchRequest():
            return _fetched(run, question)
        case messages.NewestLocalRequest():
            return messages.NewestLocalAnswer(question.id, _text(max(local_checkpoints(run.folder), default=None)))
        case messages.BeginEpochRequest():
            start = _name(question.start)
            if question.is_anew:
                start = None if question.has_no_past else start
                return messages.EpochAnswer(question.id, run.begin_epoch(start, question.known))
            epoch, newer = run.take_over(start, question.known, _name(question.seen), question.has_no_past)
            return messages.EpochAnswer(question.id, epoch, _text(newer))
        case messages.UploadRequest():
            began_at = time.monotonic()
            size, line = run.upload(_required_name(question.name), question.epoch)
            return _uploaded(question, size, began_at, line)
        case messages.CommitPartsRequest():
            began_at = time.monotonic()
            size, line = run.commit_parts(_required_name(question.name), question.epoch, question.files)
            return _uploaded(question, size, began_at, line)
        case messages.UploadPartRequest():
            files = run.upload_part(_required_name(question.name), question.epoch)
            return messages.PartAnswer(question.id, files)
        case messages.LocateRequest():
            epoch, digest = locate(run, run.folder, _required_name(question.name)) or (0, "")
            return messages.LocateAnswer(question.id, epoch, digest)
        case messages.FetchNamedRequest():
            remote = RemoteCheckpoint(question.epoch, _required_name(question.name))
            fetch_named(run, run.folder, remote, question.manifest)
            return messages.DoneAnswer(question.id)
        case messages.WatchRequest():
            raise AssertionError("the other thread answers these")


def _fetched(run: MirroredRun, question: messages.FetchRequest) -> messages.FetchAnswer:
    if question.epoch > 0 and not question.only_look:
        run.keep_held(question.epoch)
    result = run.fetch(
        _name(question.newer_than),
        question.below,
        frozenset(question.unwanted),
        question.only_look,
        question.is_chosen,
    )
    return messages.FetchAnswer(
        question.id,
        name=_text(result.fetched),
        epoch=result.epoch,
        attempt=result.attempt,
        newest=_text(result.newest),
        left_behind=tuple(map(str, result.left_behind))[: messages.MAX_NAMES],
        bad=tuple(f"{checkpoint}: {why:.200}" for checkpoint, why in result.bad[:20]),
        seen=_text(result.seen),
        is_held=result.epoch > 0 and result.is_held,
        standing=_text(result.standing),
        has_gone_on=result.has_gone_on,
        other_run=None if result.other is None else _steps_of(result.other),
    )


def _steps_of(other: OtherRun) -> messages.OtherRunSteps:
    return messages.OtherRunSteps(other.here.step, other.there.step, other.is_here_too)


def _uploaded(
    question: messages.UploadRequest | messages.CommitPartsRequest,
    size: int,
    began_at: float,
    line: tuple[RemoteCheckpoint, ...],
) -> messages.UploadAnswer:
    remote = tuple(str(checkpoint.name) for checkpoint in line[: messages.MAX_NAMES])
    return messages.UploadAnswer(question.id, question.name, size, time.monotonic() - began_at, remote)


def _required_name(text: str) -> CheckpointName:
    name = _name(text)
    assert name is not None
    return name


def _name(text: str | None) -> CheckpointName | None:
    if text is None:
        return None
    name = parse_name(text)
    if name is None:
        raise OSError(f"{text!r:.80} is no checkpoint's name")
    return name


def _text(name: CheckpointName | None) -> str | None:
    return None if name is None else str(name)
