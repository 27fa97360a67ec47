"""The keys of one run in an object store, below the run's own prefix.

    epoch/0004                                  who began epoch 4, and from which checkpoint; never changed
    epoch/0004.committed                        epoch 4 has, or had, a checkpoint, whatever a list says
    e0004/step-0000012800.a3/ckpt.index         the files of a checkpoint, as they are on the local disk
    e0004/step-0000012800.a3/MANIFEST.json      created last, by one create-only put: with it the checkpoint exists

Attempts are numbered by a host's ledger, and a new host begins with an empty one; the epoch keeps the names of two
hosts apart. Nothing is ever overwritten.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import is_plain_name
from supervisor.protocol.formats import check_format
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.wire.codec import ProtocolError, decode_record, encode_record, parse_object

EPOCHS = "epoch/"
STORES = ("s3", "gs", "az")
EPOCH_FORMAT = 1
MAX_EPOCH_BYTES = 4096  # of the object that begins one

_EPOCH = re.compile(r"epoch/(\d{4,9})")
_FILE = re.compile(r"e(\d{4,9})/([^/]+)/([^/]+)")


@dataclass(frozen=True, slots=True, order=True)
class RemoteCheckpoint:
    """A checkpoint in the store; sorts by epoch, then oldest first."""

    epoch: int
    name: CheckpointName

    def __str__(self) -> str:
        return f"e{self.epoch:04d}/{self.name}"

    def key(self, file: str) -> str:
        """The key of one of its files."""
        return f"{self}/{file}"

    @property
    def by_attempt(self) -> tuple[int, ...]:
        """As it sorts if the attempt counts before the step."""
        return self.epoch, *self.name.by_attempt

    @property
    def manifest(self) -> str:
        """The key whose existence is the commit."""
        return self.key(layout.MANIFEST)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One holder of the run. `parent`: the newest remote checkpoint of what it began from; None: the store had none, or
    it began anew. `start`: what it began from, whether the store had that or not; None: it began anew, or an earlier
    version wrote this.

    `holder`: the host, for people. `began_wall_at`: Unix time, for people; nothing is decided by it. `token`: random,
    so that a host knows its own epoch again.
    """

    number: int
    parent: RemoteCheckpoint | None
    holder: str = ""
    began_wall_at: float = 0.0
    token: str = ""
    start: CheckpointName | None = None


@dataclass(frozen=True, slots=True)
class _EpochBody:
    parent: str | None
    holder: str = ""
    began_wall_at: float = 0.0
    token: str = ""
    format: int = EPOCH_FORMAT
    start: str | None = None


def epoch_key(number: int) -> str:
    """The key of the object that begins an epoch."""
    return f"{EPOCHS}{number:04d}"


def committed_key(number: int) -> str:
    """The key of the object that says that an epoch has, or had, a checkpoint."""
    return f"{epoch_key(number)}.committed"


def parse_epoch_key(key: str) -> int | None:
    """The epoch that a key begins; None if it is another key."""
    match = _EPOCH.fullmatch(key)
    return int(match[1]) if match is not None and epoch_key(int(match[1])) == key else None


def parse_file_key(key: str) -> tuple[RemoteCheckpoint, str] | None:
    """The checkpoint that a key belongs to, and the file's name; None if it is another key."""
    match = _FILE.fullmatch(key)
    name = parse_name(match[2]) if match is not None else None
    if match is None or name is None or not is_plain_name(match[3]):
        return None
    checkpoint = RemoteCheckpoint(int(match[1]), name)
    return (checkpoint, match[3]) if checkpoint.key(match[3]) == key else None


def encode_epoch(epoch: Epoch) -> bytes:
    """The content of the object that begins an epoch."""
    parent = None if epoch.parent is None else str(epoch.parent)
    start = None if epoch.start is None else str(epoch.start)
    return encode_record(_EpochBody(parent, epoch.holder, epoch.began_wall_at, epoch.token, start=start)).encode()


def decode_epoch(number: int, content: bytes) -> Epoch:
    """The epoch in an object's content. Raises ProtocolError."""
    if len(content) > MAX_EPOCH_BYTES:
        raise ProtocolError(f"epoch {number} has {len(content)} bytes, more than the {MAX_EPOCH_BYTES} allowed")
    fields = parse_object(content)
    try:
        check_format(fields, EPOCH_FORMAT, f"epoch {number}")
    except OSError as error:  # NewerFormat
        raise ProtocolError(str(error)) from error
    body = decode_record(fields, _EpochBody, f"epoch {number}")
    parent = None
    if body.parent is not None:
        parsed = parse_file_key(f"{body.parent}/{layout.MANIFEST}")
        if parsed is None or parsed[0].epoch >= number:
            raise ProtocolError(f"epoch {number} began from {body.parent!r:.80}, which is no checkpoint before it")
        parent = parsed[0]
    start = None if body.start is None else parse_name(body.start)
    return Epoch(number, parent, body.holder, body.began_wall_at, body.token, start)


def run_of(program: str) -> str:
    """The prefix of a program's run below the URL that its section names."""
    return program.replace(":", ".")


def url_of_run(url: str, run: str) -> str:
    """Where a run is. `run`: its prefix below the URL; empty: the URL leads to the run itself."""
    return "/".join(part for part in (url.rstrip("/"), run) if part)


def store_url(text: str) -> str:
    """Where an object store keeps something: `s3://bucket/prefix`, `gs://`, `az://`, or `file:///folder`.

    Raises ValueError if `text` names no such place.
    """
    parts = urlsplit(text)
    is_file = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
    is_store = parts.scheme in STORES and bool(parts.netloc) and parts.password is None
    if not (is_file or is_store) or parts.query or parts.fragment or any(character.isspace() for character in text):
        raise ValueError(
            f"is {text!r:.200}; write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER "
            f"(credentials come from where the provider's own tools look for them)"
        )
    return text
