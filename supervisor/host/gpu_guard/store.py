"""The file with what has to be known of GPUs after the daemon. Bad content costs that content, never the daemon."""

import contextlib
import json
from pathlib import Path

import structlog

from supervisor.core.gpus.records import FORMAT, GuardRecords
from supervisor.protocol import durable
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.wire.codec import decode_stored, fit_record, parse_object, to_plain

FILE = "gpus.json"
MAX_BYTES = 1 << 24
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = structlog.get_logger()


class GuardStore:
    """Reads the file once and writes it; for a thread, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._is_newer = False
        self._failed = False

    def load(self) -> GuardRecords:
        """What an earlier daemon left; nothing if there is none, or it is damaged, and then it is set aside."""
        try:
            body = parse_object(durable.read_file(self._path, MAX_BYTES))
            check_format(body, FORMAT, FILE)
            records, damaged = decode_stored(body, GuardRecords, FILE)
        except FileNotFoundError:
            return GuardRecords()
        except NewerFormat as error:
            self._is_newer = True
            log.error("gpus.newer_format", error=str(error), effect="no GPU is left out for what it says")
            return GuardRecords()
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_name(f"{FILE}.damaged"))
            log.error("gpus.set_aside", error=str(error), effect="which GPUs were left out is forgotten")
            return GuardRecords()
        if damaged:
            log.error("gpus.damaged", path=str(self._path), damaged=damaged, effect="these parts are forgotten")
        return records

    def write(self, records: GuardRecords) -> None:
        """Writes it durably. If that fails, the log says so once, and the next change tries again."""
        if self._is_newer:
            return
        text = json.dumps(to_plain(fit_record(records)), indent=1, sort_keys=True, allow_nan=False)
        try:
            durable.write_file(self._path, text.encode("utf-8", "replace") + b"\n", mode=0o600)
        except OSError as error:
            if not self._failed:
                log.error("gpus.not_stored", error=str(error), effect="a new daemon would use GPUs that are left out")
            self._failed = True
        else:
            self._failed = False


def read_boot_id() -> str:
    """The id of this boot of the host; "" if the kernel does not tell."""
    try:
        return BOOT_ID.read_text().strip()[:64]
    except OSError:
        return ""
