"""The mirror process of one job, which `client.py` starts.

Reads the job's variables, and then questions (`messages.py`), from standard input and answers on standard output, one
after the other. It keeps
nothing that the next such process needs, so the daemon may kill it at any time; it ends with its standard input, even
in the middle of an upload.
"""

import os
import sys
import threading
import time
from queue import SimpleQueue

from supervisor.host.mirror import messages
from supervisor.host.mirror.rate_limit import RateLimiter
from supervisor.host.mirror.run import EpochLost, MirroredRun, TakenOver
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.fetching import local_checkpoints
from supervisor.protocol.mirror.store import Store, StoreError
from supervisor.protocol.wire.codec import MAX_LINE_BYTES, ProtocolError, decode_record, parse_object

MAX_TEXT = 1000  # characters of an error, which goes into status and log
NICE = 10  # training and the daemon come first


def _read_all(questions: SimpleQueue[messages.Question], limiter: RateLimiter) -> None:
    """Reads standard input until it ends, and then ends the process: the daemon is gone."""
    while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
        try:
            message = messages.decode(line)
        except ProtocolError as error:
            sys.stderr.write(f"mirror: {error}\n")
            continue
        if isinstance(message, messages.LimitChange):
            limiter.set_lifted(message.is_lifted)
            continue
        assert isinstance(message, messages.Question)
        questions.put(message)
    os._exit(0)


def main() -> None:
    """Answers until standard input ends."""
    settings = decode_record(parse_object(sys.argv[1]), MirrorSettings, "settings")
    os.nice(NICE)
    if settings.identity is not None:
        settings.identity.assume()
    os.environ.update(messages.decode_variables(sys.stdin.buffer.readline(messages.MAX_VARIABLES_BYTES)))
    questions = SimpleQueue[messages.Question]()
    limiter = RateLimiter(settings.bytes_per_s)
    threading.Thread(target=_read_all, args=(questions, limiter), daemon=True).start()
    run: MirroredRun | None = None
    while True:
        question = questions.get()
        try:
            if run is None:
                run = MirroredRun(Store(settings.url, creates=True), settings.folder, settings.keep, limiter)
            answer = _answer(run, question)
        except TakenOver as error:
            answer = messages.FencedAnswer(question.id, error.epoch.number, error.epoch.holder[:MAX_TEXT])
        except (StoreError, ManifestError, OSError) as error:
            run = None  # credentials are read anew: those that expired may have been renewed
            is_gone, epoch_lost = isinstance(error, FileNotFoundError), isinstance(error, EpochLost)
            answer = messages.FailureAnswer(question.id, str(error)[:MAX_TEXT], is_gone, epoch_lost)
        sys.stdout.buffer.write(messages.encode(answer))
        sys.stdout.buffer.flush()


def _answer(run: MirroredRun, question: messages.Question) -> messages.Answer:
    match question:
        case messages.FetchRequest():
            found = run.fetch(
                _name(question.newer_than), question.below, frozenset(question.unwanted), question.only_look
            )
            if question.epoch > 0 and found.fetched is not None:
                run.keep_held(question.epoch)
            return messages.FetchAnswer(
                question.id,
                name=_text(found.fetched),
                epoch=found.epoch,
                attempt=found.attempt,
                newest=_text(found.newest),
                left_behind=tuple(map(str, found.left_behind))[: messages.MAX_NAMES],
                bad=tuple(f"{each}: {why:.200}" for each, why in found.bad[:20]),
            )
        case messages.NewestLocalRequest():
            return messages.NewestLocalAnswer(question.id, _text(max(local_checkpoints(run.folder), default=None)))
        case messages.BeginEpochRequest():
            return messages.EpochAnswer(question.id, run.begin_epoch(_name(question.start), question.known))
        case messages.UploadRequest():
            began_at = time.monotonic()
            name = _name(question.name)
            assert name is not None
            size, line = run.upload(name, question.epoch)
            remote = tuple(str(each.name) for each in line[: messages.MAX_NAMES])
            return messages.UploadAnswer(question.id, question.name, size, time.monotonic() - began_at, remote)


def _name(text: str | None) -> CheckpointName | None:
    if text is None:
        return None
    name = parse_name(text)
    if name is None:
        raise OSError(f"{text!r:.80} is no checkpoint's name")
    return name


def _text(name: CheckpointName | None) -> str | None:
    return None if name is None else str(name)
