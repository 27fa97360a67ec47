"""A message as the one line that the control pipe takes; one that is too long for that loses its longest parts.

What a script calls its figures, and what its errors say, may be of any length, and must not end who tells it.
"""

from dataclasses import replace

from supervisor.protocol import codec
from supervisor.protocol.messages import Done, Exported, Failed, FromWorker, Progress, SaveFailed

NAME = 40  # characters, each at most 12 bytes in JSON: a hundred such figures fit (figures.py)
ERROR = 500
TRACEBACK = 3000  # the end of it: there the cause stands
BATCHES = 1000  # all of them are in a file besides (divergence.py)


def encode_within_limit(message: FromWorker) -> bytes:
    """As `codec.encode`, of a message that may be too long."""
    try:
        return codec.encode(message)
    except codec.ProtocolError:
        return codec.encode(_shortened(message))


def _shortened(message: FromWorker) -> FromWorker:
    match message:
        case Progress() | Done():
            return replace(message, metrics={name: each for name, each in message.metrics.items() if len(name) <= NAME})
        case SaveFailed() | Exported(error=str()):
            return replace(message, error=str(message.error)[:ERROR])
        case Failed():
            shorter = replace(message, error=message.error[:ERROR], traceback=message.traceback[-TRACEBACK:])
            return replace(shorter, batches=message.batches[:BATCHES])
    return message
