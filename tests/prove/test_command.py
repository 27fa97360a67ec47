"""The commands that prove: their verdicts, exit statuses and errors, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from supervisor.protocol.wire.launch import PROOF
from supervisor.prove.command import INTERRUPTED, USAGE_ERROR, interruptible, main, parser
from tests.places import ROOT
from tests.system.harness import Daemon
from tests.waiting import wait_until

EXACT = Path(__file__).parent / "scripts" / "exact.py"
PROVE = [sys.executable, "-m", "worker.prove"]
PATIENCE_S = 120.0


def prove(*arguments: object, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, arguments)], cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def configuration(folder: Path, *sections: str) -> Path:
    """A configuration file with these sections."""
    file = folder / "train.conf"
    file.write_text("\n".join(["[supervisord]", f"[unix_http_server]\nfile = {folder}/s", *sections]))
    return file


def job(name: str, folder: Path, keys: str = "") -> str:
    return (
        f"[program:{name}]\ncommand = {sys.executable} {EXACT}\ncheckpoint_dir = {folder}/ck\n"
        f'environment = PYTHONPATH="{ROOT}",QUOTED=\'say "100%%"\'\n{keys}\n'
    )


@pytest.mark.slow
@pytest.mark.integration
def test_an_exact_job_of_a_configuration_is_proven_and_nothing_of_its_own_is_touched(tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    hook = f"hook_done = touch {tmp_path}/hooked\nexport_dir = {tmp_path}/export\nmirror = file://{tmp_path}/mirror"
    file = configuration(tmp_path, job("digits", tmp_path, hook))

    done = prove(sys.executable, "-m", "supervisor.daemon", "--prove", file, "digits", "--scratch", scratch)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("exact: 3 kills, 24 steps, 4 epochs' ends, ")
    assert "all bits equal" in done.stdout
    assert "not varied: another host" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch", "train.conf"]
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
@pytest.mark.integration
def test_a_command_is_proven_and_reported_as_json_with_progress_before(tmp_path: Path):
    done = prove(*PROVE, "--json", "--kills", 2, "--keep", "--scratch", tmp_path, "--", sys.executable, EXACT)

    *progress, report = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert {each["progress"]["run"] for each in progress} == {"undisturbed", "killed"}
    assert (report["verdict"], report["job"], report["steps"]) == ("exact", "exact", 24)
    assert [kill["place"] for kill in report["kills"]] == ["at an epoch's edge", "in a step"]
    assert all(kill["resumed_from"] > 0 for kill in report["kills"])
    (kept,) = tmp_path.iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["killed", "undisturbed"]


@pytest.mark.slow
@pytest.mark.integration
def test_a_proof_that_ends_before_the_training_does_says_so(tmp_path: Path):
    done = prove(*PROVE, "--steps", 15, "--scratch", tmp_path, "--", sys.executable, EXACT)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 steps, 2 epochs' ends" in done.stdout
    assert "the end of training, as the runs end at step 15" in done.stdout


@pytest.mark.slow
@pytest.mark.integration
def test_a_script_that_fails_by_itself_is_not_provable_and_its_last_lines_are_shown(tmp_path: Path):
    script = tmp_path / "broken.py"
    script.write_text("import sys\nprint('loading', file=sys.stderr)\nraise ValueError('no data in /srv')\n")

    done = prove(*PROVE, "--scratch", tmp_path, "--", sys.executable, script)

    assert done.returncode == 2
    assert "not provable: the script fails by itself" in done.stdout
    assert "ValueError: no data in /srv" in done.stdout
    assert "loading" in done.stdout


@pytest.mark.slow
@pytest.mark.integration
def test_a_script_without_a_run_is_not_provable(tmp_path: Path):
    script = tmp_path / "other.py"
    script.write_text("print('trained')\n")

    done = prove(*PROVE, "--scratch", tmp_path, "--", sys.executable, script)

    assert done.returncode == 2
    assert "not provable: " in done.stdout
    assert "worker.Run" in done.stdout


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_everything(number: signal.Signals, tmp_path: Path):
    with subprocess.Popen(
        [*PROVE, "--scratch", tmp_path, "--", sys.executable, EXACT], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), "SLOW": "1"}, start_new_session=True,
    ) as process:  # fmt: skip
        wait_until(lambda: any(path.stat().st_size > 400 for path in tmp_path.rglob("record.jsonl")), "it trains", 60.0)
        children = psutil.Process(process.pid).children(recursive=True)

        process.send_signal(number)
        _, errors = process.communicate(timeout=60.0)

    assert process.returncode == INTERRUPTED, errors
    assert b"nothing is left of the proof" in errors
    assert len(children) >= 2
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_once_unless_it_is_ignored(number: signal.Signals):
    before = signal.getsignal(number)
    try:
        signal.signal(number, signal.SIG_IGN)
        with interruptible():
            signal.raise_signal(number)

        signal.signal(number, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), interruptible():
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)  # during the clean-up
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.slow
@pytest.mark.integration
def test_a_proof_that_is_killed_leaves_no_process(tmp_path: Path):
    with subprocess.Popen(
        [*PROVE, "--scratch", tmp_path, "--", sys.executable, EXACT], cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT), "SLOW": "1"},
    ) as process:  # fmt: skip
        wait_until(lambda: any(path.stat().st_size > 400 for path in tmp_path.rglob("record.jsonl")), "it trains", 60.0)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()

    wait_until(lambda: not any(child.is_running() for child in children), "all have ended", 60.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name a command behind --"),
        (["--steps", "0", "--", "python"], "'0' is no whole number from 1 to 1000000000"),
        (["--kills", "201", "--", "python"], "'201' is no whole number from 1 to 200"),
        (["--epochs", "0.5", "--", "python"], "write 1 or more"),
        (["--steps", "9", "--epochs", "2", "--", "python"], "two different lengths"),
        (["-c", "train.conf", "--", "python"], "name a command behind --"),
        (["-c", "train.conf", "one", "two"], "one of its jobs"),
    ],
)
def test_a_wrong_command_line_is_no_verdict(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)

    assert exit_.value.code == USAGE_ERROR
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("absent.conf", "absent.conf"),
        ("train.conf", "has the jobs digits, other; name one of them"),
        ("train.conf missing", "has no job 'missing'; it has digits, other"),
        ("train.conf web", "web is no training job"),
        ("train.conf spread", "trains on several hosts"),
        ("empty.conf", "has no training job"),
    ],
)
def test_a_wrong_file_or_job_is_not_provable(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    plain = "[program:web]\ncommand = sleep 1"
    spread = job("spread", tmp_path / "c", "strategy = multiworker")
    jobs = [job("digits", tmp_path / "a"), job("other", tmp_path / "b")]
    configuration(tmp_path, *jobs, plain, *([spread] if "spread" in name else []))
    (tmp_path / "empty.conf").write_text("[supervisord]\n")
    file, *words = name.split()

    status = main(["-c", str(tmp_path / file), *words])

    assert status == 2
    assert text in capsys.readouterr().out


def test_a_command_that_does_not_exist_is_not_provable(capsys: pytest.CaptureFixture[str]):
    assert main(["--", "no-such-command", "train.py"]) == 2
    assert "there is no command 'no-such-command'" in capsys.readouterr().out


def test_a_scratch_folder_that_can_not_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--scratch", str(tmp_path / "absent"), "--", sys.executable, str(EXACT)]) == 2
    assert f"cannot make a scratch folder in {tmp_path / 'absent'}" in capsys.readouterr().out


def test_the_help_has_every_option_and_the_exit_statuses():
    text = " ".join(parser("python -m worker.prove").format_help().split())

    for option in ("--kills", "--steps", "--epochs", "--scratch", "--keep", "--json", "--anyway", "--deterministic"):
        assert option in text
    assert "0 exact, 1 different, 2 not provable" in text
    assert "STEPKEEPER_PROOF" in text


@pytest.mark.slow
@pytest.mark.integration
def test_a_variable_that_a_shell_left_makes_no_proof_of_ordinary_training(tmp_path: Path):
    with Daemon(tmp_path, job("digits", tmp_path), environment={PROOF: str(tmp_path / "absent")}) as daemon:
        ended = daemon.until_state("digits", "SUCCEEDED", "FAILED")

    assert ended["state"] == "SUCCEEDED", ended["reason"]


@pytest.mark.integration
def test_a_gpu_in_use_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '4711, python, 4000 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert main(["--scratch", str(tmp_path), "--", sys.executable, str(EXACT)]) == 2
    assert "a GPU is in use by 4711, python, 4000 MiB; stop it, or say --anyway" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.integration
def test_a_job_that_runs_is_not_proven_beside_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    section = job("digits", tmp_path).replace("PYTHONPATH", 'SLOW="1",PYTHONPATH')
    with Daemon(tmp_path, section) as daemon:
        daemon.until_state("digits", "RUNNING")

        status = main(["-c", str(daemon.conf), "digits"])

    assert status == 2
    assert "digits runs under its daemon now" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.integration
def test_a_job_that_the_next_daemon_has_not_heard_of_yet_is_not_proven_beside_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    section = job("digits", tmp_path).replace("PYTHONPATH", 'SLOW="1",PYTHONPATH')
    with Daemon(tmp_path, section) as daemon:
        worker = daemon.until_state("digits", "RUNNING")["pid"]
        os.kill(worker, signal.SIGSTOP)
        try:
            daemon.die()
            daemon.start()
            daemon.until_state("digits", "ADOPTING")

            status = main(["-c", str(daemon.conf), "digits"])
        finally:
            os.kill(worker, signal.SIGCONT)
    assert status == 2
    assert "digits runs under its daemon now" in capsys.readouterr().out


@pytest.mark.integration
@pytest.mark.parametrize(
    "command", [("supervisor.daemon", "--prove", "c.conf", "j"), ("supervisor.prove", "-c", "c.conf", "j")]
)
@pytest.mark.parametrize("module", ["supervisor.config", "supervisor.prove.command", "supervisor.prove.plan"])
def test_ctrl_c_while_it_loads_its_modules_leaves_no_traceback(tmp_path: Path, command: tuple[str, ...], module: str):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )

    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (130, "")
