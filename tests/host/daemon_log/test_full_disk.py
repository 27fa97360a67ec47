"""What becomes of the daemon's own log while its disk is full."""

import logging
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from supervisor.host.daemon_log import daemon_log


def test_a_full_disk_is_said_once_and_then_what_the_log_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "supervisord.log"
    path.symlink_to("/dev/full")
    handler = daemon_log._LogHandler(path)
    record = logging.LogRecord("log", logging.INFO, "", 0, "program.changed", None, None)

    with capture_logs() as logged:
        for _ in range(3):
            handler.handle(record)
        path.unlink()
        handler.close()  # as `reopen` does
        for _ in range(2):
            handler.handle(record)
    handler.close()

    consequence = "what happens meanwhile is not in the log; programs are supervised as ever"
    assert capfd.readouterr().err == f"cannot write {path}: [Errno 28] No space left on device; {consequence}\n"
    assert path.read_text() == "program.changed\n" * 2
    assert logged == [
        {"event": "log.written_again", "log_level": "warning", "path": str(path), "lost_records": 3},
    ]
