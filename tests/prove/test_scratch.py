"""The folder of a proof: gone at its end, and at the next proof if the prover was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.config import load_config
from supervisor.prove.scratch import MAX_SOCKET, Scratch, job_of
from tests.places import ROOT

PROVER = """
import sys, time
from pathlib import Path
from supervisor.config import load_config
from supervisor.prove.scratch import Scratch

with Scratch(Path(sys.argv[1]), keep=sys.argv[2] == "keep") as scratch:
    print(scratch.path, scratch.run_folder("undisturbed").socket.parent, flush=True)
    time.sleep(3600)
"""


def prover(parent: Path, keep: str = "") -> tuple[subprocess.Popen[str], list[Path]]:
    """A prover that is under way, with its folders."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROVER, parent, keep], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [Path(word) for word in process.stdout.readline().split()]


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.integration
def test_the_next_proof_removes_what_a_killed_prover_left_and_nothing_of_others(tmp_path: Path):
    parent = tmp_path / ("long" * 30)[: MAX_SOCKET - len(os.fsencode(tmp_path)) // 2]
    parent.mkdir()
    dead, left = prover(parent)
    alive, in_use = prover(parent)
    kept, wanted = prover(parent, "keep")
    other = parent / "stepkeeper-proof-of-mine"
    other.mkdir()
    assert left[1].parent == Path("/tmp"), "the path is too long for a socket"
    for process in (dead, kept):
        kill(process)
    assert all(folder.is_dir() for folder in left)

    with Scratch(parent, keep=False) as scratch:
        remaining = sorted(parent.iterdir())

        assert not any(folder.exists() for folder in left)
        assert remaining == sorted([in_use[0], wanted[0], other, scratch.path])
        assert in_use[1].is_dir()

    kill(alive)
    with Scratch(parent, keep=False):
        assert not any(folder.exists() for folder in in_use)
    wanted[1].rmdir()


@pytest.mark.parametrize("spare", range(-3, 20))
def test_no_path_of_a_socket_is_too_long(tmp_path: Path, spare: int):
    """Whatever the length of the folder's path: those of the socket leave some room, or none."""
    used = len(os.fsencode(tmp_path)) + len("/") + len("/stepkeeper-proof-12345678/1.sock")
    parent = tmp_path / ("x" * max(1, MAX_SOCKET - used - spare))
    parent.mkdir()

    with Scratch(parent, keep=False) as scratch:
        for name in ("undisturbed", "killed", "undisturbed-again"):
            assert len(os.fsencode(scratch.run_folder(name).socket)) <= MAX_SOCKET


def test_workers_of_a_proof_write_their_shares_as_those_of_the_job(tmp_path: Path):
    file = tmp_path / "train.conf"
    file.write_text(
        "[supervisord]\n[program:pair]\ncommand = python train.py\ncheckpoint_dir = /ck\nstrategy = multiworker\n"
        "workers = 2\nsave_shards = always\n"
    )
    (program,) = load_config(file, {}).programs.values()

    with Scratch(tmp_path, keep=False) as scratch:
        run = scratch.run_folder("undisturbed")
        run.write_configuration(job_of(program, tmp_path), 7, restarts=0)
        (again,) = load_config(run.configuration, {}).programs.values()

    assert again.job is not None
    assert (again.job.workers, again.job.save_shards) == (2, "always")


@pytest.mark.parametrize(
    "line",
    [
        "limit_nofile = unlimited",
        "limit_memlock = unlimited",
        "limit_core = unlimited",
        "gpu_wait = 0.000001",
        "loss_spike = 1e300",
        "initial_checkpoint = /archive/100%%/model.ckpt-1200",
        "restore_from_jobs = before%%after, other",
    ],
)
def test_a_setting_of_the_job_is_that_of_its_proof(tmp_path: Path, line: str):
    file = tmp_path / "train.conf"
    file.write_text(f"[supervisord]\n[program:digits]\ncommand = python train.py\ncheckpoint_dir = /ck\n{line}\n")
    (program,) = load_config(file, {}).programs.values()

    with Scratch(tmp_path, keep=False) as scratch:
        run = scratch.run_folder("undisturbed")
        run.write_configuration(job_of(program, tmp_path), 7, restarts=0)
        (again,) = load_config(run.configuration, {}).programs.values()

    name = line.partition(" ")[0]
    settings = [part if hasattr(part, name) else part.job for part in (program, again)]
    assert getattr(settings[1], name) == getattr(settings[0], name)
