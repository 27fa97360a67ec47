"""How a child starts: whose it is, where, and with what. Which kinds there are: tests/system/test_children.py."""

import asyncio
import errno
import os
import subprocess
from pathlib import Path

import pytest

from supervisor.host import children
from supervisor.host.children import Configured, start_configured, start_own
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.host.processes.credentials import find_credentials
from tests.system.harness import let_others_in
from tests.waiting import TIMEOUT_S

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


@needs_root
def test_what_may_run_as_root_is_refused_with_a_variable_that_is_not_allowed() -> None:
    with pytest.raises(ValueError, match="must not find LD_PRELOAD in its environment"):
        start_own(("/bin/true",), {"PATH": "/bin", "LD_PRELOAD": "/tmp/x.so"})


@needs_root
def test_a_tool_gets_only_allowed_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/home/alice")
    monkeypatch.setenv("PYTHONPATH", "/home/alice")
    monkeypatch.setenv("TZ", "UTC")

    answer = children.ask_tool(("env",), 60.0)

    found = dict(line.partition("=")[::2] for line in answer.stdout.decode().splitlines())
    assert found.keys() <= children.ALLOWED
    assert (found["TZ"], found["PATH"], answer.status) == ("UTC", os.environ["PATH"], 0)


def test_a_tool_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        children.ask_tool(("sleep", "1000"), 0.1)


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
