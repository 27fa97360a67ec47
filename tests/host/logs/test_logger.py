"""The process that reads what programs print: who it belongs to, how it is followed, when it ends."""

import asyncio
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from supervisor.host.logs.capture import LogCapture, Tee
from supervisor.host.logs.link import LOCK, SOCKET
from supervisor.host.logs.messages import AttemptBegan
from supervisor.host.logs.start import start_logger
from tests.places import ROOT
from tests.reading import alive, content
from tests.waiting import wait_until

PATIENCE_S = 60.0  # for what takes well under a second, as the end of a logger that is only just started


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def daemons(state: Path) -> Iterator[Callable[[], LogCapture]]:
    """Makes pumps of one state folder, one after the other; closes what is left."""
    with ExitStack() as undo:

        def make() -> LogCapture:
            logs = LogCapture(state, close_timeout_s=PATIENCE_S)
            undo.callback(logs.close)
            logs.start()
            return logs

        yield make


@pytest.fixture
def logs(daemons: Callable[[], LogCapture]) -> LogCapture:
    return daemons()


def logger_of(logs: LogCapture) -> int:
    wait_until(lambda: logs.logger_pid is not None)
    assert logs.logger_pid is not None
    return logs.logger_pid


def another_logger(logs: LogCapture, than: int) -> int:
    wait_until(lambda: logs.logger_pid not in (None, than))
    assert logs.logger_pid is not None
    return logs.logger_pid


def wait_until_gone(pid: int) -> None:
    wait_until(lambda: not alive(pid))


def say(pipe: int, path: Path, line: bytes) -> None:
    """Prints a line and waits until it is the file's last."""
    os.write(pipe, line)
    wait_until(lambda: content(path).endswith(line))


@pytest.mark.integration
def test_killed_logger_is_replaced_without_an_effect_on_the_program(logs: LogCapture, tmp_path: Path):
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 0)
    say(pipe, path, b"before\n")
    first = logger_of(logs)

    os.kill(first, signal.SIGKILL)
    os.write(pipe, b"meanwhile\n")

    assert another_logger(logs, first) != first
    say(pipe, path, b"after\n")
    assert content(path) == b"before\nmeanwhile\nafter\n"
    os.close(pipe)


@pytest.mark.integration
@pytest.mark.slow
def test_logger_killed_repeatedly_loses_nothing_that_it_had_not_read(logs: LogCapture, tmp_path: Path):
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 0)
    logger = 0
    for number in range(4):
        logger = another_logger(logs, logger)
        say(pipe, path, b"line %d\n" % number)
        os.kill(logger, signal.SIGKILL)

    another_logger(logs, logger)
    say(pipe, path, b"last\n")
    assert content(path) == b"line 0\nline 1\nline 2\nline 3\nlast\n"
    os.close(pipe)


@pytest.mark.integration
def test_next_daemon_uses_the_same_logger_and_gets_its_pipes(daemons: Callable[[], LogCapture], tmp_path: Path):
    path = tmp_path / "out.log"
    first = daemons()
    pipe = first.open_pipe(path, 0, 0)
    say(pipe, path, b"one\n")
    logger = logger_of(first)

    first.detach()
    say(pipe, path, b"nobody\n")
    second = daemons()

    assert logger_of(second) == logger
    wait_until(lambda: second.open_pipe_count == 1)
    say(pipe, path, b"two\n")
    os.kill(logger, signal.SIGKILL)
    another_logger(second, logger)
    say(pipe, path, b"three\n")
    assert content(path) == b"one\nnobody\ntwo\nthree\n"
    os.close(pipe)


@pytest.mark.integration
def test_pipe_made_just_before_leaving_reaches_the_logger(daemons: Callable[[], LogCapture], tmp_path: Path):
    logs = daemons()
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)

    logs.detach()

    say(pipe, tmp_path / "out.log", b"heard\n")
    os.close(pipe)


@pytest.mark.integration
def test_logger_exits_without_daemon_and_pipes(logs: LogCapture, tmp_path: Path, state: Path):
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    logger = logger_of(logs)
    logs.detach()
    os.write(pipe, b"last words\n")

    os.close(pipe)

    wait_until_gone(logger)
    assert content(tmp_path / "out.log") == b"last words\n"
    assert not (state / SOCKET).exists()


@pytest.mark.integration
def test_close_ends_the_logger_even_if_a_grandchild_holds_the_pipe(logs: LogCapture, tmp_path: Path):
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    logger = logger_of(logs)
    os.write(pipe, b"last words\n")

    logs.close()

    wait_until_gone(logger)
    assert content(tmp_path / "out.log") == b"last words\n"
    with pytest.raises(BrokenPipeError):
        os.write(pipe, b"too late\n")
    os.close(pipe)


def test_no_logger_is_started_without_a_log(daemons: Callable[[], LogCapture], state: Path):
    logs = daemons()
    os.close(logs.open_pipe(None, 0, 0))
    asyncio.run(logs.clear(Path("/nonexistent")))

    logs.close()

    assert os.listdir(state) == []


@pytest.mark.integration
def test_logger_is_nobodys_child_and_inherits_nothing(
    logs: LogCapture, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SUPERVISOR_ATTEMPT", "/a/state:b:1")
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)

    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)
    say(pipe, tmp_path / "out.log", b"x\n")
    logger = logger_of(logs)

    proc = Path(f"/proc/{logger}")
    held = {re.sub(r"\d+", "N", os.readlink(each)) for each in (proc / "fd").iterdir()}
    assert held == {
        "/dev/null",
        *(re.sub(r"\d+", "N", str(path)) for path in (state / LOCK, state / "log-keeper.err", tmp_path / "out.log")),
        *("socket:[N]", "pipe:[N]", "anon_inode:[eventpoll]", "anon_inode:[eventfd]"),
    }
    assert f"pipe:[{os.fstat(theirs).st_ino}]" not in {os.readlink(each) for each in (proc / "fd").iterdir()}
    assert b"SUPERVISOR_ATTEMPT" not in (proc / "environ").read_bytes()
    assert os.getsid(logger) not in (os.getsid(0), 0)
    assert (proc / "stat").read_text().rpartition(")")[2].split()[1] != str(os.getpid())
    assert (proc / "oom_score_adj").read_text() == Path("/proc/self/oom_score_adj").read_text()
    assert (proc / "comm").read_text() == "stepkeeper-logs\n"
    assert (proc / "cwd").readlink() == Path("/")
    for each in (pipe, ours, theirs):
        os.close(each)


@pytest.mark.integration
def test_only_the_daemons_user_can_connect_to_the_logger(logs: LogCapture, tmp_path: Path, state: Path):
    os.close(logs.open_pipe(tmp_path / "out.log", 0, 0))
    logger_of(logs)

    assert stat.S_IMODE((state / SOCKET).stat().st_mode) == 0o600
    assert stat.S_IMODE((state / LOCK).stat().st_mode) == 0o600


@pytest.mark.integration
def test_second_logger_of_a_state_folder_exits(logs: LogCapture, tmp_path: Path, state: Path):
    os.close(logs.open_pipe(tmp_path / "out.log", 0, 0))
    logger = logger_of(logs)

    assert start_logger(state) is False

    assert logs.logger_pid == logger


@pytest.mark.integration
def test_a_state_folder_may_have_a_path_too_long_for_a_socket(tmp_path: Path):
    state = tmp_path / ("x" * 200)
    state.mkdir()
    logs = LogCapture(state, close_timeout_s=PATIENCE_S)
    logs.start()
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)

    say(pipe, tmp_path / "out.log", b"heard\n")

    os.close(pipe)
    logs.close()


@pytest.mark.integration
def test_logger_ignores_termination_signals(logs: LogCapture, tmp_path: Path):
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 0)
    say(pipe, path, b"before\n")
    logger = logger_of(logs)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(logger, number)
        say(pipe, path, b"%d\n" % number)

    assert logs.logger_pid == logger
    os.close(pipe)


@pytest.mark.integration
def test_logger_of_another_version_is_replaced_without_loss(
    daemons: Callable[[], LogCapture], tmp_path: Path, state: Path
):
    program = (
        f"import sys, supervisor; supervisor.__version__ = '0.0.1'; sys.argv.append({str(state)!r}); "
        "from supervisor.host.logs.logger import main; main()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=PATIENCE_S)
    old = int((state / LOCK).read_text() or "0")
    logs = daemons()
    pipe = logs.open_pipe(tmp_path / "out.log", 0, 0)

    os.write(pipe, b"heard\n")

    wait_until(lambda: content(tmp_path / "out.log") == b"heard\n")
    assert another_logger(logs, old) != old
    os.close(pipe)


@pytest.mark.integration
def test_logger_that_cannot_be_started_is_a_failure_of_every_log(tmp_path: Path, state: Path):
    (state / LOCK).mkdir()
    logs = LogCapture(state, close_timeout_s=PATIENCE_S)
    logs.start()
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 0)
    os.write(pipe, b"kept\n")

    wait_until(lambda: "cannot start the logger: IsADirectoryError" in logs.failures.get(path, ""))
    (state / LOCK).rmdir()

    wait_until(lambda: content(path) == b"kept\n")
    wait_until(lambda: not logs.failures)
    os.close(pipe)
    logs.close()


@pytest.mark.integration
@pytest.mark.slow
def test_stopped_logger_is_a_failure_and_blocks_nobody(tmp_path: Path, state: Path):
    logs = LogCapture(state, silence_limit_s=6.0, close_timeout_s=PATIENCE_S)
    logs.start()
    path = tmp_path / "out.log"
    pipe = logs.open_pipe(path, 0, 0)
    say(pipe, path, b"before\n")
    logger = logger_of(logs)

    os.kill(logger, signal.SIGSTOP)
    for number in range(200):  # none of this comes back if it waits for the logger
        os.close(logs.open_pipe(tmp_path / f"{number}.log", 0, 0))
    logs.reopen()
    os.write(pipe, b"meanwhile\n")
    wait_until(lambda: "has sent nothing for 6 s" in logs.failures.get(path, ""))
    os.kill(logger, signal.SIGCONT)

    wait_until(lambda: not logs.failures)
    wait_until(lambda: content(path) == b"before\nmeanwhile\n")
    wait_until(lambda: logs.open_pipe_count == 1)
    os.close(pipe)
    logs.close()


@pytest.mark.integration
def test_a_flood_loses_nothing(logs: LogCapture, tmp_path: Path):
    path = tmp_path / "out.log"
    line = b"x" * 99 + b"\n"
    pipe = logs.open_pipe(path, 0, 0)

    for _ in range(300):
        block = line * 1000
        while block:
            block = block[os.write(pipe, block) :]
    os.close(pipe)

    wait_until(lambda: path.stat().st_size == 30_000_000)
    assert content(path) == line * 300_000


@pytest.fixture
def freezable(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, for fsfreeze: from then on whoever writes to it hangs in the kernel."""
    image, folder = tmp_path / "image", tmp_path / "freezable"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, folder]):
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip(f"can't make a disk that hangs here: there is no {command[0]}")
        if done.returncode != 0:
            pytest.skip(f"can't make a disk that hangs here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["fsfreeze", "--unfreeze", folder], capture_output=True, check=False)
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.integration
@pytest.mark.slow
def test_hanging_disk_blocks_no_other_log_and_no_program(logs: LogCapture, tmp_path: Path, freezable: Path):
    hung, good = freezable / "out.log", tmp_path / "good.log"
    hung_pipe, good_pipe = logs.open_pipe(hung, 0, 0), logs.open_pipe(good, 0, 0)
    say(hung_pipe, hung, b"before\n")

    subprocess.run(["fsfreeze", "--freeze", freezable], check=True)
    os.write(hung_pipe, b"held\n")
    say(good_pipe, good, b"one\n")
    wait_until(lambda: "its disk has not answered" in logs.failures.get(hung, ""), 40.0)
    line = b"x" * 99 + b"\n"
    for _ in range(400):
        os.write(hung_pipe, line * 100)  # 4 MB, and nobody takes them
    say(good_pipe, good, b"two\n")
    subprocess.run(["fsfreeze", "--unfreeze", freezable], check=True)

    wait_until(lambda: b"its disk did not answer" in content(hung))
    wait_until(lambda: not logs.failures)
    say(hung_pipe, hung, b"after\n")
    assert content(good) == b"one\ntwo\n"
    begin, lost, rest = re.split(rb"\[stepkeeper dropped (\d+) bytes: its disk did not answer\]\n", content(hung))
    assert begin.startswith(b"before\nheld\n" + line)
    surplus = len(begin + rest) - len(b"before\nheld\nafter\n") + int(lost) - 4_000_000
    assert surplus in (0, 1)  # a newline before the note, if the loss began within a line
    for each in (hung_pipe, good_pipe):
        os.close(each)


@pytest.mark.integration
def test_beginning_of_an_attempt_is_behind_all_that_the_one_before_has_printed(logs: LogCapture, tmp_path: Path):
    path, began = tmp_path / "out.log", list[AttemptBegan]()
    logs.subscribers.on_attempt_began = began.append
    first = logs.open_pipe(path, 0, 0, Tee("job", 1, "stdout"))
    logs.begin_attempt("job", 1, "stdout", path)
    wait_until(lambda: len(began) == 1)
    os.write(first, b"x" * 60_000)
    os.close(first)

    second = logs.open_pipe(path, 0, 0, Tee("job", 2, "stdout"))
    logs.begin_attempt("job", 2, "stdout", path)
    os.write(second, b"second\n")
    wait_until(lambda: len(began) == 2)

    os.close(second)
    assert [(each.attempt, each.offset) for each in began] == [(1, 0), (2, 60_000)]
    assert {each.inode for each in began} == {path.stat().st_ino}


@pytest.mark.integration
@pytest.mark.parametrize("has_ended", [False, True])
def test_beginning_that_is_asked_for_late_is_where_the_attempt_began_to_print(
    has_ended: bool, logs: LogCapture, tmp_path: Path
):
    path, began = tmp_path / "out.log", list[AttemptBegan]()
    logs.subscribers.on_attempt_began = began.append
    first = logs.open_pipe(path, 0, 0, Tee("job", 1, "stdout"))
    say(first, path, b"first\n")
    second = logs.open_pipe(path, 0, 0, Tee("job", 2, "stdout"))
    say(second, path, b"second\n")
    if has_ended:
        for pipe in (first, second):
            os.close(pipe)
        wait_until(lambda: logs.open_pipe_count == 0)

    logs.begin_attempt("job", 2, "stdout", path)

    wait_until(lambda: len(began) == 1)
    assert (began[0].attempt, began[0].offset) == (2, len(b"first\n"))
    if not has_ended:
        for pipe in (first, second):
            os.close(pipe)


@pytest.mark.integration
def test_logger_that_dies_before_it_answers_leaves_the_beginning_to_the_next(logs: LogCapture, tmp_path: Path):
    path, began = tmp_path / "out.log", list[AttemptBegan]()
    logs.subscribers.on_attempt_began = began.append
    pipe = logs.open_pipe(path, 0, 0)
    logger = logger_of(logs)
    os.kill(logger, signal.SIGSTOP)
    logs.begin_attempt("job", 1, "stdout", path)

    os.kill(logger, signal.SIGKILL)

    wait_until(lambda: bool(began))
    os.close(pipe)
    assert [each.attempt for each in began] == [1]
