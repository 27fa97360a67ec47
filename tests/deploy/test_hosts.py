"""cloud-init, Ansible and logrotate: judged by their own tools, and held to the configuration."""

import grp
import os
import pwd
import re
import sys
from pathlib import Path

import pytest
import yaml

from supervisor.config import load_config
from supervisor.ctl.hosts import Host, read_hosts
from tests.deploy.tools import DEPLOY, judge, tool
from tests.reading import content
from tests.system.harness import Daemon

CLOUDS = sorted((DEPLOY / "cloud-init").glob("*.yaml"))
ANSIBLE = DEPLOY / "ansible"
LOGROTATE = DEPLOY / "logrotate" / "stepkeeper"
NOTICE_S = {"aws": 120, "google": 30, "azure": 30}  # what the cloud gives from the notice to the end


@pytest.mark.parametrize("file", CLOUDS, ids=lambda file: file.stem)
def test_cloud_init_accepts_the_user_data(file: Path):
    cloud_init = tool("cloud-init", "Debian package cloud-init")

    assert "Valid" in judge([cloud_init, "schema", "-c", file])


@pytest.mark.parametrize("file", CLOUDS, ids=lambda file: file.stem)
def test_the_program_in_the_user_data_loads_and_flushes_within_the_notice(file: Path, tmp_path: Path):
    written = yaml.safe_load(file.read_text())["write_files"]
    conf = tmp_path / "test.conf"
    conf.write_text("[supervisord]\n" + "".join(each["content"] for each in written))

    (program,) = load_config(conf, {}).programs.values()

    assert program.job is not None
    assert program.job.flush_timeout < NOTICE_S[file.stem]
    assert str(program.job.checkpoint_dir).startswith("/srv/checkpoints/")


@pytest.mark.parametrize("file", CLOUDS, ids=lambda file: file.stem)
def test_the_user_data_mounts_the_folder_that_the_installer_is_told(file: Path):
    data = yaml.safe_load(file.read_text())
    install = next(each for each in data["runcmd"] if each[0].endswith("install.sh"))

    assert install[install.index("--checkpoints") + 1] in [mount[1] for mount in data["mounts"]]


@pytest.mark.slow
def test_ansible_lint_finds_nothing_to_blame():
    lint = tool("ansible-lint", "PyPI: ansible-lint")

    judge([lint, "-c", ".ansible-lint", "--offline"], ANSIBLE)


def test_ansible_understands_the_playbook():
    playbook = tool("ansible-playbook", "PyPI: ansible-lint")

    judge([playbook, "-i", "localhost,", "--syntax-check", "playbook.yml"], ANSIBLE)


def test_the_role_passes_only_options_that_the_installer_has():
    installer = DEPLOY / "install.sh"
    used = set(re.findall(r"(?<=\")--[a-z-]+", (ANSIBLE / "roles/stepkeeper/tasks/release.yml").read_text()))

    assert used
    assert all(option in installer.read_text() for option in used)


def for_this_user(text: str) -> str:
    return text.replace("su stepkeeper stepkeeper", f"su {pwd.getpwuid(os.getuid())[0]} {grp.getgrgid(os.getgid())[0]}")


def test_logrotate_accepts_its_file(tmp_path: Path):
    logrotate = tool("logrotate", "Debian package logrotate")
    file = tmp_path / "stepkeeper"
    file.write_text(for_this_user(LOGROTATE.read_text()))

    assert "error" not in judge([logrotate, "-d", "-s", tmp_path / "state", file])


def test_a_log_that_logrotate_moved_is_continued_in_a_new_file(tmp_path: Path):
    logrotate = tool("logrotate", "Debian package logrotate")
    counter = tmp_path / "counter.py"
    counter.write_text(
        "import time\nfor number in range(10**6):\n    print(number, flush=True)\n    time.sleep(0.02)\n"
    )
    program = f"[program:talker]\ncommand={sys.executable} {counter}\nstdout_logfile_maxbytes=0\n"
    log = tmp_path / "state" / "log" / "talker-stdout.log"
    with Daemon(tmp_path, program) as daemon:
        assert daemon.process is not None
        daemon.until(lambda: content(log), "the program has printed something")
        text = for_this_user(LOGROTATE.read_text()).replace("/var/log/stepkeeper/", f"{log.parent}/")
        told = re.sub(r"systemctl kill --signal=(\w+) .*", rf"kill -\1 {daemon.process.pid}", text)
        assert told != text
        file = tmp_path / "stepkeeper"
        file.write_text(told)

        judge([logrotate, "--force", "-s", tmp_path / "rotated", file])

        daemon.until(lambda: content(log), "the new file is written to")
    numbers = [int(line) for each in (log.with_suffix(".log.1"), log) for line in each.read_text().split()]
    assert numbers == list(range(len(numbers)))  # nothing is lost, nothing twice


def test_the_hosts_that_ansible_writes_down_are_those_of_the_play(tmp_path: Path):
    playbook = tool("ansible-playbook", "PyPI: ansible-lint")
    (tmp_path / "inventory").write_text("[training]\ngpu-2 ansible_host=10.0.0.2\ngpu-1\n")
    template = ANSIBLE / "roles/stepkeeper/templates/hosts.j2"
    tasks = [
        {"ansible.builtin.template": {"src": str(template), "dest": f"{tmp_path}/hosts", "mode": "0644"},
         "delegate_to": "localhost", "run_once": True, "vars": {"stepkeeper_port": 9001}},
    ]  # fmt: skip
    (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "training", "gather_facts": False, "tasks": tasks}]))

    judge([playbook, "-i", tmp_path / "inventory", "-c", "local", tmp_path / "play.yml"], tmp_path)

    assert read_hosts(tmp_path / "hosts") == (Host("gpu-1", "http://gpu-1:9001"), Host("gpu-2", "http://10.0.0.2:9001"))
