"""Control groups for attempts: found, divided, entered, killed and removed, in the host's own tree where it can be."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.processes.process_start import SpawnRequest, spawn
from supervisor.host.processes.process_status import Exit
from supervisor.host.resources import cgroup
from supervisor.host.resources.cgroup import Cgroup, Cgroups
from supervisor.host.resources.oom_kills import OomWatch
from supervisor.host.service.service_end import processes_in
from supervisor.protocol.available_memory import available_memory
from tests.reading import alive
from tests.system.delegated import Inside, entrance, group
from tests.system.harness import TRAINER
from tests.waiting import wait_until

MOUNTS = """proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
FAMILY = (
    "import os, time\n"
    "for _ in range(3):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        if os.fork() == 0:\n"
    "            time.sleep(600)\n"
    "        os._exit(0)\n"
    "time.sleep(600)\n"
)
"""Grandchildren that left the session, and whose parents are gone."""


@pytest.fixture
def given() -> Iterator[Path]:
    with group() as folder:
        yield folder


def members(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "cgroup.procs").read_text().split()]


def until_there_are(count: int, folder: Path) -> list[int]:
    return wait_until(lambda: pids if len(pids := members(folder)) >= count else [], f"{folder} has {count} members")


def prepared_in(folder: Path) -> str:
    """What a process that lives in `folder` finds and does."""
    script = (
        f"import os; open({entrance(folder)!r}, 'w').write(str(os.getpid()))\n"
        "from supervisor.host.resources import cgroup\n"
        "found = cgroup.prepare_cgroups()\n"
        "print(found and found.base, open('/proc/self/cgroup').read().split('0::')[1])"
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def test_the_unified_tree_is_found_beside_the_old_ones():
    assert cgroup.find_cgroup2_mount(MOUNTS) == Path("/sys/fs/cgroup/unified")
    assert cgroup.parse_own_group("9:memory:/x\n0::/a/b\n") == "/a/b"
    assert cgroup.parse_own_group("9:memory:/x\n") is None


@pytest.mark.integration
def test_a_mount_whose_name_is_no_utf_8_is_no_hindrance(tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    mounts = ["mount", "-t", "tmpfs", "none", str(folder)]
    if subprocess.run(["unshare", "--mount", *mounts], check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    look = "import sys; from supervisor.host.resources import cgroup; cgroup.prepare_cgroups()"
    script = '"$@" && exec "$0" -c "$LOOK"'
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, *mounts]

    done = subprocess.run(command, env={**os.environ, "LOOK": look}, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.integration
def test_processes_in_a_group_whose_name_is_no_utf_8_are_looked_at_like_others(given: Path):
    odd = Cgroup(given / os.fsdecode(b"caf\xe9"))
    odd.path.mkdir()
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            assert odd.move_process(child.pid)
            group = Path(f"/proc/{child.pid}/cgroup")

            found = processes_in(os.fsdecode(group.read_bytes()))
            evidence = OomWatch(child.pid).evidence()
            available, total = available_memory(own=group)
        finally:
            child.kill()

    assert [each.pid for each in found] == [child.pid]
    assert evidence is None
    assert 0 < available <= total


@pytest.mark.integration
def test_the_daemon_moves_to_a_group_of_its_own_and_finds_it_again(given: Path):
    path = str(given).removeprefix(str(cgroup.find_cgroup2_mount(Path("/proc/self/mounts").read_text())))
    for _ in range(2):
        assert prepared_in(given).split() == [str(given), f"{path}/daemon"]
    assert prepared_in(given / "daemon").split() == [str(given), f"{path}/daemon"]


@pytest.mark.integration
def test_limits_that_are_not_set_are_left_alone(given: Path):
    os.removexattr(given, "user.delegate")

    assert prepared_in(given).startswith("None")
    assert [path for path in given.iterdir() if path.is_dir()] == []


@pytest.mark.integration
def test_a_service_without_a_group_below_for_its_daemon_is_left_alone(given: Path):
    service = given.with_name(given.name + ".service")
    service.mkdir()
    try:
        os.setxattr(service, "user.delegate", b"1")

        assert prepared_in(service).startswith("None")
        (service / "main").mkdir()  # DelegateSubgroup=main
        assert prepared_in(service / "main").startswith(str(service))
    finally:
        for each in (service / "main", service):
            if each.exists():
                cgroup.Cgroup(each).remove()


@pytest.mark.integration
async def test_a_process_begins_in_its_group_and_all_of_it_goes_at_once(given: Path):
    group = Cgroups(given, frozenset()).create("digits:0", 3, None, None)
    assert group is not None and group.path.name == "job-digits%3A0.a3"
    ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    null = os.open(os.devnull, os.O_RDWR)
    request = SpawnRequest("digits", (sys.executable, "-c", FAMILY), None, {}, null, null, cgroup=group)

    process = spawn(request, ended.set_result)

    assert process.pid in members(group.path)
    family = await asyncio.to_thread(until_there_are, 4, group.path)
    assert group.kill()
    assert (await asyncio.wait_for(ended, 20)).signal == 9
    assert await asyncio.to_thread(group.remove)
    assert not group.exists
    assert not any(map(alive, family))
    os.close(null)


def test_limits_are_those_of_the_configuration_and_a_tenth_more_memory(tmp_path: Path):
    """With plain files: not every host gives its memory controller to this tree."""
    Cgroups(tmp_path, frozenset({"memory", "cpu"})).create("digits", 1, 1000, 1.5)

    written = {path.name: path.read_text() for path in (tmp_path / "job-digits.a1").iterdir()}
    assert written == {"memory.oom.group": "1", "memory.max": "1100", "cpu.max": "150000 100000"}


@pytest.mark.integration
def test_a_whole_daemon_gives_each_attempt_a_group_and_removes_it(given: Path, tmp_path: Path):
    section = (
        f"[program:t]\ncommand={sys.executable} {TRAINER}\ncheckpoint_dir={tmp_path}/t\nstandby=off\n"
        f'environment=STEPS="100000",GRANDCHILD="1"\n'
    )
    here = members(given)
    assert here == []
    with Inside(given, tmp_path, section) as daemon:
        first = daemon.until_step("t", 5)["pid"]
        group = given / "job-t.a1"
        assert first in members(group) and len(members(group)) == 2, "its grandchild is in it too"
        os.kill(first, 9)
        daemon.until(lambda: daemon.status("t")["pid"] not in (None, first), "it is relaunched")
        daemon.until(lambda: not group.exists(), "the group of the first attempt is gone with all in it")
        second = daemon.until_step("t", 5)["pid"]
        assert second in members(given / "job-t.a2")
        daemon.stop(9)
        daemon.start()  # and a new daemon takes the worker over with its group
        assert daemon.until_state("t", "RUNNING")["pid"] == second
        daemon.call("stop", name="t")
        daemon.until(lambda: not (given / "job-t.a2").exists(), "the group of the second is gone")
