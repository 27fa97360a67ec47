"""What is told of a program's configuration to its process."""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.config import ProgramConfig, load_config
from supervisor.core.standby.facts import StandbyKind
from supervisor.host.health_checks import HealthChecks
from supervisor.host.processes import marks
from supervisor.runner.attempt import starting
from supervisor.runner.attempt.launching import (
    PRELOAD,
    command_beside,
    config_digest,
    environment_of_program,
    policy_of,
    preload_command,
    standby_kind_of,
)
from supervisor.runner.attempt.services import Services


@pytest.fixture
def program(tmp_path: Path):
    def read(keys: str, command: str = "/bin/true") -> ProgramConfig:
        path = tmp_path / "test.conf"
        path.write_text(f"[supervisord]\n[program:digits]\ncommand={command}\n{keys}\n")
        return load_config(path, {}).programs["digits"]

    return read


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ("checkpoint_dir=/c\nentrypoint=a:b", StandbyKind.AUTO),
        ("checkpoint_dir=/c\ncommand=a", StandbyKind.AUTO),
        ("checkpoint_dir=/c\ncommand=a\nstandby=warm", StandbyKind.WARM),
        ("checkpoint_dir=/c\nentrypoint=a:b\nstandby=off", StandbyKind.OFF),
        ("checkpoint_dir=/c\nentrypoint=a:b\nstandby=HOT", StandbyKind.HOT),
        ("command=a", StandbyKind.OFF),
    ],
)
def test_which_standby_a_program_has(tmp_path: Path, keys: str, kind: StandbyKind):
    path = tmp_path / "test.conf"
    path.write_text(f"[supervisord]\n[program:digits]\n{keys}\n")

    assert standby_kind_of(load_config(path, {}).programs["digits"]) is kind


BOOTSTRAP = PRELOAD % 78


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py", ("python", "-c", BOOTSTRAP, "train.py")),
        ("/v/python3.11 -u -OO /s/t.py -u 3", ("/v/python3.11", "-u", "-OO", "-c", BOOTSTRAP, "/s/t.py", "-u", "3")),
        ("python -m train", "its command is not of the form python SCRIPT.py"),
        ("python -c pass train.py", "its command is not of the form python SCRIPT.py"),
        ("python", "its command is not of the form python SCRIPT.py"),
        ("torchrun train.py", "its command is not of the form python SCRIPT.py"),
        ("python -X dev train.py", "its command is not of the form python SCRIPT.py"),
    ],
)  # fmt: skip
def test_an_automatic_standby_keeps_interpreter_flags_and_arguments(program, command: str, found: object):
    assert preload_command(program("checkpoint_dir=/c", command)) == found


def test_no_automatic_standby_beside_others_that_train_with_it_but_in_a_gang(program):
    tpu, several, rank = (
        program(f"checkpoint_dir=/c\nstrategy={keys}", "python t.py")
        for keys in ("tpu", "multiworker\nworkers=2", "multiworker")
    )

    assert "strategy = tpu" in preload_command(tpu)
    assert "strategy = multiworker" in preload_command(several)
    assert preload_command(rank, is_gang=True)[-1] == "t.py"


def test_digest_of_a_configuration_ignores_the_order_of_keys(program):
    one = program('environment=A="1",B="2"\nexitcodes=0,2,9\ncheckpoint_dir=/c\ncheckpoint_interval=5 steps')
    other = program('checkpoint_interval=5 steps\ncheckpoint_dir=/c\nexitcodes=9,0,2\nenvironment=B="2",A="1"')

    assert config_digest(one) == config_digest(other)


@pytest.mark.parametrize("keys", ["startsecs=3", 'environment=A="2"', "checkpoint_dir=/c", "exitcodes=0,1"])
def test_every_change_changes_the_digest(program, keys: str):
    assert config_digest(program(keys)) != config_digest(program(""))


def test_a_default_that_is_written_down_changes_nothing(program):
    assert config_digest(program("startsecs=1")) == config_digest(program(""))


@pytest.mark.parametrize(
    ("keys", "has_ranks_elsewhere"),
    [
        ("", False),
        ("strategy=mirrored", False),
        ("strategy=multiworker\nworkers=2", False),
        ("strategy=multiworker", True),
        ("environment=TF_CONFIG=\"{'cluster': 0}\"", True),
        ("environment=MASTER_ADDR=10.0.0.7", True),
        ("environment=MASTER_ADDR=127.0.0.1", False),
    ],
)
def test_a_job_that_other_hosts_train_too_is_known_as_that(program, keys: str, has_ranks_elsewhere: bool):
    policy = policy_of(program(f"checkpoint_dir=/c\ncommand=a\n{keys}"), 60.0)

    assert policy.has_ranks_elsewhere is has_ranks_elsewhere
    assert policy.hang_evidence == 60.0


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space there: du -s /run/stepkeeper/* says which job has taken it"),
        (errno.EDQUOT, "free space there: du -s /run/stepkeeper/* says which job has taken it"),
        (errno.EMFILE, "raise the daemon's limit of open files (ulimit -n)"),
        (errno.EROFS, "make runtime_dir writable, or point it elsewhere"),
    ],
)
def test_pipes_that_cant_be_made_say_what_is_missing(number: int, remedy: str) -> None:
    """A job's user can fill runtime_dir, which others need too: the folders of attempts are theirs."""
    assert starting._pipes_remedy(OSError(number, "", ""), Path("/run/stepkeeper")) == remedy


OUTER = {
    "PATH": "/bin", "SUPERVISOR_ENABLED": "1", "SUPERVISOR_PROCESS_NAME": "outer", "SUPERVISOR_GROUP_NAME": "outers",
    "SUPERVISOR_SERVER_URL": "unix:///outer", marks.VARIABLE: "/outer:p:1", marks.CONFIGURATION: "0",
}  # fmt: skip
"""What a daemon has that is itself a program of another."""


async def test_programs_and_the_commands_beside_them_have_nothing_of_an_outer_daemon(program, services: Services):
    config, bare = program(""), replace(services, environment=OUTER)
    served = replace(bare, server_url="unix:///own")

    of_program = environment_of_program(config, bare, None)
    of_check = command_beside(config, "healthcheck_command", ("/bin/true",), 12, served).environment

    own = {
        "PATH": "/bin",
        "SUPERVISOR_ENABLED": "1",
        "SUPERVISOR_PROCESS_NAME": "digits",
        "SUPERVISOR_GROUP_NAME": "digits",
    }
    assert of_program == own
    assert of_check == own | {"SUPERVISOR_SERVER_URL": "unix:///own", "SUPERVISOR_PROGRAM_PID": "12"}


@pytest.mark.integration
async def test_a_health_check_has_what_the_page_says(program, services: Services, tmp_path: Path):
    """docs/configuration.md, `healthcheck_command`."""
    (tmp_path / "more.env").write_text("MORE=of the file\n")
    keys = f"directory={tmp_path}\numask=077\nenvironment=OWN=its\nenvironment_file={tmp_path}/more.env\nnotify=true\n"
    config, served = (
        program(keys),
        replace(services, environment={"PATH": os.environ["PATH"]}, server_url="unix:///own"),
    )
    show = 'echo "$PWD $(umask)"; env | sort | grep -E "^(OWN|MORE|SUPERVISOR|NOTIFY|CUDA|PYTHONHASH)"; exit 1'

    check = command_beside(config, "healthcheck_command", ("/bin/sh", "-c", show), 12, served)
    said = str(await asyncio.to_thread(HealthChecks().failure_of, check))

    directory, mask, variables = said.removeprefix("healthcheck_command exited with status 1: ").split(" ", 2)
    daemon_mask = os.umask(0)
    os.umask(daemon_mask)
    assert (directory, mask) == (str(tmp_path), f"{daemon_mask:04o}")
    assert variables == (
        "MORE=of the file OWN=its SUPERVISOR_ENABLED=1 SUPERVISOR_GROUP_NAME=digits SUPERVISOR_PROCESS_NAME=digits "
        "SUPERVISOR_PROGRAM_PID=12 SUPERVISOR_SERVER_URL=unix:///own"
    )
