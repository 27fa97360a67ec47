"""ExecStopPost= of the unit: ends the processes that the daemon left after a stop, and spares them after a crash.

    python -m supervisor.host.service.service_end UNIT

With KillMode=process systemd ends only the daemon. A daemon that exits normally has ended its workers, and after a
crash the next daemon adopts them. Two cases remain, in which nobody would ever end the workers: the daemon was killed
while it stopped, or it crashed and its restart was cancelled. $SERVICE_RESULT does not distinguish these from a crash,
but the job that systemd has for the unit does.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from supervisor.host.host_tools import ask_tool
from supervisor.host.processes import leftovers, marks, tree
from supervisor.host.service.systemd import SystemdNotifier
from supervisor.protocol.plurals import counted

CRASH_PAUSE_S = 1.0
"""The pause before a crashed daemon is restarted, so that one that can't start is not restarted at full speed. Not
RestartSec=, because a stop requested during that pause would not run ExecStopPost= again."""

PATIENCE_S = 130.0
"""How long workers may take: the defaults of flush_timeout and stopwaitsecs together. The configuration is not read, as
it may be the reason why the daemon could not start."""

SYSTEMCTL_TIMEOUT_S = 10.0
LOGGER_TIMEOUT_S = 5.0  # for the logger process, which exits once everything is written
EXTEND_EVERY_S = 5.0
EXIT_CONFIG = "78"  # as RestartPreventExitStatus= of the unit: systemd will not start it again by itself


def is_final_stop(environment: Mapping[str, str], job: str | None) -> bool:
    """Whether the service stops for good. `job`: the job that systemd has for the unit, such as "stop" or "restart"."""
    if job is not None:
        return job == "stop"
    return environment.get("SERVICE_RESULT") == "success" or environment.get("EXIT_STATUS") == EXIT_CONFIG


def parse_job_type(unit: str, listed: str) -> str | None:
    """The type of the unit's job in the output of `systemctl list-jobs`: lines of number, unit, type and state."""
    rows = [line.split() for line in listed.splitlines()]
    return next((row[2] for row in rows if len(row) > 2 and row[1] == unit), None)


def _service(group: str) -> str:
    """The cgroup of the service itself: with Delegate=, each command of the unit has a group below it."""
    return re.sub(r"(?m)^(.*\.service)/.*$", r"\1", group)


def processes_in(group: str) -> list[psutil.Process]:
    """The processes of a service except this one. `group`: the text of /proc/PID/cgroup of one of them."""
    processes, service = [], _service(group)
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):  # gone meanwhile
            if pid != os.getpid() and _service(os.fsdecode(Path(f"/proc/{pid}/cgroup").read_bytes())) == service:
                processes.append(psutil.Process(pid))
    return processes


async def end_processes(left: Iterable[psutil.Process], systemd: SystemdNotifier) -> str:
    """Makes workers flush and exit, then ends what remains, while systemd waits; returns how it went."""
    ending = asyncio.create_task(_end(list(left)))
    while not ending.done():
        systemd.extend_timeout(2 * EXTEND_EVERY_S)
        await asyncio.wait({ending}, timeout=EXTEND_EVERY_S)
    return await ending


async def _end(left: list[psutil.Process]) -> str:
    workers = [process for process in left if marks.read_mark(process.pid) is not None]
    how = await leftovers.end_leftovers(workers, PATIENCE_S, signal.SIGTERM)
    others = [
        process for process in left if process not in workers
    ]  # only now: the logger still has to write the last output of workers
    for other in others:
        with contextlib.suppress(psutil.Error):
            other.terminate()
    tree.kill_all((await asyncio.to_thread(psutil.wait_procs, others, LOGGER_TIMEOUT_S))[1])
    return how


def _query_job(unit: str) -> str | None:
    """As `parse_job_type`; also None if systemd does not answer."""
    try:
        answer = ask_tool(("systemctl", "list-jobs", "--no-legend", "--plain", "--no-pager"), SYSTEMCTL_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        why = str(error)
    else:
        if answer.status == 0:
            return parse_job_type(unit, answer.stdout.decode(errors="replace"))
        why = f"systemctl exited with status {answer.status}"
    _report(f"cannot ask systemd for the job of {unit}: {why}; deciding by how the daemon ended")
    return None


def _report(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - standard error is the journal


def main(unit: str) -> int:
    """Returns the exit status: 0, or 1 if a process could not be ended."""
    if os.environ.get("SERVICE_RESULT") != "success":
        time.sleep(CRASH_PAUSE_S)
    left = processes_in(os.fsdecode(Path("/proc/self/cgroup").read_bytes()))
    if not is_final_stop(os.environ, _query_job(unit)):
        if left:
            survivors = f"{counted(len(left), 'process', 'processes')} left running for the next one to adopt"
            _report(f"the daemon ended ({os.environ.get('SERVICE_RESULT')}); {survivors}")
        return 0
    if not left:
        return 0
    try:
        how = asyncio.run(end_processes(left, SystemdNotifier(os.environ)))
    except OSError as error:
        _report(
            f"cannot end the processes that the daemon left: {error}; kill them with: systemctl kill -s KILL {unit}"
        )
        return 1
    _report(f"ended the processes that the daemon left (pids {' '.join(str(process.pid) for process in left)}): {how}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
