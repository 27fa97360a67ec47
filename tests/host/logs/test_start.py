"""Starting loggers, and reaping those that were our children."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from supervisor.host.logs.start import reap_logger

FIRST_BEYOND_SELECT = 1024


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """As of a daemon with hundreds of programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FIRST_BEYOND_SELECT), hard))
    with ExitStack() as opened:
        while opened.enter_context(open(os.devnull)).fileno() < FIRST_BEYOND_SELECT:
            pass
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.integration
@pytest.mark.usefixtures("many_open_files")
def test_a_logger_that_is_just_ending_is_reaped_by_a_daemon_with_many_programs() -> None:
    logger = subprocess.Popen(["sleep", "0.1"])

    reap_logger(logger.pid)

    with pytest.raises(ChildProcessError):
        os.waitpid(logger.pid, os.WNOHANG)
    logger.returncode = 0
