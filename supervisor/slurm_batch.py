"""What deploy/slurm/train.sbatch runs on the first node of an allocation: starts a daemon on each node, again if need
be, and asks Slurm for another run. `python -m supervisor.slurm_batch FILE`.

The daemons of all nodes are one step (`srun`). When it has ended, `core.gang.steps` says what follows; nobody else
starts a daemon. With spare nodes, the step goes on when a node is lost: then `slurm_node.py` starts the daemon of each
node, and the chief's says how the step has ended. At the end every node is cleaned: no process outlives the allocation,
and no folder on the node's disk.
"""

import argparse
import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from supervisor.config import Config, ConfigError, load_config
from supervisor.config.options import COMMAND_LINE
from supervisor.config.several_nodes import training_nodes
from supervisor.core.gang.steps import AfterStep, StepHistory, step_status
from supervisor.host import slurm
from supervisor.host.processes import leftovers, marks
from supervisor.ini.reader import IniKey
from supervisor.protocol import allocation
from supervisor.protocol.allocation import MAX_TURNS, SPACING, AllocationError, StepExit
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.plurals import counted

EXIT_CONFIG = 78  # EX_CONFIG
OTHERS_WAIT_S = 60  # from the first daemon's end to the end of a step that does not end by itself
CLEAN_S = 60.0  # for all nodes; one that is gone does not answer
LEAVE_S = 10.0  # for a process that outlived its daemon
NODES_LOOK_S = 10.0  # between two looks at the nodes that are left, each of which asks the controller
SIGNAL_LOOK_S = 0.5  # Python goes on sleeping after a signal
REQUEUED_S = 120.0  # until Slurm ends this script
_PYTHON = (sys.executable, "-P", "-m")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status of the job."""
    parser = argparse.ArgumentParser(prog="slurm_batch", description="Runs a job in this allocation until it is done.")
    parser.add_argument("configuration", type=Path, help="the job's configuration, for supervisord")
    parser.add_argument("--clean", action="store_true", help="only clean this node")
    parsed = parser.parse_args(arguments)
    path = parsed.configuration.absolute()
    try:
        config = load_config(path, os.environ, {"engine": IniKey("slurm", COMMAND_LINE, path.parent)})
        if parsed.clean:
            return clean_node(config)
        nodes = slurm.read_nodes(os.environ)
        return BatchRun(config, path, len(nodes), training_nodes(config, len(nodes))).run()
    except (ConfigError, AllocationError, slurm.SlurmError) as error:
        _say(str(error))
        return EXIT_CONFIG


class BatchRun:
    """One run of the batch script. `nodes`: that the job got; `wanted`: that train."""

    def __init__(self, config: Config, path: Path, nodes: int, wanted: int) -> None:
        self._config = config
        self._path = path
        self._nodes = nodes
        self._wanted = wanted
        jobs = [program.job for program in config.programs.values()]
        self._outlives_nodes = any(job is not None and job.nodes is not None for job in jobs)
        self._job_id = allocation.job_id(os.environ)
        restarts = allocation.restart_count(os.environ)
        self._generation = restarts * SPACING * MAX_TURNS + 1 - MAX_TURNS
        self._history = StepHistory(self._newest(), restarts)
        self._is_ending = False
        self._secret = secrets.token_hex(32)

    def run(self) -> int:
        """Runs steps until the job is done, given up, or queued again."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._outlives_nodes:
            spares = counted(self._nodes - self._wanted, "spare node")
            _say(f"{self._wanted} nodes train, with {spares}; submit with --no-kill, or Slurm ends the job with a node")
        while True:
            status = self._run_spared_step() if self._outlives_nodes else self._run_step()
            self._look_at_nodes()
            follows = self._history.after(status, self._newest(), self._is_ending, self._nodes < self._wanted)
            _say(f"the daemons ended with status {status}: {follows.why}; next: {follows.verdict.value}")
            if follows.verdict is AfterStep.AGAIN and self._pause(follows.pause_s):
                continue
            self._clean_nodes()
            return status if follows.verdict is AfterStep.LEAVE else self._requeue(status)

    def _pause(self, pause_s: float) -> bool:
        """Waits before a new step; False if the allocation ends meanwhile: no daemon would hear of it any more."""
        until = time.monotonic() + pause_s
        while not self._is_ending and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, SIGNAL_LOOK_S))
        return not self._is_ending

    def _run_step(self) -> int:
        step = self._start_step([f"--wait={OTHERS_WAIT_S}"], [*_PYTHON, "supervisor.daemon"], {})
        return _status_of(step.wait())

    def _run_spared_step(self) -> int:
        """A step that outlives the loss of a node. Its end is the chief's: `srun` waits for lost nodes."""
        with tempfile.TemporaryDirectory(prefix=f"stepkeeper-{os.geteuid()}-{self._job_id}-") as folder:
            verdict = Path(folder) / "verdict"
            options, command = ["--no-kill", "--wait=0"], [*_PYTHON, "supervisor.slurm_node"]
            step = self._start_step(options, command, {allocation.VERDICT: str(verdict)})
            status = self._wait_for(step, verdict)
            try:
                said = allocation.parse_verdict(verdict.read_text(), self._generation)
            except (OSError, ValueError):
                said = None
            return step_status(said, status)

    def _wait_for(self, step: "subprocess.Popen[bytes]", verdict: Path) -> int:
        """Waits for the end of the step, and ends it once the chief has left or too few nodes are there."""
        ends_at: float | None = None
        looks_at = time.monotonic() + NODES_LOOK_S
        while (status := step.poll()) is None:
            now = time.monotonic()
            if ends_at is None and verdict.exists():
                ends_at = now + OTHERS_WAIT_S
            if now >= looks_at:
                self._look_at_nodes()
                looks_at = time.monotonic() + NODES_LOOK_S
                ends_at = now if self._nodes < self._wanted else ends_at
            if ends_at is not None and now >= ends_at:
                step.terminate()
                try:
                    return _status_of(step.wait(LEAVE_S))
                except subprocess.TimeoutExpired:
                    step.kill()
            time.sleep(SIGNAL_LOOK_S)
        return _status_of(status)

    def _look_at_nodes(self) -> None:
        """Slurm takes a node that is down out of a job that goes on without it."""
        if self._nodes > 1 and (nodes := slurm.remaining_nodes(self._job_id)) is not None:
            self._nodes = len(nodes)

    def _start_step(
        self, options: list[str], command: list[str], variables: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        self._generation += MAX_TURNS
        environment = {
            **os.environ, allocation.GENERATION: str(self._generation), allocation.SECRET: self._secret, **variables,
        }  # fmt: skip
        supervisord = [*command, "-n", "-c", str(self._path), "--engine", "slurm"]
        return subprocess.Popen([*self._srun(), *options, *supervisord], env=environment)

    def _srun(self) -> list[str]:
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")  # srun does not take it from the batch script since 22.05
        return [
            "srun", f"--nodes={self._nodes}", f"--ntasks={self._nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=0",
            *([f"--cpus-per-task={cpus}"] if cpus else []),
        ]  # fmt: skip

    def _newest(self) -> object:
        """The newest checkpoint of each job."""
        checkpoints: list[str] = []
        for program in self._config.programs.values():
            if program.job is not None:
                with contextlib.suppress(OSError):
                    checkpoints += map(str, selection.committed_checkpoints(program.job.checkpoint_dir)[:1])
        return tuple(checkpoints)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_ending = True

    def _clean_nodes(self) -> None:
        """Ends and removes what is left on every node that answers."""
        command = [*self._srun(), "--overlap", *_PYTHON, "supervisor.slurm_batch", "--clean"]
        status: int | str
        try:
            status = subprocess.run([*command, str(self._path)], timeout=CLEAN_S, check=False).returncode
        except (OSError, subprocess.SubprocessError) as error:
            status = type(error).__name__
        if status != 0:  # a node is gone, or Slurm has taken them all
            _say(f"not every node could be cleaned (srun: {status}); what is left ends by itself within two minutes")

    def _requeue(self, status: int) -> int:
        """Asks for another run, unless the job was cancelled or its time is up."""
        state = slurm.job_state(self._job_id)
        if state is not None and state not in slurm.RUNNING:
            _say(f"not queued again: the job is {state}")
            return status
        try:
            slurm.requeue(self._job_id)
        except slurm.SlurmError as error:
            _say(str(error))
            return status
        time.sleep(REQUEUED_S)
        return status


def clean_node(config: Config) -> int:
    """Ends what daemons of this job left on this node, and removes their folder if it is the default one."""
    folder = config.supervisord.state_dir
    left = [process for processes in marks.processes_of_daemon(folder).values() for process in processes]
    if left:
        how = asyncio.run(leftovers.end_leftovers(left, LEAVE_S, signal.SIGTERM))
        _say(f"{len(left)} processes: {how}")
    slurm.remove_folder(folder, StepExit.DONE)
    return 0


def _status_of(status: int) -> int:
    """As a shell says it."""
    return status if status >= 0 else 128 - status


def _say(text: str) -> None:
    print(f"stepkeeper: {text}", file=sys.stderr, flush=True)  # noqa: T201 - Slurm's output file


if __name__ == "__main__":
    sys.exit(main())
