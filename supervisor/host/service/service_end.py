"""ExecStopPost= of the unit: after a real stop it ends what the daemon left, after a crash it lets it live.

    python -m supervisor.host.service.service_end UNIT

With KillMode=process systemd ends the daemon alone. A daemon that leaves in peace has ended its workers; one that
crashes is followed by one that takes them over. In between lie the daemon that was killed while it stopped, and the
crash whose restart is called off: nobody would ever end those workers. $SERVICE_RESULT can't tell these from a crash,
the job that systemd has for the unit can.
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

from supervisor.host.processes import leftovers, marks, tree
from supervisor.host.service.systemd import SystemdNotifier
from supervisor.protocol.plurals import counted

CRASH_PAUSE_S = 1.0
"""How long the successor of a crashed daemon waits, lest one that can't start be tried without end at full speed. Not
done by RestartSec=, as a stop that is asked for in that pause runs no command of the unit's any more."""

PATIENCE_S = 130.0
"""For workers: what flush_timeout and stopwaitsecs are together by default. The configuration is not read, as it may be
what the daemon could not do with."""

KEEPER_PATIENCE_S = 5.0  # for what is no worker: the process that writes their logs leaves once all is written
EXTEND_EVERY_S = 5.0
EXIT_CONFIG = "78"  # as RestartPreventExitStatus= of the unit: systemd will not start it again by itself


def is_final_stop(environment: Mapping[str, str], job: str | None) -> bool:
    """Whether the service stops for good. `job`: what systemd is about to do with the unit, as "stop" or "restart"."""
    if job is not None:
        return job == "stop"
    return environment.get("SERVICE_RESULT") == "success" or environment.get("EXIT_STATUS") == EXIT_CONFIG


def parse_job_type(unit: str, listed: str) -> str | None:
    """The type of the unit's job in what `systemctl list-jobs` said: lines of number, unit, type and state."""
    rows = [line.split() for line in listed.splitlines()]
    return next((row[2] for row in rows if len(row) > 2 and row[1] == unit), None)


def _service(group: str) -> str:
    """The same without what lies below the service: with Delegate= a command of the unit's has a group of its own."""
    return re.sub(r"(?m)^(.*\.service)/.*$", r"\1", group)


def processes_in(group: str) -> list[psutil.Process]:
    """The processes of a service (the text of /proc/PID/cgroup of one in it), in groups below too, but this one."""
    found, service = [], _service(group)
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):  # gone meanwhile
            if pid != os.getpid() and _service(os.fsdecode(Path(f"/proc/{pid}/cgroup").read_bytes())) == service:
                found.append(psutil.Process(pid))
    return found


async def end_processes(left: Iterable[psutil.Process], systemd: SystemdNotifier) -> str:
    """Has workers flush and leave, then ends what remains, and has systemd wait for it; says how it went."""
    ending = asyncio.create_task(_end(list(left)))
    while not ending.done():
        systemd.extend_timeout(2 * EXTEND_EVERY_S)
        await asyncio.wait({ending}, timeout=EXTEND_EVERY_S)
    return await ending


async def _end(left: list[psutil.Process]) -> str:
    workers = [each for each in left if _is_marked(each.pid)]
    how = await leftovers.end_leftovers(workers, PATIENCE_S, signal.SIGTERM)
    others = [each for each in left if each not in workers]  # only now: what workers print last is still to be written
    for each in others:
        with contextlib.suppress(psutil.Error):
            each.terminate()
    tree.kill_all((await asyncio.to_thread(psutil.wait_procs, others, KEEPER_PATIENCE_S))[1])
    return how


def _is_marked(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(each.startswith(f"{marks.VARIABLE}=".encode()) for each in variables)


def _ask_job(unit: str) -> str | None:
    """As `job_of`; None too where systemd does not answer."""
    command = ["systemctl", "list-jobs", "--no-legend", "--plain", "--no-pager"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"cannot ask systemd what becomes of {unit}: {error}; going by how the daemon ended")
        return None
    return parse_job_type(unit, answer.stdout)


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201 - standard error is the journal


def main(unit: str) -> int:
    """Gives the exit status: 0, or 1 if something could not be ended."""
    if os.environ.get("SERVICE_RESULT") != "success":
        time.sleep(CRASH_PAUSE_S)
    left = processes_in(os.fsdecode(Path("/proc/self/cgroup").read_bytes()))
    if not is_final_stop(os.environ, _ask_job(unit)):
        if left:
            lives_on = f"for the next it left {counted(len(left), 'process', 'processes')}"
            _say(f"the daemon is gone ({os.environ.get('SERVICE_RESULT')}); {lives_on}")
        return 0
    if not left:
        return 0
    try:
        how = asyncio.run(end_processes(left, SystemdNotifier(os.environ)))
    except OSError as error:
        _say(f"cannot end what the daemon left: {error}; end it by hand: systemctl kill -s KILL {unit}")
        return 1
    _say(f"ended what the daemon left, pids {' '.join(str(each.pid) for each in left)}: {how}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
