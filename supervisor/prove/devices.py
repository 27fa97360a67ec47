"""Whether the devices that a proof needs are free: it trains beside whatever else runs."""

import contextlib
import os
import shutil
import subprocess

from supervisor.config import Config
from supervisor.core.program.facts import ALIVE, State
from supervisor.ctl.client import Client, Refusal, Unreachable
from supervisor.prove.scratch import CannotProve, ProvableJob

DRIVER_S = 20.0  # for nvidia-smi to answer; a driver in trouble takes longer
_QUERY = ("--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")
_RUNNING = ALIVE | {State.BACKOFF}
_ANYWAY = "stop it, or say --anyway to train beside it"


def require_idle(config: Config, job: ProvableJob) -> None:
    """Raises CannotProve if the daemon of this configuration runs the job now, or if the GPUs are in use."""
    for server in config.unix_http_servers:
        with contextlib.suppress(Unreachable, Refusal):  # no daemon runs, or it shows nothing to this user
            programs = Client(f"unix://{server.file}").call("status")["programs"]
            if any(program["name"] == job.name and program["state"] in _RUNNING for program in programs):
                raise CannotProve(
                    f"{job.name} runs under its daemon now, and a proof would take its devices; {_ANYWAY}"
                )
    require_free_gpus(job)


def require_free_gpus(job: ProvableJob) -> None:
    """Raises CannotProve if a process computes on a GPU of NVIDIA's, where the driver's own tool can tell."""
    visible = job.environment.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    tool = shutil.which("nvidia-smi")
    if tool is None or visible in ("", "-1"):
        return
    try:
        output = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=DRIVER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return  # a driver in trouble fails the script itself, with the framework's words
    if lines := output.strip().splitlines():
        raise CannotProve(f"a GPU is in use by {lines[0]}; {_ANYWAY}")
