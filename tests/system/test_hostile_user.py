"""A root daemon beside a user who does what he can with the folders that are his: links, trees, files made to cost.

Against real daemons; it needs root and the users that every Debian has. What each part refuses in detail is tested
where it is. `make hostile` runs this and all others of its kind.
"""

import contextlib
import http.client
import json
import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.quarantine import REASON_FILE
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.tensorbundle import entry, sstable
from tests.system.harness import Daemon, Refused, let_others_in

USER, OTHER = "nobody", "games"
WAITS = "/bin/sleep 600"  # a worker that says nothing: what is selected for it is decided all the same
RESPONSE_S = 2.0  # of a daemon that is not held up; the machine may be busy

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users"),
]


@pytest.fixture(autouse=True)
def _removes_deep_trees(tmp_path: Path) -> Iterator[None]:
    """Removes the test's folder, whose trees are too deep for pytest's own clean-up."""
    yield
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)


def give(folder: Path, user: str = USER) -> Path:
    """Makes a folder with all that is in it a user's."""
    ids = pwd.getpwnam(user)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ids.pw_uid, ids.pw_gid, follow_symlinks=False)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    let_others_in(tmp_path)
    (tmp_path / "home").mkdir()
    yield give(tmp_path / "home")
    subprocess.run(["rm", "-rf", tmp_path / "state"], check=False)  # pytest's own way of cleaning up is recursive


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that only root may read."""
    folder = tmp_path / "roots"
    folder.mkdir()
    (folder / "secret").write_text("top secret\n")
    (folder / "secret").chmod(0o600)
    return folder / "secret"


def program(command: str, keys: str = "") -> str:
    return f"[program:p]\ncommand={command}\nuser={USER}\ndirectory=/\nautorestart=false\n{keys}\n"


def job(home: Path, command: str = WAITS) -> str:
    return program(command, f"checkpoint_dir={home}/job\nstopwaitsecs=60\nstandby=off")


def damaged(directory: Path, step: int) -> Path:
    folder = directory / str(CheckpointName(step, 1))
    folder.mkdir(parents=True)
    (folder / layout.MANIFEST).write_text("garbage")
    return folder


def longest_answer_s(daemon: Daemon, is_over: Callable[[], object]) -> float:
    """The longest that a command took until `is_over`."""
    longest = 0.0

    def ask() -> object:
        nonlocal longest
        began = time.monotonic()
        daemon.call("status")
        longest = max(longest, time.monotonic() - began)
        return is_over()

    daemon.until(ask, "it is over")
    return longest


def refused_text(daemon: Daemon, command: str, **arguments: object) -> str:
    with pytest.raises(Refused) as refused:
        daemon.call(command, **arguments)
    return refused.value.message


def selection_failed(daemon: Daemon) -> str:
    """Waits until no checkpoint could be selected, and gives the reason."""
    daemon.until(lambda: daemon.status("p")["reason"], "there is a reason")
    return str(daemon.status("p")["reason"])


# --- environment ------------------------------------------------------------------------------------------------------


def test_a_users_program_and_its_checks_get_the_users_home_and_name(home: Path) -> None:
    shown = "/bin/sh -c 'echo $HOME $USER $LOGNAME $SSH_AUTH_SOCK > {}'"
    checked = f"healthcheck_command={shown.format(home / 'check')}\nhealthcheck_interval=1"
    script = "/bin/sh -c 'echo $HOME $USER $LOGNAME $SSH_AUTH_SOCK; exec sleep 600'"
    with Daemon(
        home.parent,
        program(script, f"stdout_logfile={home}/log\n{checked}"),
        environment={"HOME": "/root", "USER": "root", "LOGNAME": "root", "SSH_AUTH_SOCK": "/root/agent"},
    ) as daemon:
        daemon.until(lambda: (home / "check").exists() and (home / "check").read_text(), "the check has run")
        daemon.until((home / "log").read_text, "it has printed")

    expected = f"{pwd.getpwnam(USER).pw_dir} {USER} {USER}\n"
    assert (home / "log").read_text() == expected
    assert (home / "check").read_text() == expected


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_link_in_place_of_a_log_is_not_written_cleared_or_shown(home: Path, secret: Path) -> None:
    give(home).joinpath("log").symlink_to(secret)
    give(home)

    with Daemon(
        home.parent, program("/bin/sh -c 'echo overwritten; sleep 600'", f"stdout_logfile={home}/log")
    ) as daemon:
        daemon.until_state("p", "RUNNING")
        daemon.until(
            lambda: "a link of uid" in daemon.status("p")["description"], "the daemon says that it can't write"
        )
        cleared = refused_text(daemon, "clear", name="p")

    assert "a link of uid" in cleared
    assert secret.read_text() == "top secret\n"


def test_a_link_that_takes_a_logs_place_shows_nobodys_file(home: Path, secret: Path) -> None:
    script = "/bin/sh -c 'echo one; sleep 600'"
    with Daemon(home.parent, program(script, f"stdout_logfile={home}/log")) as daemon:
        daemon.until(lambda: (home / "log").exists() and (home / "log").read_text() == "one\n", "it has printed")
        (home / "log").unlink()
        (home / "log").symlink_to(secret)
        give(home)
        found = tail(daemon, "p")

    assert "top secret" not in found
    assert "a link of uid" in found
    assert secret.read_text() == "top secret\n"


def tail(daemon: Daemon, name: str) -> str:
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.connect(str(daemon.socket))
    connection.request("GET", f"/api/v1/tail?name={name}&bytes=1000")
    try:
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_a_link_to_another_users_folder_moves_no_checkpoint(home: Path) -> None:
    others = home.parent / "others"
    theirs = damaged(others, 100)
    give(others, OTHER).chmod(0o700)
    (home / "job").symlink_to(others)
    give(home)

    with Daemon(home.parent, job(home)) as daemon:
        reason = selection_failed(daemon)
        listed = refused_text(daemon, "checkpoints", name="p")

    assert "Permission denied" in reason
    assert "Permission denied" in listed
    assert theirs.is_dir()
    assert os.listdir(others) == [theirs.name]


def test_a_quarantine_that_is_a_link_shows_no_names(home: Path) -> None:
    private = home.parent / "private"
    (private / "diary-of-games").mkdir(parents=True)
    give(private, OTHER).chmod(0o700)
    damaged(home / "job", 100)
    (home / "job" / layout.QUARANTINE).symlink_to(private)
    give(home)

    with Daemon(home.parent, job(home)) as daemon:
        selection_failed(daemon)
        everything = json.dumps(daemon.call("status"))

    assert "diary" not in everything
    assert "diary" not in (home.parent / "daemon.log").read_text()


SWAPS = """
import itertools, os, sys, time
os.chdir(sys.argv[1])
roots = sys.argv[2]
ends_at = time.monotonic() + 5
for number in itertools.count():
    if time.monotonic() > ends_at:
        break
    print("x" * 300, flush=True)
    try:
        kind = number % 7
        if kind == 0:
            os.rename("logs", "away"), os.symlink(roots, "logs")
        elif kind == 1:
            os.unlink("logs"), os.rename("away", "logs")
        else:
            os.unlink("logs/log")
            if kind == 2:
                os.link(roots + "/log", "logs/log")
            elif kind == 3:
                os.symlink(roots + "/log", "logs/log")
            elif kind == 4:
                os.mkfifo("logs/log")
            elif kind == 5:
                os.mkdir("logs/log")
                os.rmdir("logs/log")
    except OSError:
        pass
open("over", "w").close()
time.sleep(600)
"""


PYTHON = "/usr/bin/python3"  # other users may not enter the folder of this environment's


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"there is no {PYTHON} for other users")
def test_a_folder_that_is_swapped_while_its_log_rotates_leads_to_nothing_of_roots(home: Path) -> None:
    roots = home.parent / "roots"
    roots.mkdir()
    for name in ("log", "log.1", "log.2", "log.3"):
        (roots / name).write_text(f"root's {name}")
        (roots / name).chmod(0o666)  # so that anybody may make hard links
    (home / "logs").mkdir()
    (home / "swap.py").write_text(SWAPS)
    give(home)
    keys = (
        f"stdout_logfile={home}/logs/log\nstdout_logfile_maxbytes=1000\nstdout_logfile_backups=3\nredirect_stderr=true"
    )

    with Daemon(home.parent, program(f"{PYTHON} {home}/swap.py {home} {roots}", keys)) as daemon:
        longest = longest_answer_s(daemon, (home / "over").exists)
        with contextlib.suppress(Refused):  # where it ended with a link
            daemon.call("clear", name="p")

    assert {path.name: path.read_text() for path in roots.iterdir()} == {
        name: f"root's {name}" for name in ("log", "log.1", "log.2", "log.3")
    }
    assert longest < RESPONSE_S
    assert "Traceback" not in (home.parent / "daemon.err").read_text()


def test_a_log_belongs_to_the_folders_owner_and_a_third_users_file_is_refused(home: Path) -> None:
    shared = home.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "log").touch()
    os.chown(shared / "log", pwd.getpwnam(OTHER).pw_uid, 0)
    script = "/bin/sh -c 'echo private; echo own >&2; exec sleep 600'"
    with Daemon(home.parent, program(script, f"stdout_logfile={shared}/log\nstderr_logfile={home}/log")) as daemon:
        daemon.until(lambda: "in a folder of uid" in daemon.status("p")["description"], "the daemon says so")
        daemon.until(lambda: (home / "log").exists() and (home / "log").read_text(), "it has printed")

    assert (shared / "log").read_text() == ""
    assert (home / "log").stat().st_uid == pwd.getpwnam(USER).pw_uid


# --- trees ------------------------------------------------------------------------------------------------------------

NEST = "cd {folder} && i=0 && while [ $i -lt 1500 ]; do mkdir d && cd d || exit; i=$((i+1)); done"
FILL = "cd {folder} && seq 150000 | xargs touch"


def fill_pipes_folder(home: Path, script: str) -> str:
    """A job that does this in the folder of its pipes, and waits."""
    folder = home.parent / "state" / "run" / "p" / "a1"
    (home / "fill").write_text(f"{script.format(folder=folder)}; touch {home}/filled; exec sleep 600\n")
    return job(home, f"/bin/sh {home}/fill")


@pytest.mark.slow
def test_a_deep_tree_stops_neither_a_stop_nor_the_next_daemon(home: Path) -> None:
    with Daemon(home.parent, fill_pipes_folder(home, NEST)) as daemon:
        daemon.until((home / "filled").exists, "the tree is there")
        daemon.call("stop", name="p")
        daemon.until_state("p", "STOPPED")
        folder = home.parent / "state" / "run" / "p" / "a1"
        daemon.until(lambda: not folder.exists(), "it is removed once the end is on the disk")
        assert daemon.stop() == 0
        daemon.start()
        daemon.until_state("p", "STOPPED", "STARTING", "RUNNING")


@pytest.mark.slow
def test_a_deep_tree_left_by_a_dead_daemon_is_removed_at_the_next_start(home: Path) -> None:
    with Daemon(home.parent, fill_pipes_folder(home, NEST)) as daemon:
        daemon.until((home / "filled").exists, "the tree is there")
        pid = daemon.status("p")["pid"]
        daemon.die()
        os.kill(pid, 9)
        daemon.start()
        daemon.until(lambda: not (home.parent / "state" / "run" / "p" / "a1").exists(), "the tree is gone")


@pytest.mark.slow
def test_150000_files_hold_nobody_up(home: Path) -> None:
    with Daemon(home.parent, fill_pipes_folder(home, FILL)) as daemon:
        daemon.until((home / "filled").exists, "the files are there", 300)
        daemon.call("stop", name="p", wait=False)
        longest = longest_answer_s(daemon, lambda: daemon.status("p")["state"] == "STOPPED")

    assert longest < RESPONSE_S


# --- content ----------------------------------------------------------------------------------------------------------


def long_shape(directory: Path) -> None:
    directory.mkdir()
    record = entry.encode_tensor(1, [(1 << 63) - 1] * 60_000, 0, 4, 0)
    (directory / "model.ckpt-1.index").write_bytes(sstable.encode_table([(b"", entry.HEADER), (b"v", record)]))


def large_manifest(directory: Path) -> None:
    folder = damaged(directory, 1)
    (folder / layout.MANIFEST).write_bytes(b"[" + b"[],[]," * (15 << 20 >> 3) + b"0]")


def large_state(directory: Path) -> None:
    name = CheckpointName(1, 1)
    (directory / name.partial).mkdir(parents=True)
    (directory / name.partial / layout.STATE).write_bytes(b'{"epoch": 1, "x": [' + b"[]," * (40 << 20 >> 2) + b"0]}")
    records = manifest.record_files(directory / name.partial, (layout.STATE,))
    whole = manifest.Manifest("p", 1, 1, time.time(), records)
    durable.write_file(directory / name.partial / layout.MANIFEST, whole.to_bytes())
    durable.commit_folder(directory / name.partial, directory / str(name), [layout.STATE])


def infinite_state(directory: Path) -> None:
    large_state(directory)
    folder = directory / str(CheckpointName(1, 1))
    (folder / layout.STATE).write_bytes(b'{"epoch": Infinity, "batch": 1e999}')
    whole = manifest.Manifest("p", 1, 1, time.time(), manifest.record_files(folder, (layout.STATE,)))
    durable.write_file(folder / layout.MANIFEST, whole.to_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("user", [USER, "root"])
@pytest.mark.parametrize("make", [long_shape, large_manifest, large_state, infinite_state])
def test_content_made_to_cost_holds_nobody_up(home: Path, make: Callable[[Path], None], user: str) -> None:
    make(home / "job")
    give(home, user)
    text = job(home, "/bin/sleep 3").replace(f"user={USER}", f"user={user}")

    with Daemon(home.parent, text) as daemon:
        longest = longest_answer_s(daemon, lambda: daemon.status("p")["reason"])
        assert daemon.process is not None
        status = Path(f"/proc/{daemon.process.pid}/status").read_text()
        peak_kb = int(next(line.split()[1] for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS"))))

    assert longest < RESPONSE_S
    assert peak_kb < 400_000


@pytest.mark.slow
def test_5000_quarantined_make_no_long_answers(home: Path) -> None:
    for step in range(1, 5001):
        aside = home / "job" / layout.QUARANTINE / str(CheckpointName(step, 1))
        aside.mkdir(parents=True)
        (aside / REASON_FILE).write_text("because " * 120)
    give(home)

    with Daemon(home.parent, job(home)) as daemon:
        reason = selection_failed(daemon)
        status = json.dumps(daemon.call("status"))
        listed = daemon.call("checkpoints", name="p", verify=False)["checkpoints"]

    ledger = sum(path.stat().st_size for path in (home.parent / "state").glob("ledger*"))
    assert "and 4995 more" in reason
    assert len(status) < 20_000
    assert len(listed) == 3000
    assert (home.parent / "daemon.log").stat().st_size < 100_000
    assert ledger < 1_000_000


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_orphans_in_the_session_of_a_program_hold_nobody_up_when_it_is_killed(home: Path) -> None:
    orphans = "for i in $(seq 400); do (sleep 600 &); done"
    (home / "run.sh").write_text(f"trap '' TERM\n{orphans}\ntouch {home}/ready\nwhile :; do sleep 1; done\n")
    with Daemon(home.parent, program(f"/bin/sh {home}/run.sh", "stopwaitsecs=1\nkillasgroup=true")) as daemon:
        daemon.call("start", name="p")
        daemon.until((home / "ready").exists, "they are there")

        daemon.call("stop", name="p", wait=False)
        longest_s = longest_answer_s(daemon, lambda: daemon.status("p")["state"] == "STOPPED")

    assert longest_s < RESPONSE_S


def test_a_state_folder_that_keeps_the_user_out_is_said_before_the_job_fails_at_its_pipes(home: Path) -> None:
    state = home.parent / "state"
    state.mkdir(mode=0o700)

    with Daemon(home.parent, job(home)) as daemon:
        failed = daemon.until_state("p", "FAILED")

    assert f"{USER} may not enter {state}; run chmod o+x {state}, or set runtime_dir" in failed["reason"]
