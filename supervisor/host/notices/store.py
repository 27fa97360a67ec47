"""Which notices this daemon heard, kept for the next one: a small file in runtime_dir that holds for one boot.

The times in it are of the running clock, which begins anew with each boot, and so does the host's fate: what was kept
in another boot is forgotten. It is replaced in one step and not synced, because what has to be survived is the daemon's
end and not the host's.
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
MAX_BYTES = 1 << 20  # a thousand notices and more; what is larger is not ours


class NoticeStoreError(Exception):
    """The file can't be read or written; the text says why."""


class NoticeStore:
    """The file in the folder `runtime_dir`. `boot`: the id of this boot; None: not known, and nothing is kept."""

    def __init__(self, runtime_dir: Path, boot: str | None = None) -> None:
        self._path = runtime_dir / NAME
        self._boot = boot or read_boot_id()

    def load(self) -> list[RememberedNotice]:
        """What was kept in this boot; nothing if there is no file, or one of another boot. Raises KeepingError."""
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
        """Replaces what was kept. Raises KeepingError; the old content is there then."""
        if self._boot is None:
            return
        new = self._path.with_name(f".{NAME}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(encode(memories, self._boot))
            new.replace(self._path)
        except OSError as error:
            raise NoticeStoreError(f"cannot write {self._path}: {error.strerror}") from error


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
    return json.dumps({"version": VERSION, "boot_id": boot, "notices": notices}).encode()


def decode(content: bytes, boot: str | None) -> list[RememberedNotice]:
    """What was kept in the boot called `boot`; nothing of another one. Raises ValueError, with what is wrong."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(said, dict) or said.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    if boot is None or _text(said, "boot_id") != boot:
        return []
    notices = said.get("notices")
    if not isinstance(notices, list):
        raise ValueError("it has no list of notices")
    return [_remembered_notice(each) for each in notices]


def _remembered_notice(said: Any) -> RememberedNotice:
    if not isinstance(said, dict):
        raise ValueError("a notice in it is no object")
    received_at = _number(said, "received_at")
    if received_at is None:
        raise ValueError("a notice in it does not say when it was received")
    notice = Notice(
        source=_text(said, "source"),
        id=_text(said, "id"),
        kind=NoticeKind(_text(said, "kind")),
        certainty=Certainty(_text(said, "certainty")),
        deadline_at=_number(said, "deadline_at"),
        is_cancellable=_flag(said, "is_cancellable"),
        text=_text(said, "text"),
        deadline_wall_at=_number(said, "said_wall"),
    )
    return RememberedNotice(notice, received_at, _flag(said, "is_over"))


def _text(said: dict[str, Any], key: str) -> str:
    if not isinstance(value := said.get(key), str):
        raise ValueError(f"{key} in it is no text")
    return value


def _flag(said: dict[str, Any], key: str) -> bool:
    if not isinstance(value := said.get(key), bool):
        raise ValueError(f"{key} in it is neither true nor false")
    return value


def _number(said: dict[str, Any], key: str) -> float | None:
    value = said.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key} in it is no number")
    return float(value)
