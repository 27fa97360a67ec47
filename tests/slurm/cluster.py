"""A real Slurm cluster on this machine: a controller and nodes, each a host of its own as far as Linux can make one.

A node is a set of namespaces: its network (one cable to the cluster's switch), its hostname, its processes (killing the
first kills them all, as a power failure does), and its own disk, mounted at the same path on every node. The
controller and the switch have a network namespace too, so nothing of the cluster is visible to the machine, and
several clusters don't meet. munged, slurmctld and slurmd are Debian's. Needs root.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "ip", "unshare", "nsenter")
NETWORK = "10.231.77"
PATIENCE_S = 60.0
NODE_DOWN_S = 30  # SlurmdTimeout: how soon the controller gives a silent node up

_CONF = """
ClusterName=sktest
SlurmctldHost=ctl({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={disk}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={disk}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait={kill_wait}
KillOnBadExit=0
SlurmctldParameters=preempt_send_user_signal
SlurmdTimeout={node_down}
SlurmctldTimeout=30
InactiveLimit=0
{nodes}
PartitionName=low  Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace} PreemptMode=REQUEUE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""

_INIT = """
hostname {name}
mount --make-rprivate /
mount --bind {folder}/disks/{name} {disk}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
while :; do slurmd -D -N {name} -f {folder}/slurm.conf >> {folder}/log/{name}.out 2>&1; sleep 1; done
"""


def why_not_here() -> str | None:
    """Why there can't be a cluster on this machine; None if there can."""
    if os.geteuid() != 0:
        return "a Slurm cluster of namespaces needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)}: Debian's slurmctld, slurmd, slurm-client, munge, iproute2, util-linux"
    namespaces = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc"]
    network = "ip link add switch type bridge && ip link add here type veth peer name there"
    tried = subprocess.run([*namespaces, "sh", "-c", network], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"no namespaces, bridges or cables: {tried.stderr.decode().strip()}"


class Node:
    """One node. `pid`: of its first process, as this machine sees it."""

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.cluster = cluster
        self.name = f"n{number}"
        self.address = f"{NETWORK}.{10 + number}"
        self.cable = f"sk{cluster.id}{self.name}"
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def start(self) -> None:
        """Switches it on: with an empty disk the first time, with what is on it later."""
        cluster = self.cluster
        script = _INIT.format(name=self.name, folder=cluster.folder, disk=cluster.disk)
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
             "bash", "-c", script],
            env=cluster.environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.pid = wait_until(self._first_process, f"{self.name} is on", PATIENCE_S)
        cluster.ip("link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        cluster.ip("link", "set", self.cable, "master", "switch", "up")
        for command in (["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
            self._nsenter("ip", *command)

    def _first_process(self) -> int | None:
        assert self.process is not None and self.process.poll() is None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        own = Path("/proc/self/ns/net").readlink()
        if not children or Path(f"/proc/{children[0]}/ns/net").readlink() == own:
            return None
        return int(children[0])

    def _nsenter(self, *command: str) -> None:
        subprocess.run(["nsenter", "--net", "--target", str(self.pid), *command], check=True)

    def power_off(self) -> None:
        """All its processes are gone at once; its disk stays."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not Path(f"/proc/{self.pid}").exists() or None, f"{self.name} is off", PATIENCE_S)
        self.cluster.ip("link", "del", self.cable, check=False)
        self.process = None

    def cut(self) -> None:
        """Pulls its network cable."""
        self.cluster.ip("link", "set", self.cable, "down")

    def mend(self) -> None:
        """Plugs it in again."""
        self.cluster.ip("link", "set", self.cable, "up")

    def processes(self) -> dict[int, list[str]]:
        """Command lines of its processes, by the pid that this machine sees; not Slurm's own."""
        if self.process is None:
            return {}
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if os.readlink(path / "ns/pid") == space and int(path.name) != self.pid:
                    found[int(path.name)] = words
            except (OSError, ValueError):
                continue
        return {pid: words for pid, words in found.items() if words and not _is_own(words)}

    def find(self, *words: str) -> list[int]:
        """Pids of its processes whose command line has all these words, the oldest first."""
        return sorted(pid for pid, line in self.processes().items() if all(word in " ".join(line) for word in words))

    def kill(self, *words: str, number: int = signal.SIGKILL) -> list[int]:
        """Signals its processes whose command line has all these words."""
        found = self.find(*words)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # one that was killed ended another
                os.kill(pid, number)
        return found

    def kill_own(self, pid: int, number: int = signal.SIGKILL) -> bool:
        """Signals the process that has this pid on the node; False if there is none."""
        for outside in self.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{outside}/status").read_text()
                if status.partition("NSpid:")[2].partition("\n")[0].split()[-1] == str(pid):
                    os.kill(outside, number)
                    return True
        return False

    @property
    def own_disk(self) -> Path:
        """Its disk, as this machine sees it."""
        return self.cluster.folder / "disks" / self.name


def _is_own(words: Sequence[str]) -> bool:
    return any(Path(words[0]).name.startswith(text) for text in ("slurmd", "slurmstepd", "sleep")) or (
        words[0].startswith("slurmstepd:")
    )


class Cluster:
    """The cluster. `folder` is shared by all nodes; `disk` is the path of each node's own disk."""

    def __init__(self, count: int = 3, grace_s: int = 10, kill_wait_s: int = 20) -> None:
        self.id = f"{os.getpid() % 100000:x}"
        self.folder = Path(tempfile.mkdtemp(prefix="sk-slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.disk = self.folder / "disk"
        self.space = f"sk{self.id}"
        self.nodes = [Node(self, number) for number in range(1, count + 1)]
        self.environment = {
            **{
                key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "STEPKEEPER", "SUPERV"))
            },
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "TMPDIR": str(self.disk),
        }
        self._daemons: list[subprocess.Popen[bytes]] = []
        for each in ("state", "log", "disk", "shared", *(f"disks/{node.name}" for node in self.nodes)):
            (self.folder / each).mkdir(parents=True)
        lines = [f"NodeName={each.name} NodeAddr={each.address} CPUs=2 RealMemory=2000" for each in self.nodes]
        (self.folder / "slurm.conf").write_text(
            _CONF.format(
                network=NETWORK, folder=self.folder, disk=self.disk, kill_wait=kill_wait_s, node_down=NODE_DOWN_S,
                grace=grace_s, nodes="\n".join(lines),
            )
        )  # fmt: skip
        names = [f"{NETWORK}.1 ctl", *(f"{each.address} {each.name}" for each in self.nodes)]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)

    @property
    def shared(self) -> Path:
        """A folder that all nodes share."""
        return self.folder / "shared"

    # --- on and off ---

    def start(self) -> "Cluster":
        """Starts everything, and waits until all nodes are idle."""
        try:
            subprocess.run(["ip", "netns", "add", self.space], check=True)
            self.ip("link", "add", "switch", "type", "bridge")
            self.ip("addr", "add", f"{NETWORK}.1/24", "dev", "switch")
            self.ip("link", "set", "switch", "up")
            self.ip("link", "set", "lo", "up")
            folder = self.folder
            self._daemon(
                "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.sock",
                f"--pid-file={folder}/munged.pid", f"--log-file={folder}/log/munged.log",
                f"--seed-file={folder}/munge.seed",
            )  # fmt: skip
            wait_until(lambda: (folder / "munge.sock").exists() or None, "munged listens", PATIENCE_S)
            self._daemon("unshare", "--uts", "--mount", "bash", "-c", "hostname ctl; exec slurmctld -D")
            for node in self.nodes:
                node.start()
            self.until_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops everything, and leaves nothing."""
        for node in self.nodes:
            if node.process is not None:
                node.power_off()
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        subprocess.run(["ip", "netns", "del", self.space], check=False)
        if (kept := os.environ.get("SLURM_TEST_KEEP")) is not None:
            with contextlib.suppress(shutil.Error):  # some of it is being written
                shutil.copytree(self.folder, kept, ignore=shutil.ignore_patterns("*.sock", "disk"), dirs_exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _daemon(self, *command: str) -> None:
        with (self.folder / "log" / f"{len(self._daemons)}.out").open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self.space, *command], env=self.environment, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=output,
                )
            )  # fmt: skip

    def ip(self, *command: str, check: bool = True) -> None:
        """`ip` in the network of the controller."""
        subprocess.run(["ip", "-n", self.space, *command], check=check, capture_output=not check)

    def until_idle(self, patience_s: float = PATIENCE_S) -> None:
        """Waits until no node is busy, missing or down."""

        def look() -> bool | None:
            states = self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T").stdout.split()
            return (len(states) == len(self.nodes) and set(states) == {"idle"}) or None

        wait_until(look, "all nodes are idle", patience_s, self.logs)

    def logs(self) -> str:
        """What the controller said last, for people."""
        log = self.folder / "log" / "slurmctld.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""

    # --- jobs ---

    def run(self, *command: str, check: bool = True, **environment: str) -> "subprocess.CompletedProcess[str]":
        """A command on the controller."""
        return subprocess.run(
            ["ip", "netns", "exec", self.space, *command], env={**self.environment, **environment}, check=check,
            capture_output=True, text=True, cwd=self.shared, timeout=PATIENCE_S,
        )  # fmt: skip

    def submit(self, *arguments: str, **environment: str) -> "SlurmJob":
        """`sbatch`; gives the job."""
        return SlurmJob(self, self.run("sbatch", "--parsable", *arguments, **environment).stdout.strip())

    def leftovers(self) -> dict[str, list[list[str]]]:
        """What runs on the nodes that is not Slurm's own, by node."""
        return {node.name: list(found.values()) for node in self.nodes if (found := node.processes())}


class SlurmJob:
    """A job in the queue."""

    def __init__(self, cluster: Cluster, id: str) -> None:
        self.cluster = cluster
        self.id = id

    def field(self, name: str) -> str:
        """A field of `scontrol show job`."""
        words = self.cluster.run("scontrol", "show", "job", "-o", self.id).stdout.split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED …"""
        return self.field("JobState")

    @property
    def output(self) -> str:
        """What it printed."""
        file = self.cluster.shared / f"slurm-{self.id}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def until(self, look: Callable[[], Any], what: str, patience_s: float = 120.0) -> Any:
        """Waits for what `look` gives."""

        def look_slowly() -> Any:  # each look starts commands
            time.sleep(0.1)
            return look()

        return wait_until(look_slowly, what, patience_s, lambda: f"{self.output[-6000:]}\n{self.cluster.logs()}")

    def until_state(self, *states: str, patience_s: float = 120.0) -> str:
        """Waits for one of these states."""
        return str(
            self.until(lambda: found if (found := self.state) in states else None, " or ".join(states), patience_s)
        )

    def start_now(self) -> None:
        """A requeued job may not start for two minutes; this waives all but some seconds of them.

        A node refuses a credential of the second in which it ended the job ("credential revoked"): the job would fail.
        """
        self.until_state("PENDING")
        self.cluster.run("scontrol", "update", f"JobId={self.id}", "StartTime=now+3seconds")
