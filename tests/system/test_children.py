"""Nothing of a user's is executed as root: every kind of child of a root daemon, with a canary in every variable.

A kind of child that is new has to be added to `STARTS`, and to the daemon of `test_no_variable_...` that starts them
all but the next daemon, or these tests fail.
"""

import ast
import fcntl
import json
import os
import pwd
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from supervisor.host import children
from supervisor.protocol.wire import lines, messages
from tests.places import ROOT
from tests.system.harness import Daemon, let_others_in

pytestmark = pytest.mark.hostile

USER, OTHER = "nobody", "games"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")

STARTS = {
    ("supervisor.host.processes.process_start", "start_configured"): "programs, standbys",
    ("supervisor.host.health_checks", "start_configured"): "health checks, readiness checks, stop commands",
    ("supervisor.host.hooks", "start_own"): "hooks, deploy/hooks/notify.py among them",
    ("supervisor.host.checkpoint_process", "start_own"): "checkpoint readers",
    ("supervisor.host.memory_tier.salvage", "start_own"): "writers of what dead workers left in memory",
    ("supervisor.host.logs.start", "start_own"): "the logger",
    ("supervisor.host.mirror.client", "start_own_with_streams"): "mirrors",
    ("supervisor.host.gpu_guard.client", "start_own_with_streams"): "the helper for GPUs",
    ("supervisor.host.gpu_guard.log_sources", "start_own"): "journalctl, of that helper",
    ("supervisor.host.proof_process", "start_own_with_streams"): "provers, and what cleans up after them",
    ("supervisor.host.service.systemd", "start_own_with_streams"): "systemctl is-system-running",
    ("supervisor.host.host_tools", "start_own"): "tools of the host: what `ask_tool` runs, see below",
    ("supervisor.host.service.service_end", "ask_tool"): "systemctl list-jobs",
    ("supervisor.host.slurm", "ask_tool"): "scontrol",
    ("supervisor.host.processes.stacks", "ask_tool"): "py-spy",
    ("supervisor.host.service.next_daemon", "start_configured"): "the check of what a reload is about to become",
}
"""The places in the daemon that start a process, by module and function of `children` or `host_tools`."""

OTHERS = {
    "supervisor.host.children": "the one way",
    "supervisor.host.service.background": "goes into the background (fork)",
    "supervisor.host.service.next_daemon": "becomes a fresh daemon (exec), in the same environment as it was checked",
    "supervisor.host.logs.logger": "goes into the background (fork)",
    "supervisor.pidproxy": "a command of its own, which runs as a program's process",
    "supervisor.slurm_batch": "a command of its own, which runs as the user of a batch job",
    "supervisor.slurm_node": "the same, on each node",
    "supervisor.prove.session": "proofs, which run as their caller or as the job's user: private daemons",
    "supervisor.prove.torch_states": "proofs: the job's own interpreter, as the job's user",
    "supervisor.prove.devices": "proofs: nvidia-smi, as their caller",
    "supervisor.config.first_file.interpreters": "supervisord --init, for the interpreter of a script of the caller's",
}
"""Modules that call the system's own functions, and why they may."""

SYSTEMS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}
    | {each for each in dir(os) if each.startswith(("exec", "spawn")) and callable(getattr(os, each))},
    "pty": {"fork", "spawn"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}
ON_ANYTHING = {"subprocess_exec", "subprocess_shell", "create_subprocess_exec", "create_subprocess_shell"}
MODULES = {"multiprocessing", "concurrent.futures.process", "_posixsubprocess", "pty"}


def calls_in(tree: ast.AST) -> set[str]:
    """What a module uses of the functions that start processes. `subprocess.Popen` counts if it is called: it is also
    the type of what `children` returns."""
    found: set[str] = set()
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.partition(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom):
            names = {name.name for name in node.names}
            found |= {f"{node.module}.{name}" for name in names & SYSTEMS.get(node.module or "", set())}
            found |= {node.module or ""} & MODULES | names & {"ProcessPoolExecutor"}
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            is_type = (owner, node.attr) == ("subprocess", "Popen") and id(node) not in called
            if not is_type and node.attr in SYSTEMS.get(owner, set()) | ON_ANYTHING | {"ProcessPoolExecutor"}:
                found.add(f"{owner}.{node.attr}")
    return found


def test_nothing_else_starts_a_process() -> None:
    found = {}
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if calls := calls_in(ast.parse(path.read_text())):
            found[module] = calls

    assert found.keys() == OTHERS.keys(), "start it through supervisor/host/children.py"


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nsubprocess.run(['x'])",
        "from subprocess import Popen",
        "import os\nos.execve('x', [], {})",
        "from os import posix_spawn",
        "import asyncio\nasyncio.create_subprocess_exec('x')",
        "loop.subprocess_exec(f, 'x')",
        "import multiprocessing.pool",
        "from concurrent.futures import ProcessPoolExecutor",
        "import pty",
    ],
)
def test_another_way_to_start_a_process_is_seen(text: str) -> None:
    assert calls_in(ast.parse(text))


def test_every_kind_of_child_is_in_the_list() -> None:
    found = set()
    ways = {"start_configured", "start_own", "start_own_with_streams", "ask_tool"}
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module == "supervisor.host.children":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                found |= {(module, name)} if name in ways else set()

    assert found == STARTS.keys(), "a new kind needs a line there, and a place in the daemon below"


# --- canaries ---------------------------------------------------------------------------------------------------------

CANARY = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
unsigned int la_version(unsigned int version) { return version; }
__attribute__((constructor)) static void sing(void) {
    char line[64], name[4096];
    int file = open("SONGS", O_WRONLY | O_APPEND);
    ssize_t size = readlink("/proc/self/exe", name, sizeof name - 2);
    if (file < 0 || size < 0) return;
    name[size] = '\\n';
    int length = snprintf(line, sizeof line, "%u ", (unsigned) geteuid());
    write(file, line, length);
    write(file, name, size + 1);
    close(file);
}
"""

SITE = """
import os
try:
    with open({songs!r}, "a") as file:
        file.write(f"{{os.geteuid()}} python\\n")
except OSError:
    pass
"""

LAUNCHER = """
import json, os, sys
from pathlib import Path
folder, variables = sys.argv[1], json.loads(sys.argv[2])
os.environ.update(variables)  # too late for this process's own loader, but its children inherit them
record = os.open(folder + "/started", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def hear(event, arguments):
    if event == "subprocess.Popen":
        executable, argv, cwd, env = arguments
        env = dict(os.environ if env is None else env)
        line = {"argv": [os.fsdecode(each) for each in argv], "cwd": cwd and str(cwd),
                "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}}
        os.write(record, json.dumps(line).encode() + b"\\n")

sys.addaudithook(hear)
sys.argv[:] = ["supervisord", *sys.argv[3:]]
from supervisor.daemon import main
from supervisor.host.gpu_guard.client import GpuHelper
sys.exit(main(gpu_helper=GpuHelper(driver=Path(folder))))
"""


class WatchedDaemon(Daemon):
    """A daemon with the canaries in its own environment that writes down what it starts."""

    def __init__(self, folder: Path, programs: str, settings: str, variables: dict[str, str]) -> None:
        super().__init__(folder, programs, settings)
        self.variables = variables

    def launch(self) -> None:
        command = [sys.executable, "-c", LAUNCHER, str(self.folder), json.dumps(self.variables), "-n", "-c"]
        with (self.folder / "daemon.err").open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, str(self.conf)],
                cwd=self.folder,
                env={**self.environment, "PYTHONPATH": str(ROOT)},
                stdout=errors,
                stderr=errors,
            )


# fmt: off
FOLDERS = (
    "LD_LIBRARY_PATH", "GCONV_PATH", "LOCPATH", "NLSPATH", "TMPDIR", "HOME", "PYTHONHOME", "PYTHONSTARTUP",
    "PYTHONUSERBASE", "HOSTALIASES", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "MALLOC_TRACE", "LD_DEBUG_OUTPUT", "BASH_ENV", "ENV", "PERL5LIB", "XDG_CONFIG_HOME",
    "GETCONF_DIR", "LD_PROFILE_OUTPUT", "PYTHONPYCACHEPREFIX", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE",
    "LD_ORIGIN_PATH",
)
# fmt: on
"""Variables that name a file or a folder."""


def canaries(home: Path) -> dict[str, str]:
    """By variable: a value that has the user's code loaded, or his files read."""
    song = home / "libcanary.so"
    (home / "canary.c").write_text(CANARY.replace("SONGS", str(home / "songs")))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", song, home / "canary.c"], check=True)
    (home / "python").mkdir()
    (home / "python" / "sitecustomize.py").write_text(SITE.format(songs=str(home / "songs")))
    (home / "songs").touch()
    (home / "songs").chmod(0o666)
    return {
        **{name: str(home) for name in FOLDERS},
        "LD_PRELOAD": str(song),
        "LD_AUDIT": str(song),
        "PYTHONPATH": str(home / "python"),
        "PYTHONINSPECT": "1",
        "PYTHONBREAKPOINT": "sitecustomize.f",
        "PYTHONWARNINGS": "error::sitecustomize.W",
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
        "MALLOC_CHECK_": "3",
        "MALLOC_PERTURB_": "1",
        "IFS": "x",
    }


def configuration(home: Path, variables: dict[str, str]) -> str:
    """A job of the user's with everything that is started for a program."""
    said = ",".join(f'{name}="{value}"' for name, value in {**variables, "PATH": f"{home}:/usr/bin:/bin"}.items())
    (home / "python3").write_text("#!/bin/sh\nexec sleep 600\n")  # a job of this name gets a standby
    (home / "python3").chmod(0o755)
    (home / "train.py").touch()
    (home / "store/p").mkdir(parents=True)
    keys = (
        f"environment={said}\ncheckpoint_dir={home}/job\nmirror=file://{home}/store\nstandby=auto\nstop_command=/bin/true\n"
        "healthcheck_command=/bin/true\nhealthcheck_interval=1\nstopwaitsecs=20\n"
    )
    other = f"[program:q]\ncommand={home}/python3 other.py\nuser={OTHER}\nenvironment={said}\n"
    return f"[program:p]\ncommand={home}/python3 train.py\nuser={USER}\ndirectory={home}\n{keys}\n{other}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    let_others_in(tmp_path)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def give(folder: Path) -> None:
    ids = pwd.getpwnam(USER)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ids.pw_uid, ids.pw_gid, follow_symlinks=False)


KINDS = {
    "program": "/python3 train.py",
    "program of another user": "/python3 other.py",
    "standby": "-c import sys\nif not",
    "check or stop command": "/bin/true",
    "hook": "/hook.sh",
    "checkpoint reader": "supervisor.host.checkpoint_process",
    "writer of memory": "supervisor.host.memory_tier.salvage",
    "mirror": "supervisor.host.mirror.process",
    "logger": "supervisor.host.logs.logger",
    "prover": "supervisor.proof_child",
    "cleaner of a proof": "supervisor.host.proof_cleanup",
    "helper for GPUs": "supervisor.host.gpu_guard.child",
}
"""By kind of child: what its command contains."""
OF_USERS = {"program", "program of another user", "standby", "check or stop command"}


@needs_root
@pytest.mark.integration
@pytest.mark.slow
def test_no_variable_of_a_job_or_of_the_configuration_runs_anything_as_root(home: Path) -> None:
    variables = canaries(home)
    section = configuration(home, variables)
    hook = home.parent / "hook.sh"
    hook.write_text(f"#!/bin/sh\nenv > {home.parent}/hook.env\n")
    hook.chmod(0o755)
    said = ",".join(f'{name}="{value}"' for name, value in variables.items())
    settings = f"environment={said}\nhook_relaunched={hook}"
    give(home)
    memory = os.memfd_create("state", os.MFD_ALLOW_SEALING)
    os.fchown(memory, pwd.getpwnam(USER).pw_uid, -1)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    of_the_daemon = {name: value for name, value in variables.items() if name not in ("TMPDIR", "PYTHONHOME")}

    with WatchedDaemon(home.parent, section, settings, of_the_daemon) as daemon:
        pid = daemon.until(lambda: daemon.status("p")["pid"], "it runs")
        with (home.parent / "state/run/p/a1/from-worker").open("wb") as pipe:
            pipe.write(lines.encode_message(messages.Progress(1, 1)))  # a standby is for a job that trains
            pipe.write(lines.encode_message(messages.MemoryCopies(1, os.getpid(), memory)))
        daemon.until(lambda: started(home.parent)["standby"], "a standby was started")
        daemon.until(lambda: started(home.parent)["check or stop command"], "a check was started")
        daemon.until(lambda: started(home.parent)["mirror"], "a mirror was started")
        os.kill(pid, 9)
        daemon.until((home.parent / "hook.env").exists, "the hook has run")
        daemon.until(lambda: daemon.status("p")["pid"] not in (None, pid), "it runs again")
        daemon.until(lambda: started(home.parent)["writer of memory"], "what was in memory was looked at")
        daemon.call("prove", name="p", anyway=True)
        daemon.until(lambda: daemon.call("proof", name="p")["is_over"], "a proof has come to its end")
        daemon.call("stop", name="p")

    songs = {line.split(" ")[0] for line in (home / "songs").read_text().splitlines()}
    by_kind = started(home.parent)
    users = {str(pwd.getpwnam(each).pw_uid) for each in (USER, OTHER)}
    assert songs == users, "canaries sing for the users, and for nobody else"
    assert {kind for kind in KINDS if not by_kind[kind]} == set(), "each kind was started"
    assert by_kind["unknown"] == [], "a kind that this test does not know"
    for kind in KINDS.keys() - OF_USERS:
        for each in by_kind[kind]:
            assert each["env"].keys() <= children.ALLOWED, kind
            assert not set(each["env"].values()) & set(variables.values()), kind
            assert each["cwd"] == "/", kind


def started(folder: Path) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = defaultdict(list)
    for line in (folder / "started").read_text().splitlines():
        record = json.loads(line)
        command = " ".join(record["argv"])
        own = [
            kind
            for kind, text in KINDS.items()
            if text in command and (kind != "standby" or "supervisor." not in command)
        ]
        found[own[0] if own else "unknown"].append(record)
    return found
