"""The daemon's log on a terminal: what a job said is shown, and not obeyed."""

import logging
import os
import pty

import pytest
import structlog

from supervisor.host.daemon_log import daemon_log

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize("supervisor_format", [False, True])
def test_a_terminal_shows_control_characters_of_programs(supervisor_format: bool) -> None:
    reading, writing = pty.openpty()
    logger = logging.getLogger("test_terminal")
    logger.propagate = False
    with os.fdopen(writing, "w") as stream:
        handler = daemon_log._stream_handler(stream, supervisor_format, logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        if supervisor_format:
            logger.warning("worker.failed \x1b]0;owned\x07\x9b2J")
        else:
            bound = structlog.wrap_logger(
                logger,
                processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
                cache_logger_on_first_use=False,
            )
            bound.warning("worker.failed", error="\x1b]0;owned\x07\x9b2J")
        handler.flush()
        seen = os.read(reading, 65536).decode()
        logger.removeHandler(handler)
    os.close(reading)

    assert "^[]0;owned^G\\x9b2J" in seen
    assert "\x1b]" not in seen and "\x07" not in seen and "\x9b" not in seen
