"""Stores the notices for the next daemon of this boot, in a small file in runtime_dir.

Its times are monotonic, so they are valid for one boot only, and so are the notices: a file of another boot is ignored.
It is replaced atomically but not synced, because it has to survive the daemon and not the host.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from supervisor.core.notices.active import RememberedNotice
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.host.processes.process_status import read_boot_id

NAME = "notices.json"
VERSION = 1
MAX_BYTES = 1 << 20  # over a thousand notices; a larger file is not from this program


class NoticeStoreError(Exception):
    """The file can't be read or written; the text says why."""


class NoticeStore:
    """The file in the folder `runtime_dir`. `boot`: the id of this boot; None: not known, and nothing is stored."""

    def __init__(self, runtime_dir: Path, boot: str | None = None) -> None:
        self._path = runtime_dir / NAME
        self._boot = boot or read_boot_id()

    def load(self) -> list[RememberedNotice]:
        """The notices of this boot; none if there is no file, or one of another boot. Raises NoticeStoreError."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NoticeStoreError(f"cannot read {self._path}: {error.strerror}") from error
        try:
            return decode(content, self._boot)
        except ValueError as error:
            raise NoticeStoreError(f"cannot use {self._path}: {error}") from error

    def save(self, memories: Iterable[RememberedNotice]) -> None:
        """Replaces the stored notices. Raises NoticeStoreError; the old content is there then."""
        if self._boot is None:
            return
        new = self._path.with_name(f".{NAME}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(encode(memories, self._boot))
            new.replace(self._path)
        except (OSError, ValueError) as error:  # the second: a number that is not finite
            raise NoticeStoreError(f"cannot write {self._path}: {getattr(error, 'strerror', error)}") from error


def encode(memories: Iterable[RememberedNotice], boot: str) -> bytes:
    """The file's content."""
    notices = [
        {
            "source": each.notice.source,
            "id": each.notice.id,
            "kind": each.notice.kind.value,
            "certainty": each.notice.certainty.value,
            "deadline_at": each.notice.deadline_at,
            "is_cancellable": each.notice.is_cancellable,
            "text": each.notice.text,
            "said_wall": each.notice.deadline_wall_at,
            "received_at": each.received_at,
            "is_over": each.is_expired,
        }
        for each in memories
    ]
    return json.dumps({"version": VERSION, "boot_id": boot, "notices": notices}, allow_nan=False).encode()


def decode(content: bytes, boot: str | None) -> list[RememberedNotice]:
    """The notices stored in the boot `boot`; none if the file is of another one. Raises ValueError, which says why."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    try:
        fields = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from None
    if not isinstance(fields, dict) or fields.get("version") != VERSION:
        raise ValueError(f"its version is not {VERSION}")
    if boot is None or _text_field(fields, "boot_id") != boot:
        return []
    notices = fields.get("notices")
    if not isinstance(notices, list):
        raise ValueError("it has no list of notices")
    return [_remembered_notice(each) for each in notices]


def _remembered_notice(fields: Any) -> RememberedNotice:
    if not isinstance(fields, dict):
        raise ValueError("a notice is not an object")
    received_at = _number_field(fields, "received_at")
    if received_at is None:
        raise ValueError("a notice has no received_at")
    notice = Notice(
        source=_text_field(fields, "source"),
        id=_text_field(fields, "id"),
        kind=NoticeKind(_text_field(fields, "kind")),
        certainty=Certainty(_text_field(fields, "certainty")),
        deadline_at=_number_field(fields, "deadline_at"),
        is_cancellable=_flag_field(fields, "is_cancellable"),
        text=_text_field(fields, "text"),
        deadline_wall_at=_number_field(fields, "said_wall"),
    )
    return RememberedNotice(notice, received_at, _flag_field(fields, "is_over"))


def _text_field(fields: dict[str, Any], key: str) -> str:
    if not isinstance(value := fields.get(key), str):
        raise ValueError(f"{key} is not text")
    return value


def _flag_field(fields: dict[str, Any], key: str) -> bool:
    if not isinstance(value := fields.get(key), bool):
        raise ValueError(f"{key} is neither true nor false")
    return value


def _number_field(fields: dict[str, Any], key: str) -> float | None:
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} is not a number")
    return float(value)
