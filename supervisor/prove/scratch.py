"""The scratch folder of a proof: for each run a configuration that has the job's own command and nothing else of it.

What the job would touch outside is left out: its checkpoint directory, mirror, exports, hooks, event listeners,
notices, control socket and logs. What its command itself writes, in its working directory for example, is not isolated.
"""

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from supervisor.config import ProgramConfig
from supervisor.config.schema.quantities import UNLIMITED
from supervisor.protocol.proof_plan import WRITTEN
from supervisor.protocol.wire import launch

MAX_SOCKET = 98  # bytes of the path of a unix socket that the configuration accepts
PREFIX = "stepkeeper-proof-"
SOCKETS = Path("/tmp/stepkeeper-")  # noqa: S108 - mkdtemp makes it, for this user alone
PROVER = "prover"
"""A file in the scratch folder: locked while its prover lives, it names the folder of its sockets."""

_JOB_KEYS = (
    "strategy", "replicas", "replicas_min", "workers", "deterministic", "strict", "on_nan", "loss_spike", "on_oom",
    "initial_checkpoint", "restore_from_jobs", "startup_timeout", "flush_timeout", "gpu_wait", "save_shards",
)  # fmt: skip
_PROGRAM_KEYS = (
    "user", "limit_nofile", "limit_nproc", "limit_core", "limit_memlock", "memory_limit", "oom_score_adjust",
)  # fmt: skip


class CannotProve(Exception):
    """No verdict can be reached; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class ProvableJob:
    """What is proven. `keys`: of its section; `environment`: its own variables; `user`: None for the present one."""

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None

    @property
    def section(self) -> str:
        """Its name as that of a section: without its group."""
        return self.name.rpartition(":")[2]


def job_of(program: ProgramConfig, daemon_directory: Path) -> ProvableJob:
    """The job of a configuration file. Raises CannotProve for a program that is none, or of a kind that can't be."""
    job = program.job
    if job is None:
        raise CannotProve(f"{program.name} is no training job: its section has no checkpoint_dir")
    if job.strategy == "multiworker" and job.workers is None:
        raise CannotProve(
            f"{program.name} trains on several hosts, and a proof runs on one; set workers = 2 to try that"
        )
    keys = {name: _text(getattr(job, name)) for name in _JOB_KEYS if _is_set(job, name)}
    keys |= {name: _text(getattr(program, name)) for name in _PROGRAM_KEYS if _is_set(program, name)}
    if program.umask is not None:
        keys["umask"] = f"{program.umask:o}"
    directory = program.directory or daemon_directory
    return ProvableJob(program.name, program.command, directory, program.environment, keys, program.user)


def _is_set(model: object, name: str) -> bool:
    default = next(attribute.default for attribute in fields(model) if attribute.name == name)  # type: ignore[arg-type]
    return bool(getattr(model, name) != default)


def _text(value: object) -> str:
    """A value as the configuration may have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        return ", ".join(map(str, value))
    if isinstance(value, float) and value < 1e-4:  # of which str() makes 1e-05, which is no length of time
        return f"{value:.9f}"
    return "unlimited" if value == UNLIMITED else str(value)


class Scratch:
    """The folder of one proof, made by this and deleted at the end of `with` unless it is to be kept.

    One whose prover was killed is deleted by the next proof in the same place.
    """

    def __init__(self, parent: Path | None, *, keep: bool) -> None:
        """`parent`: where it is made; None for the system's temporary folder. Raises CannotProve."""
        self._keep = keep
        _remove_left(parent or Path(tempfile.gettempdir()))
        try:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            where = parent or tempfile.gettempdir()
            raise CannotProve(
                f"cannot make a scratch folder in {where}: {error.strerror}; name one with --scratch"
            ) from None
        self._runs = 0
        self._sockets = self.path  # or a folder with a shorter path
        if len(os.fsencode(self._socket())) > MAX_SOCKET:
            try:
                self._sockets = Path(tempfile.mkdtemp(prefix=SOCKETS.name, dir=SOCKETS.parent))
            except OSError as error:
                shutil.rmtree(self.path, ignore_errors=True)
                raise CannotProve(
                    f"the path of the scratch folder {self.path} is too long for a socket, and /tmp can't have it: "
                    f"{error.strerror}; name a shorter one with --scratch"
                ) from None
        self._lock = None if keep else _lock(self.path, self._sockets)

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *error: object) -> None:
        if self._sockets != self.path:
            shutil.rmtree(self._sockets, ignore_errors=True)
        if not self._keep:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def _socket(self) -> Path:
        """That of the newest run; as long for each, whatever the run is called."""
        return self._sockets / f"{self._runs}.sock"

    def run_folder(self, name: str) -> "RunFolder":
        """Makes the folder of one run, in place of an earlier one of that name."""
        self._runs += 1
        folder = RunFolder(self.path / name, self._socket())
        if folder.path.exists():
            shutil.rmtree(folder.path)
        for path in (folder.path, folder.checkpoints, folder.proof, folder.proof / WRITTEN):
            path.mkdir()
        return folder


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path
    socket: Path
    """The private daemon's control socket."""

    @property
    def configuration(self) -> Path:
        """The private daemon's configuration file."""
        return self.path / "supervisord.conf"

    @property
    def checkpoints(self) -> Path:
        """The run's checkpoint directory."""
        return self.path / "checkpoints"

    @property
    def proof(self) -> Path:
        """The folder of the worker's plan and record."""
        return self.path / "proof"

    @property
    def stderr(self) -> Path:
        """What the script printed on standard error."""
        return self.path / "stderr.log"

    def write_configuration(self, job: ProvableJob, interval_steps: int, *, restarts: int) -> None:
        """Writes the configuration of a run that saves every so many steps. Raises CannotProve."""
        environment = {
            **job.environment,
            launch.PROOF: str(self.proof),
        }
        keys = {
            **{name: _plain(value) for name, value in job.keys.items()},
            "command": " ".join(map(_word, job.command)),
            "directory": _plain(str(job.directory)),
            "environment_file": _plain(str(self.path / "environment")),
            "checkpoint_dir": _plain(str(self.checkpoints)),
            "checkpoint_interval": f"{interval_steps} steps",
            "checkpoint_keep": "5",
            "autorestart": "unexpected" if restarts else "false",
            "startretries": str(restarts),
            "standby": "off",
            "stdout_logfile": _plain(str(self.path / "stdout.log")),
            "stderr_logfile": _plain(str(self.stderr)),
        }
        self.configuration.write_text(
            f"[supervisord]\nstate_dir = {_plain(str(self.path / 'state'))}\nnotices = off\n"
            f"[unix_http_server]\nfile = {_plain(str(self.socket))}\n"
            f"[program:{job.section}]\n" + "".join(f"{name} = {value}\n" for name, value in keys.items())
        )
        (self.path / "environment").write_text("".join(map(_variable, environment.items())))
        (self.path / "environment").chmod(0o600)

    def last_stderr(self, lines: int = 10) -> Sequence[str]:
        """The last lines that the script printed on standard error."""
        try:
            text = self.stderr.read_bytes()[-16_384:].decode(errors="replace")
        except OSError:
            return ()
        return [line for line in text.splitlines() if line.strip()][-lines:]


def _lock(folder: Path, sockets: Path) -> int | None:
    """Says that the folder is in use for as long as this process lives; None if that can't be said there."""
    new = folder / f".{PROVER}"
    with contextlib.ExitStack() as undo, contextlib.suppress(OSError):
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        undo.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, os.fsencode(sockets))
        new.rename(folder / PROVER)  # nobody finds it without its lock
        undo.pop_all()
        return descriptor
    return None


def _remove_left(parent: Path) -> None:
    """Removes what this user's provers left in a folder when they were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # no prover's; or it lives
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            with (folder / PROVER).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                sockets = Path(os.fsdecode(file.read(MAX_SOCKET)))
                if str(sockets).startswith(str(SOCKETS)) and sockets.parent == SOCKETS.parent:
                    shutil.rmtree(sockets, ignore_errors=True)
                shutil.rmtree(folder, ignore_errors=True)


def _plain(text: str) -> str:
    if not text.isprintable() or re.search(r"(^|\s)[;#]", text):
        raise CannotProve(f"{text!r} can't be written into a configuration file: it has a comment sign in it")
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """A word of a command, quoted if it has to be, with nothing in it that would begin a comment."""
    if not text.isprintable():
        raise CannotProve(f"the command has control characters in {text!r}; leave them out, or put them into a file")
    return re.sub(r"(\s)([;#])", r"\1''\2", shlex.quote(text).replace("%", "%%"))


def _variable(entry: tuple[str, str]) -> str:
    name, value = entry
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'{name}="{escaped}"\n'
