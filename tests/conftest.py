"""What holds for all tests."""

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.fast_clock import FastClockLoop
from tests.fuzzing import CASES, QUICK

pytest_plugins = ("tests.tiers", "tests.mirror.fixtures")

# Workers that tests start without a daemon leave nothing in the home of who runs the tests. Set before any module of
# tests is imported: some make this process a worker as they are.
os.environ["XDG_STATE_HOME"] = STATE_HOME = tempfile.mkdtemp(prefix="stepkeeper-state-home-")

# Tests build much at once that is no garbage, such as the syntax trees of all files: to look for garbage at every 700
# new objects, as by default, more than doubles the time of parsing them.
gc.set_threshold(10_000)

# the same cases in every run, however busy the machine is: a suite that fails by chance tells nothing
settings.register_profile("suite", deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("suite"), max_examples=10)
settings.load_profile("quick" if QUICK else "suite")


def pytest_configure(config: pytest.Config) -> None:
    """Removes the folder at the end."""
    config.add_cleanup(partial(shutil.rmtree, STATE_HOME, ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With FUZZ_CASES only the tests that feed parsers run."""
    if CASES:
        others = [item for item in items if "fuzz" not in item.keywords]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if "fuzz" in item.keywords]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Has the garbage collector pass over the hundreds of thousands of objects of which libraries and tests are made,
    while they are made too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_sessionfinish() -> None:
    """At the end pytest searches all objects for garbage, five times; `make quick` does without what that may say."""
    if QUICK:
        gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of a test."""
    is_fast = item.get_closest_marker("fast_clock") is not None
    return {"fast clock": FastClockLoop} if is_fast else {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session", autouse=True)
def _interruptible_children() -> None:
    """Children inherit ignored signals: SIGINT of what a shell starts in the background, SIGHUP of what nohup does."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _state_of_the_process() -> dict[str, object]:
    """What a test could leave to later ones: blocked signals, which their children would inherit, handlers, a trace."""
    handlers = {f"handler of {number.name}": signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    return {"blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()), "trace": sys.gettrace(), **handlers}


def _logical_devices() -> int | None:
    """How many TensorFlow has in this process; None if it has not made them yet."""
    context = sys.modules.get("tensorflow.python.eager.context")
    made = None if context is None else context.context_safe()
    return None if made is None or made._context_handle is None else len(made.list_logical_devices("CPU"))


@pytest.fixture(autouse=True)
def _nothing_is_left_to_other_tests() -> Iterator[None]:
    """A test that leaves the process changed fails itself, and not the tests after it."""
    before = _state_of_the_process()
    yield
    after = _state_of_the_process()
    sys.settrace(before["trace"])  # type: ignore[arg-type]
    assert after == before
    assert _logical_devices() in (None, 2), "it uses TensorFlow without the fixture `two_replicas`"


@pytest.fixture(scope="session")
def two_replicas() -> Any:
    """A strategy over two logical CPU devices.

    Whatever test uses TensorFlow in its own process has this first: its devices are made once in a process.
    """
    import worker

    return worker.strategy(replicas=2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 256 KiB, which few checkpoints fit into."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "stepkeeper-test", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs to mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
