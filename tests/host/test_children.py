"""How a child starts: whose it is, where, and with what. Which kinds there are: tests/system/test_children.py."""

import asyncio
import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.host import children
from supervisor.host.children import Configured, Identity, start_configured, start_own
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.host.processes.credentials import find_credentials
from tests.system.harness import let_others_in
from tests.waiting import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.hostile, pytest.mark.integration]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


def output_of(folder: Path, *argv: str, directory: Path | None = None, user: str = "nobody") -> str:
    with (folder / "output").open("w+b") as output:
        who = find_credentials(user).identity
        streams = (output.fileno(), output.fileno())
        child = Configured(argv, {"PATH": "/usr/bin:/bin"}, *streams, directory=directory, user=who)
        assert start_configured(child).wait(TIMEOUT_S) == 0
        output.seek(0)
        return output.read().decode().strip()


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A folder that everybody may enter who gets there, in one that only root may enter."""
    let_others_in(tmp_path)
    (tmp_path / "roots" / "hidden").mkdir(parents=True)
    (tmp_path / "roots").chmod(0o700)
    return tmp_path / "roots" / "hidden"


@needs_root
def test_a_link_in_place_of_its_directory_leads_a_user_nowhere(tmp_path: Path, hidden: Path) -> None:
    (tmp_path / "link").symlink_to(hidden)

    with pytest.raises(OSError, match="Permission denied") as refused:
        output_of(tmp_path, "/bin/pwd", directory=tmp_path / "link")

    assert refused.value.errno == errno.EACCES
    assert output_of(tmp_path, "/bin/pwd", directory=tmp_path) == str(tmp_path)


@needs_root
def test_a_child_has_its_users_groups_and_none_of_our_descriptors(tmp_path: Path) -> None:
    kept = os.open("/etc/shadow", os.O_RDONLY)
    os.set_inheritable(kept, True)
    who = find_credentials("nobody")

    ids = output_of(tmp_path, "/bin/sh", "-c", "echo $(id -u) $(id -g) $(id -G)")
    descriptors = output_of(tmp_path, "/bin/ls", "/proc/self/fd")
    os.close(kept)

    assert ids == f"{who.uid} {who.gid} {' '.join(map(str, who.groups))}"
    assert descriptors.split() == ["0", "1", "2", "3"]  # 3 is ls reading the folder


LEASES = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(os.open(sys.argv[1], os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def leased(file: Path, uid: int) -> Iterator[None]:
    """The file's owner has a lease on it: whoever opens it waits for `lease-break-time` (proc(5)), usually 45 s."""
    command = ["/usr/bin/python3", "-c", LEASES, str(file)]
    with subprocess.Popen(command, user=uid, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


def started_by_us() -> set[int]:
    """The pids of the children of this process, those of all its threads."""
    return {child.pid for child in psutil.Process().children()}


@needs_root
@pytest.mark.parametrize("leases", ["command", "interpreter"])
def test_a_user_who_lets_exec_wait_holds_nobody_up_and_is_not_waited_for_twice(tmp_path: Path, leases: str) -> None:
    who = find_credentials("nobody")
    let_others_in(tmp_path)
    (tmp_path / "interpreter").write_bytes(Path("/bin/sh").read_bytes())
    (tmp_path / "command").write_text(f"#!{tmp_path}/interpreter\nexec true\n")
    for file in (tmp_path / "interpreter", tmp_path / "command"):
        file.chmod(0o755)
        os.chown(file, who.uid, who.gid)
    began_with = started_by_us()

    began = time.monotonic()
    with leased(tmp_path / leases, who.uid):
        with pytest.raises(TimeoutError, match="exec") as refused:
            output_of(tmp_path, str(tmp_path / "command"))
        first_s = time.monotonic() - began
        children._hanging[who.uid].join(TIMEOUT_S)
        again = time.monotonic()
        with pytest.raises(TimeoutError, match="an earlier start as the same user took more than 2 s"):
            output_of(tmp_path, str(tmp_path / "command"))
        again_s = time.monotonic() - again
        gone = wait_until(lambda: len(started_by_us() - began_with) == 1, "the child is gone; the holder is not")
        wait_until(lambda: not children._passed_over.left_s(who.uid, time.monotonic()), "a second has passed", 5.0)

    assert gone
    assert refused.value.errno == errno.ETIMEDOUT
    assert first_s < 2 * children.EXEC_LIMIT_S
    assert again_s < children.EXEC_LIMIT_S / 2
    assert output_of(tmp_path, str(tmp_path / "command")) == ""  # once nobody holds it


@needs_root
def test_while_a_start_hangs_no_other_of_its_user_is_waited_for(tmp_path: Path) -> None:
    who = find_credentials("nobody")
    is_over = threading.Event()
    children._hanging[who.uid] = thread = threading.Thread(target=is_over.wait, daemon=True)
    thread.start()
    before = len(os.listdir("/proc/self/fd"))
    began = time.monotonic()

    with pytest.raises(TimeoutError, match="an earlier start as the same user"):
        output_of(tmp_path, "/bin/true")

    assert time.monotonic() - began < children.EXEC_LIMIT_S / 2
    assert len(os.listdir("/proc/self/fd")) == before
    is_over.set()
    thread.join()
    assert output_of(tmp_path, "/bin/true") == ""


STOPS = """
import os, signal, sys
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
print("begins", flush=True)
while True:
    try:
        os.kill(-1, signal.SIGSTOP)  # all that this user may send a signal to, but itself
    except ProcessLookupError:
        pass
"""


@needs_root
def test_a_user_who_stops_all_that_becomes_theirs_holds_nobody_up(tmp_path: Path) -> None:
    """The moment of it may be between any two instructions of the child."""
    uid = 4_000_000_000 + os.getpid()  # nobody else's
    who = Configured(("/bin/true",), {}, subprocess.DEVNULL, subprocess.DEVNULL, user=Identity(uid, uid, ()))
    slowest_s, ends_at = 0.0, time.monotonic() + 3.0
    with subprocess.Popen(["/usr/bin/python3", "-c", STOPS, str(uid)], stdout=subprocess.PIPE) as stopper:
        assert stopper.stdout is not None
        assert stopper.stdout.readline() == b"begins\n"
        while time.monotonic() < ends_at:
            starting = threading.Thread(target=start_and_end, args=(who,), daemon=True)
            began = time.monotonic()
            starting.start()
            starting.join(10.0)
            slowest_s = max(slowest_s, time.monotonic() - began)
        stopper.kill()
    for child in psutil.Process().children():  # what hangs all the same
        if child.uids().real == uid:
            child.kill()
    wait_until(lambda: not any(thread.name == "start" for thread in threading.enumerate()))

    assert slowest_s < 5.0


def start_and_end(child: Configured) -> None:
    with contextlib.suppress(TimeoutError):
        process = start_configured(child)
        process.kill()
        process.wait()


@needs_root
def test_what_keeps_a_user_from_exec_is_raised_as_it_is(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    (tmp_path / "closed").mkdir(mode=0o700)
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(FileNotFoundError):
        output_of(tmp_path, "/bin/no-such-command")
    with pytest.raises(PermissionError):
        output_of(tmp_path, "/bin/true", directory=tmp_path / "closed")
    with pytest.raises(ValueError, match="null byte"):
        output_of(tmp_path, "/bin/true", "\0")

    assert len(os.listdir("/proc/self/fd")) == before


@needs_root
def test_what_may_run_as_root_is_refused_with_a_variable_that_is_not_allowed() -> None:
    with pytest.raises(ValueError, match="must not find LD_PRELOAD in its environment"):
        start_own(("/bin/true",), {"PATH": "/bin", "LD_PRELOAD": "/tmp/x.so"})


def test_our_own_python_takes_no_code_from_variables_or_the_folder_it_starts_in(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken')")
    command = children.own_command("json", "x")

    assert command[1] == "-I"
    done = subprocess.run(
        [*command[:-3], "import json; print(json.__file__)"],
        env={"PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "json.py")},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert str(tmp_path) not in done.stdout.decode()


@needs_root
async def test_a_mirror_starts_with_an_empty_environment_and_has_the_jobs_as_its_user(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    who = find_credentials("nobody")
    for text in ("j", "store"):
        (tmp_path / text).mkdir()
        os.chown(tmp_path / text, who.uid, who.gid)
    (tmp_path / "store" / "j").mkdir()  # as at the first use of a store
    os.chown(tmp_path / "store" / "j", who.uid, who.gid)
    own = {"LD_LIBRARY_PATH": str(tmp_path), "AWS_SECRET_ACCESS_KEY": "secret", "STRANGE": "\udcff"}
    mirror = MirrorClient(MirrorSettings(f"file://{tmp_path}/store", "j", tmp_path / "j", 5), {}, own, "nobody")

    await mirror.ask(messages.BeginEpochRequest(mirror.next_id(), None, 0), messages.EpochAnswer)
    process = Path(f"/proc/{mirror.pid}")
    status = dict(line.partition(":\t")[::2] for line in (process / "status").read_text().splitlines())
    environment, command = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
    links = {os.readlink(path).partition(":")[0] for path in (process / "fd").iterdir()}
    mirror.close()
    await asyncio.sleep(0)  # the transport closes

    assert status["Uid"].split() == [str(who.uid)] * 4
    assert status["Gid"].split() == [str(who.gid)] * 4
    assert status["Groups"].split() == [str(group) for group in who.groups]
    assert (status["Umask"], environment) == ("0022", b"")
    assert b"secret" not in command, "anybody can read it there"
    assert not {link for link in links if link.startswith("/") and link != "/dev/null"}
