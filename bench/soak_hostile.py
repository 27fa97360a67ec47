"""Faults by the user of a job, beside a root daemon: links, trees, pipes, content that costs, and forged marks.

The job's folder and log are its user's, and everything here is done with that user's rights while the job trains. The
canaries are files of root's; at the end they, and the files in /etc, must be as they were.
"""

import contextlib
import hashlib
import os
import pwd
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import ROOT
from supervisor.host.processes import marks
from supervisor.protocol import layout
from supervisor.protocol.tensorbundle import entry, sstable

USER, OTHER = "nobody", "games"
SYSTEM_PYTHON = "/usr/bin/python3"
FORGED_S = 10  # how long a process with a forged mark lives
HOSTILE_STEP = 9_000_000_000  # the user's false checkpoints are of later steps
CANARIES = {"secret": 0o600, "open": 0o666, "log": 0o666, "log.1": 0o666, layout.MANIFEST: 0o644}


def python_of_user() -> str | None:
    """An interpreter of this version that USER can run, with PYTHONPATH; None if there is none, or we are not root."""
    if os.geteuid() != 0:
        return None
    for python in (sys.executable, SYSTEM_PYTHON):
        with contextlib.suppress(OSError, subprocess.SubprocessError, KeyError):
            code = f"import sys, xxhash; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
            if _run(python, "-c", code).returncode == 0:
                return python
    return None


def python_path() -> str:
    """Where that interpreter finds what a job needs."""
    return os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("packages"))])


def _run(*command: str, user: str = USER, directory: Path = Path("/")) -> "subprocess.CompletedProcess[bytes]":
    ids = pwd.getpwnam(user)
    return subprocess.run(
        command, user=ids.pw_uid, group=ids.pw_gid, extra_groups=[], cwd=directory, capture_output=True, check=False,
        env={"PATH": os.defpath, "PYTHONPATH": python_path()}, timeout=60,
    )  # fmt: skip


@dataclass
class Canaries:
    """Root's files that nothing may change. `before`: what they were."""

    folder: Path
    before: dict[str, str] = field(default_factory=dict)

    def plant(self) -> None:
        self.folder.mkdir()
        for name, mode in CANARIES.items():
            (self.folder / name).write_text(f"root's own {name}\n")
            (self.folder / name).chmod(mode)  # 0666: so that anybody may make hard links
        self.before = self._look()

    def changes(self) -> list[str]:
        """What is different, new or gone."""
        after = self._look()
        return [f"{name} was changed" for name in sorted(self.before.keys() | after.keys())
                if self.before.get(name) != after.get(name)]  # fmt: skip

    def _look(self) -> dict[str, str]:
        files = {}
        for place in (self.folder, Path("/etc")):
            for path in place.rglob("*"):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
                    digest = hashlib.sha256(content).hexdigest()
                    files[str(path)] = f"{digest} {status.st_mode:o} {status.st_uid} {status.st_gid}"
        return files


# --- what the user does; each is a shell script in the job's folder ---------------------------------------------------

LINKS = """ln -sfn {canaries} step-9999999999.a1; ln -sfn {canaries} quarantine.{number}; ln -sf {canaries}/secret ckpt
ln -sf /etc/shadow WHY.txt; ln -sfn / root; rm -f step-9999999998.a1; mkfifo step-9999999998.a1 pipe.{number}"""
LOG = """rm -rf {log}; case {kind} in 0) ln -s {canaries}/log {log};; 1) ln {canaries}/log {log};; 2) mkfifo {log};;
3) mkdir {log};; 4) ln -s {canaries} {log};; esac; sleep 1.5; rm -rf {log}"""
TREE = "cd {place} && i=0 && while [ $i -lt 1500 ]; do mkdir d && cd d || exit; i=$((i+1)); done"
FILES = "mkdir -p many && cd many && seq 20000 | xargs touch"
GARBAGE = """mkdir -p step-9999999997.a1 && cd step-9999999997.a1 && head -c {size} /dev/zero > MANIFEST.json
echo '{{"epoch": Infinity, "batch": 1e999}}' > state.json"""
INDEX = "cat > model.ckpt-1.index"


def shell(directory: Path, script: str, stdin: bytes = b"") -> None:
    """Runs a script as the user in the job's folder; what fails there is the user's own affair."""
    ids = pwd.getpwnam(USER)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            ["/bin/sh", "-c", script], input=stdin, user=ids.pw_uid, group=ids.pw_gid, extra_groups=[], cwd=directory,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60, env={"PATH": os.defpath},
        )  # fmt: skip


def script_of(chance: random.Random, canaries: Path, log: Path, pipes: Path) -> tuple[str, bytes]:
    """One of them, and what it reads."""
    number, kind = chance.randrange(1000), chance.randrange(5)
    scripts = (LINKS, LOG, TREE, TREE, FILES, GARBAGE, INDEX)
    script = chance.choice(scripts)
    place = chance.choice((str(pipes), "."))
    size = chance.choice((0, 100, 15 << 20))
    text = script.format(canaries=canaries, number=number, kind=kind, log=log, place=place, size=size)
    return text, long_shape() if script is INDEX else b""


def long_shape() -> bytes:
    """An index of 0.7 MB whose shapes multiply to a number of a million digits."""
    record = entry.encode_tensor(1, [(1 << 63) - 1] * 60_000, 0, 4, 0)
    return sstable.encode_table([(b"", entry.HEADER), (b"v", record)])


# --- forged marks -----------------------------------------------------------------------------------------------------


def forge(pid: int, chance: random.Random) -> None:
    """Starts processes of two users with the true mark of a process, and with changed ones."""
    true = marks.read_mark(pid)
    if true is None:
        return
    place, program, attempt, signature = true.rsplit(":", 3)
    forged = (
        true,
        f"{place}:{program}:1000000000:{signature}",
        f"{place}:{program}:{attempt}:{'0' * 32}",
        f"{place}:{program}:{'9' * 5000}:{signature}",
        f"{place}:{program}:{attempt}",
    )
    for user in (USER, OTHER):
        ids = pwd.getpwnam(user)
        subprocess.Popen(
            ["/bin/sleep", str(FORGED_S)], user=ids.pw_uid, group=ids.pw_gid, extra_groups=[], cwd="/",
            env={marks.VARIABLE: chance.choice(forged)}, start_new_session=True,
        )  # fmt: skip
