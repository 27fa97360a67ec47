"""Processes start as they should, their end is noticed at once, and a kill leaves nothing of them."""

import asyncio
import contextlib
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.host.blocking_calls import is_late
from supervisor.host.processes import tree
from supervisor.host.processes.credentials import find_credentials
from supervisor.host.processes.process_status import Exit, read_start_time
from supervisor.host.processes.spawning import SpawnError, SpawnErrorKind, look_within_limit
from tests.host.conftest import PATIENCE_S, Spawned, gone
from tests.reading import descriptors
from tests.waiting import stays_async, wait_until, wait_until_async

Start = Callable[..., Spawned]
KERNEL = tuple(int(word) for word in platform.release().split("-")[0].split(".")[:2])
HIDDEN = """
import os
from supervisor.host.processes import process_status

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(process_status.read_start_time(1), process_status.exit_of_zombie(1, 1))
"""
"""What somebody who is nobody sees of process 1, a shell of root's."""
TRACER = """
import ctypes, sys, time

PTRACE_SEIZE = 0x4206
print(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None), flush=True)
time.sleep(1000)
"""
"""Traces a process and never asks what became of it, as gdb at its prompt."""
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


@pytest.mark.integration
async def test_an_exit_code_is_noticed(start: Start) -> None:
    assert await start("sh", "-c", "exit 3").exit() == Exit(3, None)


@pytest.mark.integration
async def test_a_death_by_signal_is_noticed(start: Start) -> None:
    spawned = start("sleep", "100")

    assert spawned.process.send_signal(signal.SIGKILL, group=False)

    assert await spawned.exit() == Exit(None, signal.SIGKILL)


@pytest.mark.integration
async def test_the_exit_is_told_once(start: Start) -> None:
    first, second = start("true"), start("sh", "-c", "read line < /dev/null; exit 1")
    await first.exit()
    await second.exit()

    assert (first.exits, second.exits) == ([Exit(0, None)], [Exit(1, None)])


@contextlib.contextmanager
def too_many_open_files() -> Iterator[None]:
    """This process can open no further one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(next_one := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_one, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.integration
async def test_a_stop_signal_needs_no_descriptor(start: Start) -> None:
    spawned = start("sleep", "100")

    with too_many_open_files():
        spawned.process.note_descendants()
        assert spawned.process.send_signal(signal.SIGTERM, group=True)

    assert await spawned.exit() == Exit(None, signal.SIGTERM)


@pytest.mark.integration
async def test_an_end_waits_until_there_is_a_descriptor_to_look_at_it(start: Start) -> None:
    """The daemon has too many open files, as while many clients are connected."""
    spawned, loop, failures = start("sleep", "100", group_ends_with_it=True), asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    spawned.process.send_signal(signal.SIGKILL, group=False)
    with too_many_open_files():
        await asyncio.sleep(0.1)
        assert spawned.exits == []

    assert await spawned.exit() == Exit(None, signal.SIGKILL)
    assert failures == []


@pytest.mark.integration
async def test_an_exit_status_that_somebody_else_took_is_asked_of_the_pidfd(start: Start) -> None:
    spawned = start("sh", "-c", "exit 42")
    os.waitpid(spawned.process.pid, 0)  # noqa: ASYNC222 - the loop must not see it first

    assert await spawned.exit() == (Exit(42, None) if KERNEL >= (6, 15) else Exit(None, None))


@pytest.mark.integration
async def test_the_exit_status_is_known_while_a_debugger_holds_on_to_the_dead_process(start: Start) -> None:
    spawned = start("sleep", "100")
    tracer = start(sys.executable, "-c", TRACER, str(spawned.process.pid))
    if await tracer.line() != "0":
        pytest.skip("this host lets nobody trace")
    try:
        spawned.process.send_signal(signal.SIGKILL, group=False)

        assert await spawned.exit() == Exit(None, signal.SIGKILL)
    finally:
        tracer.process.send_signal(signal.SIGKILL, group=False)
        await tracer.exit()


@pytest.mark.integration
async def test_an_exit_is_noticed_while_nothing_else_happens_in_the_loop(start: Start) -> None:
    took = []
    for _ in range(5):
        spawned = start("sleep", "100")
        began = time.monotonic()
        spawned.process.send_signal(signal.SIGKILL, group=False)
        await spawned.exit()
        took.append(time.monotonic() - began)

    # what polls once a second takes half a second on average; the best three of five leave room for a busy machine
    assert sum(sorted(took)[:3]) < 0.3


@pytest.mark.integration
async def test_the_worker_leads_a_session_and_a_group_of_its_own(start: Start) -> None:
    spawned = start("sleep", "100")
    pid = spawned.process.pid

    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)


@pytest.mark.integration
async def test_nothing_of_the_daemon_is_inherited(start: Start) -> None:
    inheritable = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    spawned = start("sh", "-c", "ls /proc/self/fd | tr '\\n' ' '; readlink /proc/self/fd/0", environment={"A": "1"})

    line = await spawned.line()
    os.close(inheritable)

    assert line == "0 1 2 3 /dev/null"  # 3 is ls reading the folder


@pytest.mark.integration
async def test_environment_directory_and_umask_are_those_of_the_request(start: Start, tmp_path: Path) -> None:
    spawned = start(
        "sh",
        "-c",
        "pwd; umask; echo $GREETING $HOME",
        directory=tmp_path,
        environment={"GREETING": "hello", "PATH": os.environ["PATH"]},
        umask=0o027,
    )

    lines = [await spawned.line() for _ in range(3)]

    assert lines == [str(tmp_path), "0027", "hello"]


@pytest.mark.integration
async def test_the_command_is_found_in_the_programs_own_path(start: Start, tmp_path: Path) -> None:
    (tmp_path / "train").write_text("#!/bin/sh\necho trained\n")
    (tmp_path / "train").chmod(0o755)

    by_path = start("train", environment={"PATH": f"/nowhere:{tmp_path}"})
    by_directory = start("./train", directory=tmp_path, environment={})

    assert [await by_path.line(), await by_directory.line()] == ["trained", "trained"]


@pytest.mark.integration
@ROOT
async def test_a_worker_of_another_user_has_that_users_groups_only(start: Start) -> None:
    nobody = find_credentials("nobody")
    spawned = start("sh", "-c", "echo $(id -u) $(id -g) $(id -G)", credentials=nobody)

    assert await spawned.line() == f"{nobody.uid} {nobody.gid} {' '.join(map(str, nobody.groups))}"


@ROOT
def test_a_user_may_be_a_number() -> None:
    assert find_credentials("0").uid == 0


def test_a_user_that_does_not_exist_is_named() -> None:
    for user in ("no-such-user", "4000000000", "99999999999999999999"):
        with pytest.raises(SpawnError, match=f"cannot run as {user}: this host has no such user") as raised:
            find_credentials(user)
        assert raised.value.permanent


def _script(path: Path, content: str, mode: int) -> str:
    path.write_text(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.integration
async def test_failed_start_says_why(start: Start, tmp_path: Path) -> None:
    plain = _script(tmp_path / "plain", "#!/bin/sh\n", 0o644)
    no_line = _script(tmp_path / "no-line", "\0\1\2", 0o755)
    no_interpreter = _script(tmp_path / "no-interpreter", "#!/no/such/python\n", 0o755)
    cases: list[tuple[str, dict[str, object], SpawnErrorKind, str]] = [
        ("no-such-command", {}, SpawnErrorKind.NO_FILE, "there is no command 'no-such-command' in PATH"),
        ("/no/such/command", {}, SpawnErrorKind.NO_FILE, "there is no command '/no/such/command'"),
        (str(tmp_path), {}, SpawnErrorKind.NO_FILE, "there is no command"),
        (plain, {}, SpawnErrorKind.NOT_EXECUTABLE, f"{plain} is not executable; run chmod"),
        (no_line, {}, SpawnErrorKind.NOT_EXECUTABLE, "has a #! line"),
        (no_interpreter, {}, SpawnErrorKind.NO_FILE, "there is no '/no/such/python', which the first line"),
        ("true", {"directory": tmp_path / "missing"}, SpawnErrorKind.OTHER, "missing does not exist; create it"),
        ("true", {"directory": Path(plain)}, SpawnErrorKind.OTHER, "plain is not a directory"),
        ("true", {"environment": {"A=": "1", "PATH": "/bin"}}, SpawnErrorKind.OTHER, "illegal environment variable"),
        ("", {}, SpawnErrorKind.NOT_EXECUTABLE, "its command is empty"),
    ]
    for command, changes, kind, text in cases:
        with pytest.raises(SpawnError) as raised:
            start(command, **changes)

        assert text in str(raised.value)
        assert str(raised.value).startswith("cannot start test: ")
        assert (raised.value.kind, raised.value.permanent) == (kind, True)


async def test_a_lack_of_descriptors_passes(start: Start) -> None:
    taken: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(2):
            os.close(taken.pop())
        with pytest.raises(SpawnError, match=r"Too many open files.*ulimit -n") as raised:
            start("true", stdout=1)
    finally:
        for descriptor in taken:
            os.close(descriptor)

    assert not raised.value.permanent


@pytest.mark.integration
async def test_a_kill_takes_all_descendants_with_it(start_child: Start) -> None:
    spawned = start_child("family.py")
    descendants = [int(pid) for pid in (await spawned.line()).split()]

    spawned.process.kill_tree()

    assert await spawned.exit() == Exit(None, signal.SIGKILL)
    for pid in descendants:
        await gone(pid)


@pytest.mark.integration
async def test_a_slow_look_at_all_processes_delays_nobody_and_is_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, may_end = tree.stop_tree, threading.Event()

    def slow(pid: int, start_time: int) -> list[psutil.Process]:
        may_end.wait(PATIENCE_S)
        return look(pid, start_time)

    monkeypatch.setattr(tree, "stop_tree", slow)
    spawned = start("sleep", "100")

    spawned.process.kill_tree()
    spawned.process.kill_tree()  # nothing more: the first one is at it
    assert not spawned.process.has_ended
    rest = asyncio.create_task(asyncio.to_thread(spawned.process.kill_session))
    await stays_async(lambda: not rest.done(), "it waits for the look", 0.1)

    may_end.set()
    await rest
    assert await spawned.exit() == Exit(None, signal.SIGKILL)


@pytest.mark.integration
async def test_processes_are_killed_even_where_the_host_has_no_thread_to_spare(
    start: Start, no_threads: pytest.MonkeyPatch
) -> None:
    spawned = start("sleep", "100")

    spawned.process.kill_tree()
    no_threads.undo()

    assert await spawned.exit() == Exit(None, signal.SIGKILL)


@pytest.mark.integration
async def test_after_a_death_the_rest_of_the_session_is_killed(start_child: Start) -> None:
    spawned = start_child("family.py", "die")
    in_group, in_own_session, orphan = (int(pid) for pid in (await spawned.line()).split())
    await spawned.exit()
    pids = sorted((in_group, in_own_session, orphan))

    found = await asyncio.to_thread(spawned.process.kill_session)

    left_session = [pid for pid in pids if _session(pid) == pid and read_start_time(pid) is not None]
    for pid in set(pids) - set(left_session):
        await gone(pid)
    for pid in left_session:  # documented: only kill_tree, before the leader's death, finds it
        os.kill(pid, signal.SIGKILL)
    assert (found, len(left_session)) == (2, 1)


@pytest.mark.integration
async def test_a_group_that_ends_with_its_leader_is_dead_when_the_exit_is_told(start_child: Start) -> None:
    spawned = start_child("family.py", "leave", group_ends_with_it=True)
    pids = [int(pid) for pid in (await spawned.line()).split()]
    own_session = next(pid for pid in pids if _session(pid) == pid)

    assert await spawned.exit() == Exit(3, None)
    for pid in set(pids) - {own_session}:
        await gone(pid)
    os.kill(own_session, signal.SIGKILL)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@pytest.mark.integration
async def test_a_signal_to_the_group_reaches_its_members(start: Start) -> None:
    spawned = start("sh", "-c", "sleep 100 & echo $!; wait")
    member = int(await spawned.line())

    spawned.process.send_signal(signal.SIGTERM, group=True)

    await gone(member)
    assert await spawned.exit() == Exit(None, signal.SIGTERM)


@pytest.mark.integration
async def test_a_signal_to_the_process_reaches_it_alone(start: Start) -> None:
    spawned = start("sh", "-c", "sleep 100 & echo $!; wait")
    member = int(await spawned.line())

    spawned.process.send_signal(signal.SIGKILL, group=False)
    await spawned.exit()

    assert read_start_time(member) is not None
    assert spawned.process.kill_session() == 1


@pytest.mark.integration
async def test_nothing_is_sent_once_the_process_is_gone(start: Start) -> None:
    spawned = start("true")
    await spawned.exit()

    assert not spawned.process.send_signal(signal.SIGKILL, group=False)
    assert not spawned.process.send_signal(signal.SIGKILL, group=True)
    spawned.process.kill_tree()
    assert spawned.process.kill_session() == 0


@pytest.mark.integration
async def test_a_number_that_belongs_to_somebody_else_by_now_is_left_alone(start: Start) -> None:
    somebody = start("sleep", "100")
    stranger = somebody.process
    real = stranger.start_time

    stranger.start_time = real - 1  # as if an earlier process of this number had been ours
    killed = stranger.kill_session()
    stranger.start_time = real

    assert killed == 0
    assert read_start_time(stranger.pid) == real


@pytest.mark.integration
async def test_a_group_whose_number_belongs_to_somebody_else_by_now_is_left_alone(start: Start) -> None:
    somebody = start("sleep", "100")
    stranger = somebody.process
    real = stranger.start_time

    stranger.start_time = real - 1  # as if an earlier process of this number had been ours
    stranger.kill_tree()
    await asyncio.to_thread(stranger.kill_session)  # waits for it
    stranger.start_time = real
    stranger.send_signal(signal.SIGTERM, group=False)

    assert await somebody.exit() == Exit(None, signal.SIGTERM)


@pytest.mark.integration
async def test_identity_is_none_where_no_process_is(start: Start) -> None:
    spawned = start("true")
    before = spawned.process.start_time
    await spawned.exit()

    assert before > 0
    assert read_start_time(spawned.process.pid) is None
    assert read_start_time(os.getpid()) is not None


@pytest.mark.integration
def test_a_process_that_may_not_be_looked_at_is_none_of_ours() -> None:
    hide = ["unshare", "--pid", "--fork", "--mount", "sh", "-c", 'mount -t proc -o hidepid=1 proc /proc && "$@"', "sh"]
    if os.geteuid() != 0 or subprocess.run([*hide, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can make a /proc that hides processes")

    seen = subprocess.run([*hide, sys.executable, "-c", HIDDEN], check=True, capture_output=True, text=True).stdout

    assert seen == "0 None\n"


@pytest.mark.integration
async def test_descriptors_do_not_grow(start: Start) -> None:
    for _ in range(3):
        await start("true").exit()
    before = descriptors()

    spawned = [start("true") for _ in range(50)]
    for each in spawned:
        await each.exit()

    assert len(os.listdir("/proc/self/fd")) - before == 50  # the test's own pipes


MANY = """
import os, signal, sys
for _ in range(300):
    if os.fork() == 0:
        signal.pause()
print("they live", flush=True)
signal.pause()
"""


@pytest.mark.hostile
@pytest.mark.integration
async def test_who_has_many_descendants_holds_up_nobody_who_notes_some(start: Start, tmp_path: Path) -> None:
    spawned = start(sys.executable, "-S", "-c", MANY)
    pid, number = spawned.process.pid, spawned.process.start_time
    await wait_until_async(lambda: len(tree.descendants(pid, number)) == 300, "they live")

    began = time.thread_time()
    some = spawned.process.note_descendants(30)
    some_s = time.thread_time() - began
    began = time.thread_time()
    everyone = spawned.process.note_descendants()
    all_s = time.thread_time() - began
    spawned.process.send_signal(signal.SIGKILL, group=False)
    await spawned.exit()

    assert (some, everyone) == (False, True)
    assert some_s < all_s / 3
    assert spawned.process.kill_session() >= 300


@pytest.mark.hostile
@ROOT
def test_a_user_whose_files_did_not_answer_in_time_is_passed_over_and_nobody_else() -> None:
    """Each start could be held up anew, by files that answer a moment too late."""
    slow, other, is_over = 41_901, 41_902, threading.Event()
    with pytest.raises(SpawnError, match="does not answer"):
        look_within_limit(slow, "p", "/slow", is_over.wait)
    is_over.set()
    wait_until(lambda: not is_late(("paths", slow)), "the look has come back")

    with pytest.raises(SpawnError, match="does not answer"):
        look_within_limit(slow, "q", "/other", lambda: None)
    look_within_limit(other, "r", "/other", lambda: None)
