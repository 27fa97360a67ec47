"""Stores the notices for the next daemon of this boot, in a small file in runtime_dir.

Its times are monotonic, so they are valid for one boot only, and so are the notices: a file of another boot is ignored.
Beside them stands how long the host had been suspended by then, which that clock leaves out.
It is replaced atomically but not synced, because it has to survive the daemon and not the host. So it is also replaced
where a later version wrote it: what still holds is reported again by its source.

Format 1 had `version` for `format`, the fields of a notice beside `received_at`, and other names for two of them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.core.notices.active import SLEPT_S, RememberedNotice
from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.notices.source import read_clocks
from supervisor.host.processes.process_status import read_boot_id
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.wire.codec import decode_record, encode_record, parse_object

NAME = "notices.json"
FORMAT = 2
MAX_BYTES = 1 << 20  # over a thousand notices; a larger file is not from this program


@dataclass(frozen=True, slots=True)
class _StoredNotices:
    boot_id: str
    notices: tuple[RememberedNotice, ...]
    format: int = FORMAT
    asleep_s: float | None = None


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
            return decode(content, self._boot, read_clocks().asleep_s)
        except (ValueError, NewerFormat) as error:
            raise NoticeStoreError(f"cannot use {self._path}: {error}") from error

    def save(self, notices: Iterable[RememberedNotice]) -> None:
        """Replaces the stored notices. Raises NoticeStoreError; the old content is there then."""
        if self._boot is None:
            return
        new = self._path.with_name(f".{NAME}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(encode(notices, self._boot, read_clocks().asleep_s))
            new.replace(self._path)
        except (OSError, ValueError) as error:  # the second: a number that is not finite
            raise NoticeStoreError(f"cannot write {self._path}: {getattr(error, 'strerror', error)}") from error


class NoticeSaver:
    """Saves in a thread of its own, so that nobody waits for the disk. Of what comes meanwhile only the newest is
    saved. `on_error`: called in the event loop's thread if that failed.
    """

    def __init__(self, store: NoticeStore, on_error: Callable[[NoticeStoreError], None]) -> None:
        self._store = store
        self._on_error = on_error
        self._calls = BlockingCalls()
        self._newest: list[RememberedNotice] | None = None
        self._saving: asyncio.Task[None] | None = None

    def save(self, notices: Iterable[RememberedNotice]) -> None:
        """Has the stored notices replaced soon."""
        self._newest = list(notices)
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save_newest())

    async def _save_newest(self) -> None:
        while (notices := self._newest) is not None:
            self._newest = None
            try:
                await self._calls.run(None, self._store.save, notices)
            except NoticeStoreError as error:
                self._on_error(error)
            except RuntimeError as error:  # the host has no thread to spare
                self._on_error(NoticeStoreError(str(error)))

    async def flush(self, timeout_s: float) -> None:
        """Waits until all is saved; a disk that does not answer is left behind."""
        if self._saving is not None:
            await asyncio.wait({self._saving}, timeout=timeout_s)


def encode(notices: Iterable[RememberedNotice], boot: str, asleep_s: float | None = None) -> bytes:
    """The file's content. `asleep_s`: as in ClockReading."""
    return encode_record(_StoredNotices(boot, tuple(notices), asleep_s=asleep_s)).encode()


def decode(content: bytes, boot: str | None, asleep_s: float | None = None) -> list[RememberedNotice]:
    """The notices stored in the boot `boot`; none if the file is of another one. `asleep_s`: by now.

    Raises ValueError, which says why, and NewerFormat.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    fields = parse_object(content)
    if check_format(fields, FORMAT, NAME) == 1:
        fields = _from_format_1(fields)
    stored = decode_record(fields, _StoredNotices, NAME)
    if boot is None or stored.boot_id != boot:
        return []
    if asleep_s is None or stored.asleep_s is None:
        return list(stored.notices)
    slept_s = asleep_s - stored.asleep_s
    if slept_s <= SLEPT_S:
        return list(stored.notices)
    return [
        replace(notice, notice=notice.notice.moved(-slept_s), received_at=notice.received_at - slept_s)
        for notice in stored.notices
    ]


def _from_format_1(fields: Mapping[str, Any]) -> dict[str, Any]:
    notices = fields.get("notices")
    if not isinstance(notices, list) or not all(isinstance(notice, dict) for notice in notices):
        raise ValueError("it has no list of notices")
    return {
        "boot_id": fields.get("boot_id"),
        "notices": [
            {
                "notice": {**notice, "deadline_wall_at": notice.get("said_wall")},
                "received_at": notice.get("received_at"),
                "is_expired": notice.get("is_over"),
            }
            for notice in notices
        ],
    }
