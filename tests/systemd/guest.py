"""A Debian machine in a container with systemd as its first process: made once, copied for each run, booted at will."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

PACKAGES = "systemd,systemd-sysv,dbus,polkitd,python3,python3-venv"
BOOT_S = 60.0
PATIENCE_S = 60.0
STEADY = ("running", "degraded")
ENVIRONMENT = (
    "env",
    "-i",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LANG=C.UTF-8",
)


class NoGuest(Exception):
    """No guest is to be had on this machine, and why."""


def require_rights() -> None:
    """Raises NoGuest, with what to do, if it is clear before a try that no guest can be booted here."""
    absent = [name for name in ("mmdebstrap", "systemd-nspawn", "nsenter") if shutil.which(name) is None]
    if absent:
        raise NoGuest(f"{', '.join(absent)} not installed; apt-get install mmdebstrap systemd-container util-linux")
    if os.geteuid() != 0:
        raise NoGuest("not root; a container with an init of its own needs it")
    namespaces = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--fork", "--mount-proc"]
    tried = subprocess.run([*namespaces, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if tried.returncode != 0:
        raise NoGuest(
            f"no rights to namespaces and mounts: {tried.stderr.decode().strip()}; try a privileged container"
        )


def build(folder: Path) -> Path:
    """The tree of a minimal Debian 12 in `folder`; made if it is not there yet (20 s, 250 MB). May raise NoGuest."""
    tree = folder / f"bookworm-{zlib.crc32(PACKAGES.encode()):08x}"
    if not tree.exists():
        folder.mkdir(parents=True, exist_ok=True)
        making = folder / "bookworm.making"
        shutil.rmtree(making, ignore_errors=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(making)]
        made = subprocess.run(command, stderr=subprocess.PIPE, check=False)
        if made.returncode != 0:
            raise NoGuest(f"mmdebstrap could not make a Debian:\n{made.stderr.decode(errors='replace')[-2000:]}")
        making.rename(tree)
    return tree


class Guest:
    """A machine whose disk is `root`. `shown`: folders of this machine by where the guest sees them, read-only."""

    def __init__(self, root: Path, shown: dict[str, Path]) -> None:
        self.root = root
        self._shown = shown
        self._container: subprocess.Popen[bytes] | None = None
        self._leader = 0
        self._group = _control_group(f"stepkeeper-test-{os.getpid()}")

    def boot(self) -> None:
        """Returns when the machine is up with nothing left to do."""
        command = ["systemd-nspawn", "--quiet", "-D", str(self.root), "--register=no", "--keep-unit", "--boot"]
        command += ["--console=pipe", "--private-network", "--machine=stepkeeper-test"]
        command += [f"--bind-ro={there}:{here}" for here, there in self._shown.items()]
        environment = {"PATH": os.environ["PATH"], "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        self._leader = 0
        with (self.root.parent / "console.log").open("ab") as console:
            self._container = subprocess.Popen(
                [*self._in_group(), "setpriv", "--pdeathsig", "KILL", *command],  # it does not outlive us
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # Ctrl-C is ours: who is asked twice powers off twice
            )
        until(self._find_leader, "the guest has a first process", BOOT_S)
        until(lambda: self.try_run("systemctl", "is-system-running").stdout.strip() in STEADY, "it has booted", BOOT_S)

    def power_off(self) -> None:
        """The orderly way; returns when the machine is off."""
        self.try_run("systemctl", "poweroff")
        self.wait_off()

    def wait_off(self) -> None:
        """Returns when the machine is off."""
        assert self._container is not None
        self._container.wait(PATIENCE_S * 2)
        self._container = None

    def destroy(self) -> None:
        """Ends the machine however it is; its disk stays."""
        if self._container is not None and self._container.poll() is None:
            with contextlib.suppress(AssertionError, OSError):
                self._find_leader()  # it may be just booting
            with contextlib.suppress(ProcessLookupError):
                if self._leader:
                    os.kill(self._leader, signal.SIGKILL)  # the first process of a pid namespace takes all with it
            try:
                self._container.wait(PATIENCE_S / 10 if self._leader else 0)
            except subprocess.TimeoutExpired:
                self._container.kill()
                self._container.wait()
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group / "cgroup.kill").write_text("1")
            with contextlib.suppress(AssertionError):
                until(lambda: "populated 0" in (self._group / "cgroup.events").read_text(), "all of it is gone", 10)
            for folder, _, _ in os.walk(self._group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def try_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the guest, as root."""
        into = ["nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", *ENVIRONMENT]
        return subprocess.run([*into, *command], capture_output=True, text=True, check=False, timeout=PATIENCE_S * 6)

    def run(self, *command: str) -> str:
        """As `try_run`; what it printed. Raises AssertionError if it fails."""
        done = self.try_run(*command)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def path(self, inside: str) -> Path:
        """Where a path of the guest's disk is on this machine. Not for what is mounted in the guest, as /run."""
        return self.root / inside.lstrip("/")

    def write(self, inside: str, text: str) -> None:
        """Writes a file onto the guest's disk."""
        self.path(inside).parent.mkdir(parents=True, exist_ok=True)
        self.path(inside).write_text(text)

    def unit(self, *properties: str) -> dict[str, str]:
        """What systemd says of the service."""
        told = self.run("systemctl", "show", "stepkeeper.service", *(f"--property={each}" for each in properties))
        return dict(line.split("=", 1) for line in told.splitlines())

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """The entries of the guest's journal that match, in their order."""
        told = self.run("journalctl", "--output=json", "--all", "--no-pager", *matches)
        return [json.loads(line) for line in told.splitlines()]

    def status(self, program: str) -> dict[str, Any]:
        """What supervisorctl says of a program."""
        told = self.try_run("supervisorctl", "--json", "status").stdout
        try:
            programs: Iterable[dict[str, Any]] = json.loads(told)["programs"]
        except (ValueError, KeyError):  # no daemon at the moment
            return {"name": program, "state": "unknown", "pid": None, "attempt": None, "job": {"step": None}}
        return next(each for each in programs if each["name"] == program)

    def _find_leader(self) -> bool:
        assert self._container is not None
        if self._container.poll() is not None:
            raise AssertionError(f"the guest does not boot:\n{(self.root.parent / 'console.log').read_text()[-2000:]}")
        children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children").read_text().split()
        with contextlib.suppress(
            FileNotFoundError
        ):  # nspawn's own first child, which is not the guest's, is gone again
            for pid in children:
                if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                    self._leader = int(pid)
                    return True
        return False

    def _in_group(self) -> list[str]:
        """What makes the command after it run in the guest's control group."""
        if self._group is None:
            return []
        return ["sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(self._group)]


def _control_group(name: str) -> Path | None:
    """A new control group for a guest, which shall not make its own in this machine's; None where none can be made."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, place, kind, *_ in mounts:
        if kind == "cgroup2":
            with contextlib.suppress(OSError):
                group = Path(place) / name
                group.mkdir(exist_ok=True)
                return group
    return None


def until(look: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """What `look` gives, as soon as it gives something. Raises AssertionError after `patience_s`."""
    return wait_until(look, what, patience_s)
