"""The files for systemd, judged by systemd's own tools, and their agreement with the program they start."""

import configparser
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import pytest

from supervisor import daemon, lifecycle
from supervisor.config.keys.job import JobConfig
from supervisor.config.keys.program import ProgramConfig
from supervisor.core.fleet.exit_conditions import EXIT_INTERRUPTED
from supervisor.host.service import service_end
from tests.places import ROOT

SYSTEMD = ROOT / "systemd"
UNIT = SYSTEMD / "stepkeeper.service"
COMMAND = re.compile(r"/opt/stepkeeper/current/bin/\w+")
EXPOSURE_ALLOWED = 20  # ten times the number systemd-analyze shows


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed; apt-get install systemd")


def run(*command: object) -> tuple[int, str]:
    """Exit status, and all that was said."""
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def settings(path: Path) -> dict[str, list[str]]:
    """The values of each key of [Service], in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found[key].append(value)
    return found


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with commands that exist on this machine, beside its slice."""
    shutil.copy(SYSTEMD / "stepkeeper.slice", tmp_path)
    unit = tmp_path / UNIT.name
    unit.write_text(COMMAND.sub("/bin/true", UNIT.read_text()))
    return unit


@needs("systemd-analyze")
@pytest.mark.parametrize("name", ["stepkeeper.service", "stepkeeper.slice"])
def test_systemd_has_nothing_to_remark(unit: Path, name: str):
    assert run("systemd-analyze", "verify", "--man=no", unit.with_name(name)) == (0, "")


@needs("systemd-analyze")
def test_exposure_is_at_most_two(unit: Path):
    status, said = run("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_ALLOWED}", unit)

    assert status == 0, said


def test_unit_leaves_gpu_devices_accessible():
    unit = settings(UNIT)
    closing = {"PrivateDevices", "MemoryDenyWriteExecute", "ProcSubset", "PrivateNetwork", "IPAddressDeny"}

    assert not closing & unit.keys()
    assert "char-nvidia* rw" in unit["DeviceAllow"]
    assert "AF_NETLINK" in unit["RestrictAddressFamilies"][0].split()


@needs("systemd-sysusers")
def test_systemd_makes_the_user(tmp_path: Path):
    status, said = run("systemd-sysusers", "--dry-run", f"--root={tmp_path}", SYSTEMD / "stepkeeper.sysusers")

    assert (status, "stepkeeper" in said) == (0, True), said


@needs("systemd-tmpfiles")
def test_systemd_makes_the_folders(tmp_path: Path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("stepkeeper:x:0:0::/:/bin/false\n")
    (tmp_path / "etc" / "group").write_text("stepkeeper:x:0:\n")

    said = run("systemd-tmpfiles", "--create", f"--root={tmp_path}", SYSTEMD / "stepkeeper.tmpfiles")

    assert said == (0, "")
    assert (tmp_path / "run" / "stepkeeper" / "notices").stat().st_mode & 0o777 == 0o750


def test_limits_shrink_from_the_outside_in():
    unit = settings(UNIT)
    defaults = {field.name: field.default for model in (JobConfig, ProgramConfig) for field in fields(model)}
    flush, stop = defaults["flush_timeout"], defaults["stopwaitsecs"]

    assert flush + stop <= service_end.PATIENCE_S
    assert float(unit["TimeoutStopSec"][0]) > 2 * lifecycle.EXTEND_EVERY_S + service_end.CRASH_PAUSE_S
    assert float(unit["WatchdogSec"][0]) > 2 * lifecycle.EXTEND_EVERY_S


def test_systemd_and_the_daemon_agree_on_what_is_final():
    final = settings(UNIT)["RestartPreventExitStatus"]

    assert final == [str(daemon.EXIT_CONFIG)] == [service_end.EXIT_CONFIG]
    assert settings(UNIT)["SuccessExitStatus"] == [str(EXIT_INTERRUPTED)]


def test_workers_are_not_killed_with_the_daemon_and_are_ended_after_a_stop():
    unit = settings(UNIT)

    assert unit["KillMode"] == ["process"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]
    assert [COMMAND.sub("python", each) for each in unit["ExecStopPost"]] == [
        "+python -P -m supervisor.host.service.service_end %n"
    ]


def test_the_base_unit_is_for_systemd_252_and_newer_types_are_in_drop_ins():
    drop_ins = sorted(SYSTEMD.glob("drop-ins/*.conf"))

    assert settings(UNIT)["Type"] == ["notify"]
    assert all(int(each.name.split("-")[0]) > 252 for each in drop_ins)
    assert settings(drop_ins[0])["Type"] == ["notify-reload"]


@pytest.mark.parametrize("path", sorted(SYSTEMD.rglob("*.conf")), ids=lambda path: path.name)
def test_drop_ins_are_read(path: Path):
    parser = configparser.RawConfigParser(strict=False)  # keys may come twice, an empty value takes the others back
    parser.read(path)

    assert parser.sections() == ["Service"]
