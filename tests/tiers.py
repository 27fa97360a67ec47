"""Holds the tiers of tests to what they claim: a test that starts a process is marked `integration`, a long one `slow`.

`make quick` runs what has neither marker, nor `thorough`, so that everybody runs it after each edit. A test that starts
a process without saying so fails here. One that takes over `QUICK_LIMIT_S` fails in `make quick` and `make check`
(`--fail-long-tests`), where a person sees on which machine, and is listed at the end of every other run: how long a
test takes says as much about the machine as about the test. Its time is wall time less the time for which its thread
was ready to run and waited for a processor.
"""

import os
import platform
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic  # a test may put another clock into the module

import pytest

QUICK_LIMIT_S = 5.0
"""What an unmarked test may take. Fixtures don't count: the first one that needs TensorFlow imports it for all."""
INTEGRATION_FOLDERS = ("tests/system/", "tests/systemd/", "tests/deploy/", "tests/slurm/test_")
"""Every test in these has real processes."""
_WEIGHTS = {"slow": 10.0, "integration": 2.0, "tensorflow": 0.5}
"""About how many seconds a test takes, by its marker; the greatest of them applies."""
_UNMARKED_S = 0.05  # a file with many of these may take a minute too
_IMPORTS_TENSORFLOW = frozenset(
    {
        "import tensorflow as tf",
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator",
        "from tests.worker import training",
        "from tests.worker.power_jobs import KINDS, Kind",
        "from worker.devices.gpu_check import VISIBLE, asked_gpus, reason_in",
    }
)
"""Lines of a test file that imports TensorFlow, or what comes with it and takes as long."""
_MARKS_OF_ALL = re.compile(r"^pytestmark = (\[[^]]*]|.*)", re.MULTILINE)
"""What a test file says of all its tests, in one line or in a list of several."""
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"})
"""Python's audit events of a process that begins."""
_OVER_LIMIT = "took_s"
"""The property of a test's report with which a worker of pytest-xdist tells how long it took."""

_started: list[str] = []
"""The commands that the present test started."""
_starting_fixtures: set[pytest.FixtureDef[object]] = set()
"""Fixtures that started a process: whoever uses one of them later uses that process, whatever its scope. Not their
names: several files have a fixture called `daemon`."""


def _audit(event: str, arguments: tuple[object, ...], starts: frozenset[str] = _STARTS) -> None:
    if event in starts:  # a default: while the interpreter ends, the names of this file are None
        _started.append(f"{event} {arguments[0] if arguments else ''}".strip())


platform.processor()  # starts `uname`, once for each process; libraries ask for it while they are imported
sys.addaudithook(_audit)


def _waited_for_processor_s() -> float:
    """How long this thread was ready to run and did not (`/proc/thread-self/schedstat`, in nanoseconds)."""
    return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9


def _clock_s() -> float:
    return monotonic() - _waited_for_processor_s()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fail-long-tests", action="store_true", help=f"fail unmarked tests over {QUICK_LIMIT_S:g} s")


def _left_out(config: pytest.Config) -> set[str]:
    """The markers none of whose tests run; none where `-m` says more than which ones those are."""
    expression: str = config.option.markexpr
    words = expression.replace(" and ", " ").split()
    is_plain = words[::2] == ["not"] * (len(words) // 2)
    return set(words[1::2]) if is_plain else set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files uncollected of whose tests none runs: to import them all takes each process seconds."""
    if not (left_out := _left_out(config)) or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    marks = set[str]()
    if os.path.relpath(collection_path, config.rootpath).startswith(INTEGRATION_FOLDERS):
        marks.add("integration")
    if of_all := _MARKS_OF_ALL.search(text):
        marks.update(re.findall(r"\bmark\.(\w+)", of_all[1]))
    if _IMPORTS_TENSORFLOW.intersection(text.splitlines()):
        marks.add("tensorflow")
    return True if marks & left_out else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails if a file imported TensorFlow all the same, which `make quick` would pay for at each edit."""
    if "tensorflow" in _left_out(session.config) and "tensorflow" in sys.modules:
        lines = ", ".join(sorted(_IMPORTS_TENSORFLOW))
        raise pytest.UsageError(
            f"a test file imports TensorFlow without one of the lines by which it is known: {lines}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks the tests of `INTEGRATION_FOLDERS`; once `-m` has left some out, puts the files that take longest first.

    Where several processes take a file each (`--dist loadfile --no-loadscope-reorder`), none is left with a long one at
    the end. With one process the order is as written.
    """
    for item in items:
        if item.nodeid.startswith(INTEGRATION_FOLDERS):
            item.add_marker(pytest.mark.integration)
    yield
    if "PYTEST_XDIST_WORKER" in os.environ:
        weights = Counter[str]()
        for item in items:
            weights[_file_of(item)] += max(
                [_WEIGHTS.get(mark.name, 0.0) for mark in item.iter_markers()] + [_UNMARKED_S]
            )
        items.sort(key=lambda item: -weights[_file_of(item)])


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _started.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
    before = len(_started)
    result = yield
    if len(_started) > before:
        _starting_fixtures.add(fixturedef)
    return result


def _fixtures_of(item: pytest.Item) -> list[pytest.FixtureDef[object]]:
    """The fixtures that the test uses, also through others: of several with one name, the last one applies."""
    assert isinstance(item, pytest.Function)
    return [definitions[-1] for definitions in item._fixtureinfo.name2fixturedefs.values() if definitions]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test that passed, but is not what its markers say."""
    began_s = _clock_s()
    yield
    took_s = _clock_s() - began_s
    used = [fixture.argname for fixture in _fixtures_of(item) if fixture in _starting_fixtures]
    if (_started or used) and item.get_closest_marker("integration") is None:
        which = _started[0][:100] if _started else f"by the fixture {used[0]}"
        pytest.fail(f"it starts processes ({which}); mark it `integration`", pytrace=False)
    if took_s > QUICK_LIMIT_S and item.get_closest_marker("slow") is None:
        if item.config.option.fail_long_tests:
            pytest.fail(
                f"it took {took_s:.1f} s, over {QUICK_LIMIT_S:g}; make it faster or mark it `slow`", pytrace=False
            )
        item.user_properties.append((_OVER_LIMIT, took_s))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the tests that took over the limit and are not marked `slow`."""
    reports = [report for report in terminalreporter.stats.get("passed", ()) if report.when == "call"]
    long = {report.nodeid: dict(report.user_properties).get(_OVER_LIMIT) for report in reports}
    for test, took_s in long.items():
        if took_s is not None:
            terminalreporter.write_line(f"not marked `slow`, but took {took_s:.1f} s: {test}")
